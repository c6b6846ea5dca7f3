"""A grid of cells: one metric's final mean over two axes, one panel per level of a third."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import (
    Material,
    axis_label,
    axis_values,
    interval,
    levels,
    metric_label,
)
from grpo_ablate.spec.resolve import Row


def metrics(material: Material, options: dict[str, Any]) -> list[str]:
    """Return the metrics of the figure, one line of panels each."""
    chosen = options["metric"]
    names = chosen if isinstance(chosen, list) else [chosen]
    return [material.metric({"metric": name}) for name in names]


def _cells(material: Material, options: dict[str, Any]) -> dict[str, dict[tuple[str, str], Row]]:
    """Return per panel level the row at each (level of ``by``, level of ``x``)."""
    found: dict[str, dict[tuple[str, str], Row]] = {}
    for row in material.rows:
        at = levels(material.experiment, row)
        if at:
            found.setdefault(at[options["panel"]], {})[at[options["by"]], at[options["x"]]] = row
    return found


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a heat map per metric and panel, each cell with its mean and the half width of the interval."""
    experiment, cells = material.experiment, _cells(material, options)
    names, panels = metrics(material, options), [p for p in experiment.axes[options["panel"]] if p in cells]
    height = 0.36 * len(experiment.axes[options["by"]]) + 0.35
    figure, grid = plt.subplots(
        len(names), len(panels), figsize=(style.DOUBLE, height * len(names) + 0.35), squeeze=False,
        sharex=True, sharey=True, layout="constrained",
    )  # fmt: skip
    key, _ = axis_values(experiment, options["x"])
    for line, metric in zip(grid, names, strict=True):
        means = {row.id: float(material.final(row, metric).mean()) for row in material.rows}
        for axes, panel in zip(line, panels, strict=True):
            _heat(axes, material, options, cells[panel], metric, (min(means.values()), max(means.values())))
        bar = figure.colorbar(line[-1].collections[0], ax=list(line), aspect=12, pad=0.015)
        bar.set_label(f"final {metric_label(experiment, metric)}")
        bar.outline.set_visible(False)
        line[0].set_ylabel(axis_label(options["by"], None))
    for axes, panel in zip(grid[0], panels, strict=True):
        axes.set_title(f"{options['panel']}: {panel}")
    for axes in grid[-1]:
        axes.set_xlabel(axis_label(options["x"], key))
    return figure


def _heat(
    axes: Axes,
    material: Material,
    options: dict[str, Any],
    cells: dict[tuple[str, str], Row],
    metric: str,
    limits: tuple[float, float],
) -> None:
    experiment = material.experiment
    lines, columns = experiment.axes[options["by"]], experiment.axes[options["x"]]
    means = np.full((len(lines), len(columns)), np.nan)
    notes = np.full(means.shape, "", dtype=object)
    for (by, x), row in cells.items():
        at = lines.index(by), columns.index(x)
        mean, half = interval(material.final(row, metric))
        means[at] = mean
        notes[at] = f"{mean:.4f}" + ("" if np.isnan(half) else f"\n\N{PLUS-MINUS SIGN}{half:.4f}")
    key, values = axis_values(experiment, options["x"])
    sns.heatmap(
        means, ax=axes, annot=notes, fmt="", cmap="cividis", vmin=limits[0], vmax=limits[1], cbar=False,
        linewidths=0.8, linecolor="white", annot_kws={"fontsize": 5.5, "linespacing": 1.0},
        xticklabels=[f"{values[level]:g}" if key else level for level in columns], yticklabels=list(lines),
    )  # fmt: skip
    axes.tick_params(length=0)
    axes.set_yticklabels(lines, rotation=0)
    leads = _leads(material)
    for text in axes.texts:
        across, down = text.get_position()
        twin = cells.get((lines[int(down)], columns[int(across)]))
        if twin is not None and twin.id not in leads:
            text.set_fontstyle("italic")
            text.set_alpha(0.65)


def _leads(material: Material) -> set[str]:
    """Return the rows that are the first of their hash: the others are their twins and trained once with them."""
    return set({row.hash: row.id for row in reversed(material.rows)}.values())


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the cells show."""
    labels = " and ".join(metric_label(material.experiment, name) for name in metrics(material, options))
    rows = [row for cells in _cells(material, options).values() for row in cells.values()]
    return (
        f"Final {labels} per cell: mean over seeds ({material.seeds(rows)}) and, below it, the half width of its "
        "95 % t interval. Pale italics: a twin, whose switches come to the same training as another cell's."
    )
