"""A sweep of one number: final quality against it, and learning curves against several measures of cost.

What is held while the number moves (the option ``by``) decides the answer, so every way of holding it is shown
beside the others, against the same measures of cost (the option ``costs``).
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import (
    COST_LABELS,
    Material,
    axis_label,
    axis_values,
    interval,
    levels,
    metric_label,
)
from grpo_ablate.spec.resolve import Row

TOP = 1.85  # inches of height for the panels of final quality
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))


def _rows(material: Material, options: dict[str, Any]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows on the sweep by (panel level, by level), in the order of the swept number."""
    experiment = material.experiment
    _, values = axis_values(experiment, options["axis"])
    found: dict[tuple[str, str], list[Row]] = {}
    for panel in experiment.axes[options["panel"]]:
        for by in experiment.axes[options["by"]]:
            rows = [
                row
                for row in material.rows
                if levels(experiment, row).get(options["panel"]) == panel
                and levels(experiment, row).get(options["by"]) == by
            ]
            if rows:
                rows.sort(key=lambda row: values[levels(experiment, row)[options["axis"]]])
                found[panel, by] = rows
    return found


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw final quality above; below, per panel, the curves for each way of holding and each cost."""
    found, experiment = _rows(material, options), material.experiment
    panels = list(dict.fromkeys(panel for panel, _ in found))
    holds = list(dict.fromkeys(by for _, by in found))
    height = TOP + 1.35 * len(panels) + 0.35
    figure = plt.figure(figsize=(style.DOUBLE, height), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(TOP, height - TOP), squeeze=False)[:, 0]
    finals = top.subplots(1, len(panels), squeeze=False)[0]
    labels = []
    for axes, panel in zip(finals, panels, strict=True):
        labels.append((axes, _finals(axes, material, options, {b: found.get((panel, b), []) for b in holds})))
        axes.set_title(f"{options['panel']}: {panel}")
    label = metric_label(experiment, material.metric(options))
    finals[0].set_ylabel(f"final {label}")
    columns = [(by, cost) for by in holds for cost in options["costs"]]
    curves = bottom.subplots(len(panels), len(columns), sharey=True, sharex="col", squeeze=False)
    for line, panel in zip(curves, panels, strict=True):
        for axes, (by, cost) in zip(line, columns, strict=True):
            _curves(axes, material, options, found.get((panel, by), []), cost)
        line[0].set_ylabel(f"{panel}\n{label}")
    for axes, (by, _) in zip(curves[0], columns, strict=True):
        axes.set_title(f"{options['by']}: {by}", fontsize=6.5)
    for axes, (_, cost) in zip(curves[-1], columns, strict=True):
        axes.set_xlabel(COST_LABELS[cost])
    _legend(bottom, material, options, found)
    for part in (top, bottom):
        for axes in part.axes:
            sns.despine(ax=axes)
    style.label_ends(figure, labels)
    return figure


def _finals(
    axes: Axes, material: Material, options: dict[str, Any], holds: dict[str, list[Row]]
) -> list[tuple[float, str, str]]:
    """Draw final quality against the number, one line per way of holding; return the lines' labels."""
    experiment, metric = material.experiment, material.metric(options)
    styles = style.row_styles(experiment)
    key, values = axis_values(experiment, options["axis"])
    ends = []
    for index, (by, rows) in enumerate(holds.items()):
        x = np.array([values[levels(experiment, row)[options["axis"]]] for row in rows])
        means = []
        for place, row in zip(x, rows, strict=True):
            seeds, look = material.final(row, metric), styles[row.id]
            mean, half = interval(seeds)
            means.append(float(mean))
            places = place * 2 ** style.jitter(len(seeds), 0.22)
            axes.scatter(places, seeds, s=4, color=look.colour, alpha=0.35, linewidth=0, zorder=2)
            axes.errorbar(
                place, mean, yerr=None if np.isnan(half) else half, fmt="o", color=look.colour, markersize=3,
                markeredgecolor="black", markeredgewidth=0.5, elinewidth=0.9, capsize=1.5, zorder=4,
            )  # fmt: skip
        if means:
            axes.plot(x, means, color=style.GREY, linestyle=DASHES[index % len(DASHES)], linewidth=0.9, zorder=3)
            ends.append((means[-1], by, "black"))
    axes.set_xscale("log", base=2)
    ticks = sorted(set(values.values()))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    axes.minorticks_off()
    axes.set_xlabel(axis_label(options["axis"], key))
    return ends


def _curves(axes: Axes, material: Material, options: dict[str, Any], rows: list[Row], cost: str) -> None:
    metric, styles = material.metric(options), style.row_styles(material.experiment)
    for row in rows:
        style.draw_curve(axes, *material.curve(row.id, metric, cost), styles[row.id].colour, end=True)
    axes.autoscale_view()
    style.cost_axis(axes, 4 if len(options["costs"]) < 3 else 2)
    axes.set_xlim(0, max(axes.dataLim.x1, 1) * 1.03)


def _legend(
    figure: Any, material: Material, options: dict[str, Any], found: dict[tuple[str, str], list[Row]]
) -> None:
    experiment, styles = material.experiment, style.row_styles(material.experiment)
    key, values = axis_values(experiment, options["axis"])
    by_level = {levels(experiment, row)[options["axis"]]: row for rows in found.values() for row in rows}
    shown = sorted(by_level, key=lambda level: values[level])
    handles = [
        Line2D([], [], color=styles[by_level[level].id].colour, linewidth=1.6, label=f"{values[level]:g}")
        for level in shown
    ]
    figure.legend(
        handles=handles, title=axis_label(options["axis"], key), loc="outside right center", frameon=False,
        title_fontsize=6.5, handlelength=1.2,
    )  # fmt: skip


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what is swept, what is held, and on how many seeds."""
    found, experiment = _rows(material, options), material.experiment
    rows = [row for group in found.values() for row in group]
    label = metric_label(experiment, material.metric(options))
    name = axis_label(options["axis"], axis_values(experiment, options["axis"])[0])
    costs = " and ".join(COST_LABELS[cost] for cost in options["costs"])
    holds = " or ".join(dict.fromkeys(by for _, by in found))
    return (
        f"Above: final {label} against {name}, holding {holds}; small dots: single seeds (per row "
        f"{material.seeds(rows)}), large dots: their mean with its 95 % t interval. Below: the learning curves, "
        f"against {costs}; thin lines: single seeds, thick lines and bands: mean and 95 % t "
        "interval."
    )
