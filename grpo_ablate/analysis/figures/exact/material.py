"""What a figure of an exact experiment is drawn from: the experiment and its table, and the looks they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.ticker
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from grpo_ablate.analysis.figures import style
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.exact_files import ExactExperiment, ExactRow

SIZE = "sampling.group_size"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = style.PALETTE[:6]
# (baseline, scale) -> colour: an advantage looks alike in every figure.
ADVANTAGES = {
    ("mean", "group-std"): BLUE,
    ("mean", "none"): VERMILLION,
    ("leave-one-out", "none"): GREEN,
    ("none", "none"): "#000000",
}
ROUNDING = 1e-12  # a number that is 0 but for rounding


@dataclass(frozen=True)
class ExactMaterial:
    """An exact experiment and its table, one line per row and combination of varied values."""

    experiment: ExactExperiment
    table: pd.DataFrame

    def need(self, kind: str, *columns: str) -> None:
        """Refuse a table that lacks what a kind of figure draws.

        Raises:
            UserError: a column is missing.
        """
        for column in columns:
            if column not in self.table.columns:
                raise UserError(
                    f"{self.experiment.path}: figures: {kind} draws the column '{column}', which the table lacks; "
                    f"{nearest(column, self.table.columns)}"
                )

    def values(self, column: str) -> list[float]:
        """The values of a varied column, ascending."""
        return sorted(self.table[column].unique().tolist())

    def lines(self, row: ExactRow, held: Mapping[str, float] | None = None) -> pd.DataFrame:
        """The lines of a row at which other varied columns have the given values."""
        chosen = self.table["row"] == row.id
        for column, value in (held or {}).items():
            chosen &= self.table[column] == value
        return self.table[chosen]

    def curve(
        self, row: ExactRow, x: str, y: str, held: Mapping[str, float] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return two columns of a row as arrays, ``[points]`` each, in ascending order of the first."""
        lines = self.lines(row, held).sort_values(x, kind="stable")
        return lines[x].to_numpy(dtype=np.float64), lines[y].to_numpy(dtype=np.float64)

    def told(self, words: str) -> str:
        """Return a caption: these words, then what is exact and what is assumed."""
        return f"{words} Exact: {_start(self.experiment.exact)} Assumed: {_start(self.experiment.assumed)}"


def load(experiment: ExactExperiment, results: Path) -> ExactMaterial:
    """Read the table of an exact experiment.

    Raises:
        UserError: the table is missing, or is none of this experiment.
    """
    path = results / "tables" / f"{experiment.name}.csv"
    if not path.exists():
        raise UserError(f"{path}: the table is missing; make it with: grpo-ablate exact-table {experiment.path}")
    try:
        table = pd.read_csv(path)
    except ValueError as error:
        raise UserError(f"{path}: is no table ({error}).") from None
    missing = [row.id for row in experiment.rows if "row" not in table or row.id not in set(table["row"])]
    if missing:
        raise UserError(
            f"{path}: the table has no line of row '{missing[0]}'; make it anew with: "
            f"grpo-ablate exact-table {experiment.path}"
        )
    return ExactMaterial(experiment, table)


def colour(row: ExactRow) -> str:
    """Return the colour of a row's advantage; of one without a colour of its own, purple."""
    return ADVANTAGES.get((row.switches.advantage.baseline, row.switches.advantage.scale), PURPLE)


def shades(count: int) -> list[str]:
    """Return colours for an ordered number, dark to light, none too pale for a line."""
    return list(sns.color_palette("viridis", count + 1).as_hex()[:-1])


def size_axis(axes: Axes, sizes: list[float]) -> None:
    """Make the horizontal axis one of group sizes: doubling is a step."""
    axes.set_xscale("log", base=2)
    ticks = [size for size in sizes if np.log2(size).is_integer()]
    axes.set_xticks(ticks, [f"{size:g}" for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("group size $G$")


def plain_log(axis: matplotlib.axis.Axis, *ticks: float) -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def success_axis(axes: Axes) -> None:
    """Make the horizontal axis one of success probabilities."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
    axes.set_xlabel("success probability $p$")


def _start(sentence: str) -> str:
    """Return a sentence to stand after a colon."""
    text = " ".join(sentence.split())
    return text[0].lower() + text[1:] if not text[1:2].isupper() else text
