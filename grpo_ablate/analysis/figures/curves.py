"""Learning curves: every seed behind the mean and its interval, one panel per level of the lesser axes."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import (
    COST_LABELS,
    Material,
    hue_axis,
    interval,
    levels,
    metric_label,
    row_name,
)
from grpo_ablate.spec.resolve import Row

COINCIDENT = 0.004  # of the height: two means closer than this everywhere would hide one another


def panels(material: Material, options: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each panel by its title: one per level of the lesser axes, one for single rows."""
    experiment = material.experiment
    wanted = options["rows"] or [row.id for row in experiment.rows]
    for name in wanted:
        experiment.row(name)
    hue = hue_axis(experiment)
    found: dict[str, list[Row]] = {}
    for row in material.rows:
        if row.id in wanted:
            at = levels(experiment, row)
            title = "\n".join(f"{axis}: {level}" for axis, level in at.items() if axis != hue)
            title = title if at else "further rows"
            found.setdefault(title, []).append(row)
    return found


def costs(material: Material, options: dict[str, Any]) -> list[str]:
    """Return the measures of cost that the figure's horizontal axes show."""
    return options["x"] if isinstance(options["x"], list) else [options["x"]]


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw the curves; a panel for each crossing of the lesser axes and each measure of cost."""
    metric, chosen, groups = material.metric(options), costs(material, options), panels(material, options)
    cells = [(title, rows, x) for title, rows in groups.items() for x in chosen]
    columns = len(chosen) if len(chosen) > 1 else _columns(len(cells))
    lines = math.ceil(len(cells) / columns)
    height = (2.2 if lines == 1 else 1.65) * lines + 0.35
    figure, grid = plt.subplots(
        lines, columns, figsize=(style.DOUBLE, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(cells) :]:
        axes.remove()
    labels = []
    for index, (title, rows, x) in enumerate(cells):
        axes = grid.flat[index]
        labels.append((axes, _panel(axes, material, rows, metric, x)))
        axes.set_title(title)
        style.cost_axis(axes)
        if index + columns >= len(cells):
            axes.set_xlabel(COST_LABELS[x])
        if index % columns == 0:
            axes.set_ylabel(metric_label(material.experiment, metric))
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def _columns(cells: int) -> int:
    """Return two or three columns, whichever leaves fewer empty places; one for a single panel.

    >>> [_columns(cells) for cells in (1, 2, 3, 4, 5, 12)]
    [1, 2, 3, 2, 3, 3]
    """
    return cells if cells <= 3 else min((3, 2), key=lambda columns: -cells % columns)


def _panel(axes: Axes, material: Material, rows: list[Row], metric: str, x: str) -> list[tuple[float, str, str]]:
    """Draw the rows of one panel; return where each ends, its label and its colour."""
    experiment, styles = material.experiment, style.row_styles(material.experiment)
    others = [axis for axis in experiment.axes if axis != hue_axis(experiment)]
    published = {line.row: line.value for line in material.published(metric) if line.statement == "final"}
    curves = [material.curve(row.id, metric, x) for row in rows]
    means = [interval(values)[0] for _, values in curves]
    ends = []
    for index, (row, mean, (places, values)) in enumerate(zip(rows, means, curves, strict=True)):
        alike = [other for other, theirs in enumerate(means) if _coincide(mean, theirs)]
        dashes = style.interleaved(alike.index(index), len(alike))
        style.draw_curve(axes, places, values, styles[row.id].colour, dashes)
        if row.id in published:
            axes.plot(places[-1], published[row.id], **style.PUBLISHED)
        ends.append((float(mean[-1]), row_name(experiment, row, without=others), styles[row.id].colour))
    axes.autoscale_view()
    axes.set_xlim(0, max(axes.dataLim.x1, 1))
    axes.margins(x=0)
    return ends


def _coincide(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    height = max(np.ptp(one), np.ptp(other), 1e-12)
    return bool(np.abs(one - other).max() < COINCIDENT * height)


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the curves show."""
    metric, experiment = material.metric(options), material.experiment
    shown = [row for rows in panels(material, options).values() for row in rows]
    against = " and ".join(COST_LABELS[x] for x in costs(material, options))
    theirs = " Open diamonds: the published final values." if material.published(metric) else ""
    return (
        f"{metric_label(experiment, metric).capitalize()} during training against {against}. Thin lines: single "
        f"seeds (per row {material.seeds(shown)}); thick lines: their mean, with its 95 % t interval as a band. "
        f"Dashes of several colours are lines that coincide.{theirs}"
    )
