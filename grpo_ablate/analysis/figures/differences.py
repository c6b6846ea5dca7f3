"""Every row's paired difference to the baseline: mean, interval, each seed, and the margin that is too small."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.comparison import Difference
from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import Material, metric_label, row_name

FEWEST = 1e-4  # a smallest width of the linear stretch, where rows do not differ at all
STRETCH = 8  # a difference of so many margins makes the axis logarithmic beyond them


def compared(material: Material) -> list[tuple[str, Difference, style.RowStyle]]:
    """Return name, differences and look of every row that was compared, and of the A/A control at the end."""
    experiment, comparison = material.experiment, material.comparison
    styles = style.row_styles(experiment)
    found = [
        (row_name(experiment, experiment.row(result.row)), result.difference, styles[result.row])
        for result in comparison.rows
        if result.difference is not None
    ]
    control = comparison.noise_floor
    return [*found, ("A/A", control, style.RowStyle(style.GREY, "o"))] if control else found


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a line per row: its seeds, their mean and its 95 % t interval; on the right the share of seeds won."""
    found, margin = compared(material), material.comparison.margin
    figure, axes = plt.subplots(figsize=(style.SINGLE, 0.165 * max(len(found), 2) + 0.62), layout="constrained")
    if math.isfinite(margin):
        axes.axvspan(-margin, margin, color=style.PALE, alpha=0.7, linewidth=0, zorder=0)
    axes.axvline(0, color=style.GREY, linewidth=0.6, zorder=1)
    for place, (_, difference, look) in enumerate(found):
        dots(axes, place, difference, look)
        axes.annotate(
            won(difference), (1, place), xycoords=("axes fraction", "data"), xytext=(3, 0),
            textcoords="offset points", ha="left", va="center", fontsize=6, color=style.GREY,
            annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(range(len(found)), [name for name, _, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("row minus baseline")
    axes.set_title("won", loc="right", fontsize=6, color=style.GREY, x=1.0, ha="left", pad=2)
    stretch(axes, (value for _, d, _ in found for value in (*d.values, d.low, d.high)), margin)
    sns.despine(figure)
    return figure


def dots(axes: Axes, place: float, difference: Difference, look: style.RowStyle, size: float = 1.0) -> None:
    """Draw the seeds of one line in the row's colour, and mean and interval over them in black."""
    values = np.array([value for value in difference.values if math.isfinite(value)])
    axes.scatter(
        values, place + style.jitter(len(values), 0.3), s=6 * size, marker=look.marker, color=look.colour,
        alpha=0.6, linewidth=0, zorder=2, clip_on=False,
    )  # fmt: skip
    half = difference.high - difference.mean
    axes.errorbar(
        difference.mean, place, xerr=half if math.isfinite(half) else None, fmt="o", color="black",
        markersize=2.6 * size, capsize=1.6 * size, elinewidth=0.9 * size, capthick=0.8 * size, zorder=3,
    )  # fmt: skip


def won(difference: Difference) -> str:
    """Return in how many seeds the row is above the baseline, a tie a half; "=" where all tie.

    >>> won(Difference((0, 1), (0.1, -0.2), *[0.0] * 6, won=0.5, ties=0, detectable=0.0))
    '1/2'
    """
    count = len(difference.seeds)
    if difference.ties == count:
        return "="
    return f"{difference.won * count:g}/{count}"


def stretch(axes: Axes, values: Iterable[float], margin: float) -> None:
    """Let an axis of differences be linear about zero and logarithmic where one row lies far from the others."""
    found = np.abs([value for value in values if math.isfinite(value)])
    widest = float(found.max(initial=0.0))
    linear = margin if math.isfinite(margin) and margin > 0 else float(np.median(found)) if len(found) else 0.0
    linear = max(linear, FEWEST)
    if widest > STRETCH * linear:
        axes.set_xscale("symlog", linthresh=linear, linscale=0.9)
        beyond = [10.0**power for power in range(-4, 3) if 2 * linear < 10.0**power <= widest * 1.2]
        axes.set_xticks([*(-value for value in reversed(beyond)), -linear, 0, linear, *beyond])
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what is subtracted from what, on how many seeds, and what the band is."""
    comparison, experiment = material.comparison, material.experiment
    counts = [len(difference.seeds) for _, difference, _ in compared(material)]
    least, most = min(counts, default=0), max(counts, default=0)
    band = f" Grey: the margin of {comparison.margin:g}." if math.isfinite(comparison.margin) else ""
    label = metric_label(experiment, experiment.metric).capitalize()
    baseline = experiment.row(comparison.baseline).label
    pairs = most if least == most else f"{least} to {most}"
    return (
        f"{label}, row minus baseline ({baseline}), seed by seed (n = {pairs} pairs per row). Coloured: single "
        "seeds; black: mean and 95 % t interval; right: seeds above the baseline (=: equal in all). A/A: the "
        f"baseline under other random numbers.{band}"
    )
