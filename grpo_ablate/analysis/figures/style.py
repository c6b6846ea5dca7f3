"""How figures look and are saved: sizes, fonts, one colour per row, direct labels, stable bytes."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator

from grpo_ablate.analysis.figures.material import axis_values, hue_axis, interval, levels
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.spec.resolve import Experiment

SINGLE, DOUBLE = 3.3, 6.8  # inches: one column and the width of the page
PNG_DPI = 180  # sharp on a screen of twice the usual density, light enough for a README
GREY, PALE = "#666666", "#DDDDDD"
# Okabe and Ito's palette without its yellow, which is too pale for lines on white, then Tol's "muted".
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
    "#332288", "#999933", "#882255", "#44AA99", "#AA4499", "#6699CC", "#117733",
)  # fmt: skip
# The mark of a published value: an open diamond, drawn over everything else.
PUBLISHED: dict[str, Any] = {
    "marker": "D", "markersize": 4.0, "markerfacecolor": "none", "markeredgecolor": "black",
    "markeredgewidth": 0.8, "linestyle": "none", "zorder": 5, "clip_on": False,
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P")
Dashes = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dashes, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (4, 1.2, 1.2, 1.2)))

_RC = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same everywhere
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.1,
    "axes.formatter.useoffset": False,
    "mathtext.fontset": "dejavusans",
    "figure.dpi": 100,
    "pdf.fonttype": 42,
    "pdf.compression": 9,
}


@contextmanager
def theme() -> Iterator[None]:
    """Set seaborn's ticks style with this project's sizes for what is drawn inside, whatever a user's own."""
    matplotlib.use("Agg")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        sns.set_theme(context="paper", style="ticks", rc=_RC)
        try:
            yield
        finally:
            plt.close("all")


def save(figure: Figure, stem: Path, formats: Sequence[str], caption: str) -> None:
    """Write a figure in each format, complete or not at all; equal figures give equal bytes.

    No date and no version is written; the caption goes into the file's metadata.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, the same in every format
    metadata: dict[str, dict[str, str | None]] = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": "grpo-ablate", "Subject": caption},
        "png": {"Software": "grpo-ablate", "Description": caption},
    }
    for suffix in formats:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=PNG_DPI if suffix == "png" else 300, metadata=metadata[suffix])
        write_whole(stem.with_name(f"{stem.name}.{suffix}"), buffer.getvalue())


@dataclass(frozen=True)
class RowStyle:
    """How one row looks in every figure of its experiment."""

    colour: str
    marker: str
    dashes: Dashes = "-"


def row_styles(experiment: Experiment) -> dict[str, RowStyle]:
    """Return the look of every row, the same in all figures of an experiment, whichever rows a figure shows.

    Crossed rows take their colour from the axis with the most levels (shades when it moves a number) and their
    marker from the other axes; rows written singly take the colours that are left, and once those are spent, the
    same colours again with another marker and other dashes.
    """
    axis = hue_axis(experiment)
    palette: dict[str, str] = {}
    if axis is not None:
        names = experiment.axes[axis]
        shades = axis_values(experiment, axis)[0] is not None and not _mixes_transforms(experiment, axis)
        shades = shades or len(names) > len(PALETTE)
        colours = sns.color_palette("viridis", len(names) + 1).as_hex()[:-1] if shades else PALETTE
        palette = dict(zip(names, colours, strict=False))
    free = [colour for colour in PALETTE if colour not in palette.values()] or list(PALETTE)
    styles: dict[str, RowStyle] = {}
    others: list[tuple[str, ...]] = []
    singles = [row.id for row in experiment.rows if axis is None or not levels(experiment, row)]
    kept = singles.index(experiment.baseline) if experiment.baseline in singles else None
    looks = dict(zip(singles, _singly(free, kept), strict=False))
    for row in experiment.rows:
        found = levels(experiment, row)
        if found and axis is not None:
            rest = tuple(level for other, level in found.items() if other != axis)
            others += [rest] if rest not in others else []
            styles[row.id] = RowStyle(palette[found[axis]], MARKERS[others.index(rest) % len(MARKERS)])
        else:
            styles[row.id] = looks[row.id]
    return styles


def _singly(colours: Sequence[str], kept: int | None) -> Iterator[RowStyle]:
    """Yield looks in which colours come again with other marks and dashes; that of the place ``kept`` never does.

    The baseline's is kept: where rows are spread over panels, it stands beside any of them.
    """
    for again in itertools.count():
        look = MARKERS[again % len(MARKERS)], DASHES[again % len(DASHES)]
        for place, colour in enumerate(colours):
            if again == 0 or place != kept:
                yield RowStyle(colour, *look)


def _mixes_transforms(experiment: Experiment, axis: str) -> bool:
    return len({row.spec.reward.transform for row in experiment.rows if levels(experiment, row).get(axis)}) > 1


def interleaved(index: int, count: int, length: float = 3.0) -> Dashes:
    """Return the dashes of one of ``count`` coincident lines, drawn in turn, that leave each of them visible.

    >>> interleaved(0, 1), interleaved(0, 3), interleaved(2, 3)
    ('-', '-', (3.0, (3.0, 6.0)))
    """
    return "-" if index == 0 else ((index - 1) * length, (length, (count - 1) * length))


def cost_axis(axes: Axes, most: int = 4) -> None:
    """Write few and readable numbers along a horizontal axis of updates, rollouts, tokens or seconds."""
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 4, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:g}")


def draw_curve(
    axes: Axes, x: np.ndarray, values: np.ndarray, colour: str, dashes: Dashes = "-", *, end: bool = False
) -> None:
    """Draw every seed as a thin line behind the mean with its 95 % t interval; ``values [seeds, evaluations]``.

    ``end`` marks where the mean ends, for curves of unequal length. A curve of one point is that point.
    """
    mean, half = interval(values)
    known = np.flatnonzero(np.isfinite(mean))
    seeds = LineCollection(
        [np.column_stack([x, line]) for line in values],
        colors=colour,
        linewidths=0.35,
        alpha=0.22,
        zorder=1,
        rasterized=True,  # many lines: a vector file would weigh megabytes
    )
    axes.add_collection(seeds)
    if values.shape[0] > 1:
        axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.3, linewidth=0, zorder=2)
    axes.plot(
        x, mean, color=colour, zorder=3, linestyle=dashes, solid_capstyle="butt", dash_capstyle="butt",
        marker="o" if end or len(known) == 1 else None, markersize=2.8, markevery=known[-1:].tolist(),
    )  # fmt: skip


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move places apart until neighbours are ``least`` apart, within [low, high], keeping their order.

    >>> spread([1.0, 1.0, 5.0], 1.0, 0.0, 10.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    blocks: list[list[float]] = []  # [centre, members]
    for i in order:
        blocks.append([float(places[i]), 1.0])
        while True:
            centre, size = blocks[-1]
            reach = (size - 1) / 2 * least
            blocks[-1][0] = centre = min(max(centre, low + reach), high - reach)
            if len(blocks) < 2 or centre - reach - least >= blocks[-2][0] + (blocks[-2][1] - 1) / 2 * least:
                break
            before, count = blocks[-2]
            blocks[-2:] = [[(before * count + centre * size) / (count + size), count + size]]
    moved = [c + (j - (n - 1) / 2) * least for c, n in blocks for j in range(int(n))]
    result = [0.0] * len(places)
    for i, place in zip(order, moved, strict=True):
        result[i] = place
    return result


Ends = Sequence[tuple[float, str, str]]  # where a line ends, its label, its colour


def label_ends(figure: Figure, labels: Sequence[tuple[Axes, Ends]]) -> None:
    """Write beside the right end of each line its label, in its colour, none over another.

    Labels need room on the right, which settles the panels' size, which settles how far apart labels must be:
    lay the figure out once with labels anywhere, keep that layout, then place them.
    """
    first = [note for axes, ends in labels for note in _annotate(axes, ends)]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for note in first:
        note.remove()
    for axes, ends in labels:
        _annotate(axes, ends)


def _annotate(axes: Axes, ends: Ends, size: float = 6.5) -> list[Annotation]:
    least = min(axes.get_ylim())
    ends = [(least if np.isnan(y) else y, text, colour) for y, text, colour in ends]  # a line that is not there
    scaled = axes.yaxis.get_transform().transform  # a logarithmic axis spreads its labels by their logarithms
    low, high = (float(limit) for limit in scaled(np.array(axes.get_ylim())))
    heights = [float(height) for height in scaled(np.array([y for y, _, _ in ends], dtype=np.float64))]
    points = axes.get_window_extent().height * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    places = spread(heights, (high - low) * size * 1.25 / points, low, high)
    right = axes.get_xlim()[1]
    return [
        axes.annotate(
            f" {text}",  # the space parts the line from the letters
            xy=(right, y),
            xytext=(10, (place - height) / (high - low) * points),
            textcoords="offset points",
            color=colour,
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops={  # a plain line: without patch and shrinking nothing is clipped, which is slow
                "arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "patchA": None,
                "relpos": (0, 0.5),
            },
        )
        for (y, text, colour), height, place in zip(ends, heights, places, strict=True)
    ]  # fmt: skip


def jitter(count: int, width: float) -> np.ndarray:
    """Return places in [-width, width] that look scattered and depend on nothing but their rank.

    >>> jitter(4, 1.0).round(2).tolist()
    [0.0, -0.5, 0.5, -0.75]
    """
    digits = [int(f"{i + 1:b}"[::-1], 2) / 2 ** (i + 1).bit_length() for i in range(count)]
    return (2 * np.array(digits) - 1) * width
