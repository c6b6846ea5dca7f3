"""Lines of several rows in one panel, and how many rows a panel holds: what every figure of curves shares."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

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
MOST = 10  # rows of one panel: more lines than this cannot be told apart

Group = tuple[str, list[Row]]  # the title of a panel and its rows


def groups(material: Material, wanted: Sequence[str] | None = None, most: int = MOST) -> list[Group]:
    """Return the rows of each panel: one per level of the lesser axes, then the rows written singly.

    A panel holds at most ``most`` rows; more are shared out evenly, the baseline among them in every part.
    """
    experiment = material.experiment
    for name in wanted or ():
        experiment.row(name)
    hue = hue_axis(experiment)
    found: dict[str, list[Row]] = {}
    for row in material.rows:
        if wanted is None or row.id in wanted:
            at = levels(experiment, row)
            title = "\n".join(f"{axis}: {level}" for axis, level in at.items() if axis != hue)
            found.setdefault(title if at else "further rows", []).append(row)
    if list(found) == ["further rows"]:  # no axes: nothing to be further from
        found = {"": found["further rows"]}
    return [part for title, rows in found.items() for part in _parts(material, title, rows, most)]


def _parts(material: Material, title: str, rows: list[Row], most: int) -> list[Group]:
    if len(rows) <= most:
        return [(title, rows)]
    baseline = [row for row in rows if row.id == material.experiment.baseline]
    others = [row for row in rows if row not in baseline]
    count = math.ceil(len(others) / (most - len(baseline)))
    parts = np.array_split(np.arange(len(others)), count)
    return [(title, [*baseline, *(others[index] for index in part)]) for part in parts]


def panel(axes: Axes, material: Material, rows: list[Row], metric: str, x: str) -> list[tuple[float, str, str]]:
    """Draw the rows of one panel; return where each ends (NaN where nowhere), its label and its colour."""
    experiment, styles = material.experiment, style.row_styles(material.experiment)
    others = [axis for axis in experiment.axes if axis != hue_axis(experiment)]
    published = {line.row: line.value for line in material.published(metric) if line.statement == "final"}
    curves = [material.curve(row.id, metric, x) for row in rows]
    means = [interval(values)[0] for _, values in curves]
    ends = []
    for index, (row, mean, (places, values)) in enumerate(zip(rows, means, curves, strict=True)):
        alike = [other for other, theirs in enumerate(means) if coincide(mean, theirs)]
        look = styles[row.id]
        dashes = style.interleaved(alike.index(index), len(alike)) if len(alike) > 1 else look.dashes
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            style.draw_curve(axes, places, values, look.colour, dashes)
        if row.id in published:
            axes.plot(places[-1], published[row.id], **style.PUBLISHED)
        finite = mean[np.isfinite(mean)]
        last = float(finite[-1]) if len(finite) else math.nan
        ends.append((last, row_name(experiment, row, without=others), look.colour))
    axes.autoscale_view()
    axes.set_xlim(0, max(axes.dataLim.x1, 1e-9) if np.isfinite(axes.dataLim.x1) else 1)
    axes.margins(x=0)
    if all(math.isnan(end) for end, _, _ in ends):
        axes.set_ylim(0, 1)
        axes.text(
            0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=style.GREY,
        )  # fmt: skip
    return ends


def coincide(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two means, ``[evaluations]``, lie so close everywhere that one line would hide the other."""
    if one is other:
        return True
    both = np.isfinite(one) & np.isfinite(other) if one.shape == other.shape else np.zeros(1, dtype=bool)
    if not both.any() or (np.isfinite(one) != np.isfinite(other)).any():
        return False
    one, other = one[both], other[both]
    height = max(np.ptp(one), np.ptp(other), 1e-12)
    return bool(np.abs(one - other).max() < COINCIDENT * height)


def columns(cells: int) -> int:
    """Return two or three columns, whichever leaves fewer empty places; one for a single panel.

    >>> [columns(cells) for cells in (1, 2, 3, 4, 5, 12)]
    [1, 2, 3, 2, 3, 3]
    """
    return cells if cells <= 3 else min((3, 2), key=lambda columns: -cells % columns)


def panels(
    count: int, columns: int, height: float, several: float, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure of the page's width with ``count`` panels in ``columns`` columns, and the panels.

    ``height``: inches of a single line of panels; ``several``: of each where there are more.
    """
    lines = math.ceil(count / columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(style.DOUBLE, (height if lines == 1 else several) * lines + 0.35), squeeze=False,
        layout="constrained", sharex=sharex, sharey=sharey,
    )  # fmt: skip
    for axes in grid.flat[count:]:
        axes.remove()
    return figure, list(grid.flat[:count])


def strip(
    material: Material, shown: Sequence[Group], cells: Sequence[tuple[str, str]], headings: Sequence[str]
) -> Figure:
    """Draw a line of panels per group and a column per (metric, measure of cost); label the lines on the right.

    ``headings`` stand above the columns. Panels whose axes have one name share their heights.
    """
    names = [metric_label(material.experiment, metric) for metric, _ in cells]
    height = (1.9 if len(shown) == 1 else 1.55) * len(shown) + 0.4
    figure, grid = plt.subplots(
        len(shown), len(cells), figsize=(style.DOUBLE, height), squeeze=False, layout="constrained",
        sharex="col",
    )  # fmt: skip
    labels = []
    first: dict[str, Axes] = {}
    for line, (title, rows) in zip(grid, shown, strict=True):
        for index, (axes, (metric, x)) in enumerate(zip(line, cells, strict=True)):
            if names[index] in first:
                axes.sharey(first[names[index]])
            first.setdefault(names[index], axes)
            ends = panel(axes, material, rows, metric, x)
            style.cost_axis(axes, 4 if len(cells) < 4 else 2)
            if names[index] in names[:index]:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel(names[index])
        labels.append((line[-1], ends))
        line[0].set_title(title, loc="left", fontsize=6.5)
    for axes, heading in zip(grid[0], headings, strict=True):
        axes.set_title(f"{heading}\n" if heading and shown[0][0] else heading)
    for axes, (_, x) in zip(grid[-1], cells, strict=True):
        axes.set_xlabel(COST_LABELS[x])
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def seeds(material: Material, shown: Sequence[Group]) -> str:
    """Say how many seeds the rows of the groups stand on."""
    return material.seeds([row for _, rows in shown for row in rows])


def repeated(shown: Sequence[Group]) -> str:
    """Say that rows are spread over panels, where they are."""
    titles = [title for title, _ in shown]
    parted = len(set(titles)) < len(titles)
    return " The rows are spread over several panels, the baseline in each." if parted else ""


DRAWN = "thin lines: single seeds, thick lines: their mean, with its 95 % t interval as a band"

__all__ = ["DRAWN", "Group", "coincide", "columns", "groups", "panel", "panels", "repeated", "seeds", "strip"]
