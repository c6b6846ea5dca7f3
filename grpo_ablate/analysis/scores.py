"""One score per row and seed: the metric's mean over the last evaluations, and its mean height over rollouts.

A run failed when its parameters or its score ceased to be finite, or when it collapsed: when a reward or an
accuracy ends below half of what the untouched policy had. A failed run scores the worst that the experiment
knows of a reward or an accuracy: the lowest value at any evaluation of any of its rows. It is never left out,
since leaving out the runs that a switch ruined would flatter the switch. Only of metrics without a worst end
(KL, entropy, lengths, everything of training) failed runs are left out, and every table says so.

A metric without a number at any evaluation of a run that the record does not call diverged does not apply to the
run: it was not measured, and the run has not failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_ablate.analysis.statistics import Numbers, area

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row

COLLAPSED = 0.5  # of the initial value
QUALITY = re.compile(r"eval/(reward|accuracy|greedy_accuracy|pass_at_)")  # metrics of which a share can be lost
COUNTERS = ("rollouts", "tokens", "updates", "seconds")


@dataclass(frozen=True)
class Scored:
    """The runs of one row on one metric, ``[seeds]`` each, seeds ascending; NaN where it was not measured."""

    seeds: NDArray[np.int64]
    final: Numbers
    area: Numbers
    first: Numbers  # of the untrained policy
    unmeasured: NDArray[np.bool_]  # no number at any evaluation, and not since the run diverged

    def paired(self, other: Scored, which: str = "final") -> tuple[NDArray[np.int64], Numbers, Numbers]:
        """Return the seeds that both rows have measured, and the two scores on them."""
        seeds, own, others = np.intersect1d(self.seeds, other.seeds, return_indices=True)
        mine, theirs = getattr(self, which)[own], getattr(other, which)[others]
        known = np.isfinite(mine) & np.isfinite(theirs)
        return seeds[known], mine[known], theirs[known]


class Scores:
    """Every row's runs, from the tidy table. Rows at one learning rate have tuning runs beside the main ones."""

    def __init__(self, experiment: Experiment, runs: pd.DataFrame):
        self.experiment = experiment
        self.metrics = tuple(name for name in runs.columns if name.startswith(("eval/", "train/")))
        ordered = runs.sort_values(["seed", "round"], kind="stable")
        parts = dict(iter(ordered.groupby(["row", "role"], sort=False)))
        self._main = {row: lines for (row, role), lines in parts.items() if role != "tuning"}
        self._tuning = {row: lines for (row, role), lines in parts.items() if role == "tuning"}
        rows = [self._main[row.id] for row in experiment.rows if row.id in self._main]
        self._of_rows = pd.concat(rows) if rows else ordered.head(0)
        self._floors: dict[str, float] = {}
        self._failed: dict[tuple[str, bool], dict[int, str]] = {}

    def has(self, row: str) -> bool:
        """Whether a row has any run on the main seeds."""
        return row in self._main

    def has_tuning(self, row: str) -> bool:
        """Whether a row at one learning rate has any run on the tuning seeds."""
        return row in self._tuning

    def lines(self, row: str, *, tuning: bool = False) -> pd.DataFrame:
        """The lines of a row by seed and round."""
        return (self._tuning if tuning else self._main)[row]

    def floor(self, metric: str) -> float:
        """The lowest finite value of a metric at any evaluation of any row of the tables.

        NaN without any, and for metrics of which the lowest is not the worst.
        """
        if not QUALITY.match(metric):
            return float("nan")
        if metric not in self._floors:
            values = self._of_rows[metric].to_numpy(dtype=np.float64) if metric in self._of_rows else np.empty(0)
            finite = values[np.isfinite(values)]
            self._floors[metric] = float(finite.min()) if len(finite) else float("nan")
        return self._floors[metric]

    def failed(self, row: Row, *, tuning: bool = False) -> dict[int, str]:
        """The seeds of a row whose run failed, by the experiment's metric, each with the reason in words."""
        key = (row.id, tuning)
        if key not in self._failed:
            lines = self.lines(row.id, tuning=tuning)
            measured = scored(lines, self.experiment.metric, row.spec.evaluation.last)
            gone = set(lines.loc[lines["diverged"].to_numpy(dtype=bool), "seed"].tolist())
            self._failed[key] = _failures(measured, gone, self.experiment.metric)
        return self._failed[key]

    def of(self, row: Row, metric: str, *, tuning: bool = False) -> Scored:
        """The scores of a row, failed runs at the floor; NaN where there is none or nothing was measured.

        A control that failed lower than any row keeps what it ended at.
        """
        found = scored(self.lines(row.id, tuning=tuning), metric, row.spec.evaluation.last)
        unmeasured = found.unmeasured & ~self._gone(row, tuning=tuning)
        failed = np.isin(found.seeds, list(self.failed(row, tuning=tuning))) & ~unmeasured
        floor = self.floor(metric)
        return Scored(
            found.seeds,
            np.where(failed, _lower(floor, found.final), found.final),
            np.where(failed, _lower(floor, found.area), found.area),
            found.first,
            unmeasured,
        )

    def _gone(self, row: Row, *, tuning: bool) -> NDArray[np.bool_]:
        """Whether each run of a row is one that the record calls diverged, by seed."""
        lines = self.lines(row.id, tuning=tuning)
        return lines.groupby("seed", sort=True)["diverged"].any().to_numpy(dtype=bool)

    def sound(self, row: Row) -> bool:
        """Whether any run of a row did not fail."""
        return len(self.failed(row)) < self.lines(row.id)["seed"].nunique()

    def spent(self, row: Row) -> dict[str, float]:
        """What a row's runs had spent at their end: means over the seeds that did not fail, of all if none."""
        final = self.lines(row.id).groupby("seed", sort=True).tail(1)
        sound = final[~final["seed"].isin(list(self.failed(row)))]
        used = sound if len(sound) else final
        return {name: float(used[name].mean()) for name in COUNTERS}

    def stale(self, row: Row) -> int:
        """How many seeds of a row were trained by older code."""
        return int(self.lines(row.id).groupby("seed")["stale"].first().sum())

    def parameters(self, row: str) -> dict[int, str]:
        """The checksum of the final parameters of each seed's block; empty where it is unknown."""
        lines = self.lines(row)
        return dict(zip(lines["seed"].tolist(), lines["parameters"].tolist(), strict=True))

    def identical(self, row: str, other: str) -> bool | None:
        """Whether two rows ended with bit-identical parameters on the seeds they share; None where unknown."""
        mine, theirs = self.parameters(row), self.parameters(other)
        seeds = mine.keys() & theirs.keys()
        if not seeds or not all(mine[seed] and theirs[seed] for seed in seeds):
            return None
        return all(mine[seed] == theirs[seed] for seed in seeds)


def scored(lines: pd.DataFrame, metric: str, last: int) -> Scored:
    """Return the scores of one row's lines, which are sorted by seed and round.

    An ``eval/*`` metric's final score is its mean over the last ``last`` evaluations; that of a ``train/*`` metric
    is the last line's, which covers the rounds since the line before it.
    """
    seeds, starts = np.unique(lines["seed"].to_numpy(), return_index=True)
    if metric not in lines:
        missing = np.full(len(seeds), np.nan)
        return Scored(seeds, missing, missing, missing, np.ones(len(seeds), dtype=bool))
    count = last if metric.startswith("eval/") else 1
    values = np.split(lines[metric].to_numpy(dtype=np.float64), starts[1:])
    rollouts = np.split(lines["rollouts"].to_numpy(dtype=np.float64), starts[1:])
    return Scored(
        seeds=seeds,
        final=np.array([own[-count:].mean() for own in values]),
        area=np.array([_area(x, own) for x, own in zip(rollouts, values, strict=True)]),
        first=np.array([own[0] for own in values]),
        unmeasured=np.array([bool(np.isnan(own).all()) for own in values]),
    )


def _area(rollouts: Numbers, values: Numbers) -> float:
    """Return the area of a curve, from its second line on where the untrained policy has no number."""
    start = 1 if np.isnan(values[0]) and len(values) > 1 else 0
    return area(rollouts[start:], values[start:])


def _failures(found: Scored, diverged: Iterable[int], metric: str) -> dict[int, str]:
    gone, reasons = set(diverged), {}
    for seed, final, first, unmeasured in zip(
        found.seeds.tolist(), found.final, found.first, found.unmeasured, strict=True
    ):
        if seed in gone:
            reasons[seed] = "diverged: a parameter was not finite"
        elif unmeasured:  # does not apply to the run
            continue
        elif not np.isfinite(final):
            reasons[seed] = "diverged: the score is not finite"
        elif QUALITY.match(metric) and first > 0 and final < COLLAPSED * first:
            reasons[seed] = f"collapsed: from {first:.3g} to {final:.3g}"
    return reasons


def histories_differ(one: pd.DataFrame, other: pd.DataFrame, metrics: Iterable[str]) -> float:
    """Return the largest difference of two rows' metrics over all seeds and evaluations that the seeds have.

    Infinite where the evaluations themselves differ, or where only one side is a number.
    """
    seeds = set(one["seed"]) & set(other["seed"])
    first, second = (side[side["seed"].isin(seeds)] for side in (one, other))
    if first[["seed", "round"]].to_numpy().tolist() != second[["seed", "round"]].to_numpy().tolist():
        return float("inf")
    largest = 0.0
    for metric in metrics:
        a, b = (side[metric].to_numpy(dtype=np.float64) for side in (first, second))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not same.all():
            gap = float(np.abs(a[~same] - b[~same]).max())
            largest = max(largest, gap if np.isfinite(gap) else float("inf"))
    return largest


def _lower(floor: float, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the floor, or a finite value below it; NaN where there is no floor."""
    return np.minimum(floor, np.where(np.isfinite(values), values, floor))
