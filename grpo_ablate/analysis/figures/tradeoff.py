"""What a row pays for its reward: the KL to the reference against the reward, along training."""

from __future__ import annotations

from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines, style
from grpo_ablate.analysis.figures.material import Material, hue_axis, interval, metric_label, row_name
from grpo_ablate.spec.resolve import Row


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw one path per row from the start of training to its end, with every seed's end and the intervals."""
    metric, groups = material.metric(options), lines.groups(material, options["rows"])
    columns = min(lines.columns(len(groups)), 2)
    figure, panels = lines.panels(len(groups), columns, 2.4, 1.8, sharex=True, sharey=True)
    labels = []
    for index, (axes, (title, rows)) in enumerate(zip(panels, groups, strict=True)):
        labels.append((axes, _paths(axes, material, rows, options["x"], metric)))
        axes.set_title(title)
        if index + columns >= len(groups):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(metric_label(material.experiment, options["x"]))
        if index % columns == 0:
            axes.set_ylabel(metric_label(material.experiment, metric))
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def _paths(axes: Axes, material: Material, rows: list[Row], x: str, y: str) -> list[tuple[float, str, str]]:
    experiment, styles = material.experiment, style.row_styles(material.experiment)
    others = [axis for axis in experiment.axes if axis != hue_axis(experiment)]
    ends = []
    for row in rows:
        look = styles[row.id]
        across, up = (interval(material.curve(row.id, metric)[1])[0] for metric in (x, y))
        axes.plot(across, up, color=look.colour, linestyle=look.dashes, linewidth=0.8, alpha=0.8, zorder=2)
        end_x, end_y = (material.final(row, metric) for metric in (x, y))
        axes.scatter(end_x, end_y, s=4, marker=look.marker, color=look.colour, alpha=0.4, linewidth=0, zorder=3)
        (mean_x, half_x), (mean_y, half_y) = (interval(values) for values in (end_x, end_y))
        axes.errorbar(
            mean_x, mean_y, xerr=_drawn(half_x), yerr=_drawn(half_y), fmt=look.marker, color=look.colour,
            markersize=3, markeredgecolor="black", markeredgewidth=0.5, elinewidth=0.8, zorder=4,
        )  # fmt: skip
        ends.append((float(mean_y), row_name(experiment, row, without=others), look.colour))
    return ends


def _drawn(half: np.ndarray) -> np.ndarray | None:
    return None if np.isnan(half) else half


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the paths and their ends are."""
    groups, metric = lines.groups(material, options["rows"]), material.metric(options)
    labels = [metric_label(material.experiment, name) for name in (metric, options["x"])]
    return (
        f"{labels[0].capitalize()} against the {labels[1]}: lines, the mean over seeds at each evaluation, from "
        "the start of training on; large marks, the final means with their 95 % t intervals in both directions; "
        f"small marks, single seeds (per row {lines.seeds(material, groups)}).{lines.repeated(groups)}"
    )
