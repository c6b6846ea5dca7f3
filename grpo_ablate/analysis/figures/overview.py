"""All switches in one picture: the rows of every experiment that differ most from their baseline, by effect.

The one figure that no single experiment owns: it is drawn from all comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.comparison import Comparison, RowResult, read_comparison
from grpo_ablate.analysis.figures import FORMATS, style
from grpo_ablate.analysis.figures.differences import dots
from grpo_ablate.analysis.figures.material import row_name
from grpo_ablate.spec.resolve import Experiment

TALLEST = 7.9  # inches: a page, less its caption
LINE, TITLE = 0.118, 0.25  # inches of a row, and of what an experiment takes besides
MOST, LEAST = 8, 2  # rows of an experiment
LINEAR = 0.02  # of reward: differences are drawn linearly within, logarithmically beyond


@dataclass(frozen=True)
class Block:
    """One experiment: its comparison and the rows shown, the largest effect first."""

    experiment: Experiment
    comparison: Comparison
    rows: tuple[RowResult, ...]

    @property
    def height(self) -> float:
        """Inches that the block takes."""
        return LINE * len(self.rows) + TITLE


def blocks(experiments: Sequence[Experiment], results: Path) -> list[Block]:
    """Return the experiments that have a row beside the baseline, the one with the largest effect first.

    Of each, as many rows as let all of them stand on one page.

    Raises:
        UserError: a comparison is missing.
    """
    found = [
        (experiment, read_comparison(results / "tables" / f"{experiment.name}-comparison.json"))
        for experiment in experiments
    ]
    every = [Block(experiment, comparison, by_effect(comparison)) for experiment, comparison in found]
    every = [block for block in every if block.rows]
    every.sort(key=lambda block: (-_effect(block.rows[0]), block.experiment.name))
    for most in range(MOST, LEAST - 1, -1):
        chosen = [Block(block.experiment, block.comparison, block.rows[:most]) for block in every]
        if max((sum(b.height for b in column) for column in columns(chosen)), default=0) <= TALLEST:
            break
    return chosen


def by_effect(comparison: Comparison) -> tuple[RowResult, ...]:
    """Return the rows that train something of their own beside the baseline, the largest effect first."""
    rows = [row for row in comparison.rows if row.difference is not None and row.twin_of is None]
    return tuple(sorted(rows, key=lambda row: (-_effect(row), row.row)))


def _effect(row: RowResult) -> float:
    mean = math.nan if row.difference is None else row.difference.mean
    return abs(mean) if math.isfinite(mean) else math.inf  # a row that diverged on every seed


def columns(shown: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks in two columns of about one height, each in the order given."""
    half = sum(block.height for block in shown) / 2
    left: list[Block] = []
    for block in shown:
        if sum(other.height for other in left) + block.height / 2 > half:
            break
        left.append(block)
    return [column for column in (left, list(shown[len(left) :])) if column]


def draw(shown: Sequence[Block]) -> Figure:
    """Draw a block of lines per experiment, in two columns, all on one scale."""
    found = columns(shown)
    tallest = max(sum(block.height for block in column) for column in found)
    figure = plt.figure(figsize=(style.DOUBLE, tallest + 0.35), layout="constrained")
    parts = figure.subfigures(1, len(found), squeeze=False)[0]
    reach = max(
        (abs(v) for b in shown for r in b.rows if r.difference for v in r.difference.values if math.isfinite(v)),
        default=LINEAR,
    )
    for part, column in zip(parts, found, strict=True):
        spare = tallest - sum(block.height for block in column)
        grid = part.subplots(
            len(column) + (spare > LINE), 1, squeeze=False,
            height_ratios=[block.height for block in column] + ([spare] if spare > LINE else []),
        )[:, 0]  # fmt: skip
        for axes in grid[len(column) :]:
            axes.set_visible(False)
        for axes, block in zip(grid, column, strict=False):
            _block(axes, block, reach)
            axes.tick_params(labelbottom=axes is grid[len(column) - 1])
        grid[len(column) - 1].set_xlabel("row minus baseline", fontsize=6)
    return figure


def _block(axes: Axes, block: Block, reach: float) -> None:
    experiment, margin = block.experiment, block.comparison.margin
    styles = style.row_styles(experiment)
    if math.isfinite(margin):
        axes.axvspan(-margin, margin, color=style.PALE, alpha=0.7, linewidth=0, zorder=0)
    axes.axvline(0, color=style.GREY, linewidth=0.6, zorder=1)
    for place, row in enumerate(block.rows):
        if row.difference is not None:
            dots(axes, place, row.difference, styles[row.row], 0.75)
    axes.set_yticks(
        range(len(block.rows)), [row_name(experiment, experiment.row(row.row)) for row in block.rows], fontsize=5.5
    )
    axes.set_ylim(len(block.rows) - 0.5, -0.5)
    hidden = sum(row.difference is not None for row in block.comparison.rows) - len(block.rows)
    more = f", {hidden} more" if hidden else ""
    name, task = experiment.name, experiment.rows[0].spec.task.name
    axes.set_title(f"{name}{'' if task in name else f' ({task})'}{more}", fontsize=6, loc="left", pad=2)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.9)
    axes.set_xlim(-reach * 1.2, reach * 1.2)
    axes.set_xticks([x for x in (-1, -0.1, -LINEAR, 0, LINEAR, 0.1, 1) if abs(x) <= reach * 1.2])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    axes.tick_params(axis="both", length=1.5, labelsize=5.5)
    sns.despine(ax=axes)


def caption(shown: Sequence[Block]) -> str:
    """Say what is shown of each experiment, and on how many seeds."""
    counts = [len(row.difference.seeds) for block in shown for row in block.rows if row.difference]
    least, most = min(counts, default=0), max(counts, default=0)
    n = f"n = {most}" if least == most else f"n = {least} to {most}"
    return (
        "All switches: per experiment the rows whose score differs most from its baseline's, the largest effect "
        f"first. Coloured: paired differences of single seeds ({n} per row); black: their mean with its 95 % t "
        "interval, not corrected for several rows; grey bands: the margin that does not matter. The scale is "
        f"linear within {LINEAR:g} of zero and logarithmic beyond."
    )


def write(experiments: Sequence[Experiment], results: Path, name: str = "overview") -> list[Path]:
    """Write the figure as ``figures/<name>.{pdf,png}`` below ``results``; equal comparisons give equal bytes."""
    shown = blocks(experiments, results)
    stem = results / "figures" / name
    with style.theme():
        style.save(draw(shown), stem, FORMATS, caption(shown))
    return [stem.with_name(f"{name}.{suffix}") for suffix in FORMATS]
