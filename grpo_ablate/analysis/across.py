"""Switches over several testbeds: the interquartile mean and the probability of improvement, testbeds as strata.

Single testbeds answer for themselves; what holds over all of them is asked of the rows that are compared with the
same baseline on more than one. Both numbers with their stratified paired bootstrap intervals are those of Agarwal
et al. (2021, Deep reinforcement learning at the edge of the statistical precipice).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from grpo_ablate.analysis.alarms import above
from grpo_ablate.analysis.compare_tables import headings
from grpo_ablate.analysis.comparison import Comparison, RowResult
from grpo_ablate.analysis.statistics import (
    improvement_interval,
    interquartile_difference,
    probability_of_improvement,
)
from grpo_ablate.analysis.tables import DIALECTS, Table
from grpo_ablate.analysis.words import estimate
from grpo_ablate.analysis.writing import write_whole


@dataclass(frozen=True)
class Across:
    """A row against its baseline over testbeds. ``middle``: difference of their interquartile means."""

    row: str
    label: str
    baseline: str
    testbeds: tuple[str, ...]
    seeds: int  # pairs in all
    middle: float
    middle_low: float
    middle_high: float
    improvement: float  # chance that a run of the row beats a run of the baseline
    improvement_low: float
    improvement_high: float


def across(comparisons: Sequence[Comparison]) -> tuple[Across, ...]:
    """Return every row that is compared with the same baseline, on the same metric, in at least two testbeds.

    The first comparison of a testbed counts where several hold the row. Pairs are the seeds that both rows have.
    """
    found: dict[tuple[str, str, str], dict[str, tuple[RowResult, list[float], list[float]]]] = {}
    for comparison in comparisons:
        base = comparison.row(comparison.baseline)
        for row in comparison.rows:
            own, other = (
                dict(zip(row.seeds, row.scores, strict=True)),
                dict(zip(base.seeds, base.scores, strict=True)),
            )
            seeds = [s for s in own if s in other and math.isfinite(own[s]) and math.isfinite(other[s])]
            if row.row == base.row or not seeds:
                continue
            key = (row.row, base.row, comparison.metric)
            pairs = (row, [own[seed] for seed in seeds], [other[seed] for seed in seeds])
            found.setdefault(key, {}).setdefault(comparison.testbed, pairs)
    return tuple(_joined(key[1], strata) for key, strata in found.items() if len(strata) > 1)


def _joined(baseline: str, strata: dict[str, tuple[RowResult, list[float], list[float]]]) -> Across:
    row = next(iter(strata.values()))[0]
    first = [own for _, own, _ in strata.values()]
    second = [other for _, _, other in strata.values()]
    middle = interquartile_difference(first, second)
    low, high = improvement_interval(first, second)
    chance = probability_of_improvement(first, second)
    return Across(row.row, row.label, baseline, tuple(strata), sum(map(len, first)), *middle, chance, low, high)


def _heading(comparison: Comparison) -> list[str]:
    """Say what stands above every table of an experiment, and what was decided after a look at its results."""
    return [f"{comparison.experiment}: {line}" for line in (*headings(comparison), *comparison.notes)]


def write_across(comparisons: Sequence[Comparison], results: Path) -> list[Path]:
    """Write ``tables/across.{csv,md,tex,typ}``; return the paths, the CSV first."""
    written = []
    for ending, content in across_files(comparisons).items():
        written.append(results / "tables" / f"across{ending}")
        write_whole(written[-1], content)
    return written


def across_files(comparisons: Sequence[Comparison]) -> dict[str, bytes]:
    """Return the table over testbeds by the endings of its files, ``.csv`` first."""
    found = across(comparisons)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    partial = "; ".join(f"{one.experiment}: {one.partial}" for one in comparisons if one.partial)
    writer.writerow([*(field.name for field in fields(Across)), "partial"])
    for line in found:
        writer.writerow([*(asdict(line) | {"testbeds": " ".join(line.testbeds)}).values(), partial])
    table = Table(
        ("Row", "Against", "Testbeds", "Pairs", "Interquartile mean, difference", "Probability of improvement"),
        tuple(
            (
                line.label,
                line.baseline,
                ", ".join(line.testbeds),
                str(line.seeds),
                estimate(line.middle, line.middle_low, line.middle_high, signed=True),
                estimate(line.improvement, line.improvement_low, line.improvement_high),
            )
            for line in found
        ),
        (
            "Rows compared with the same baseline in at least two testbeds, testbeds as strata; 95 % intervals of "
            "a stratified paired bootstrap, not corrected for several rows. Where several experiments of a "
            "testbed hold a row, the first by name counts.",
        ),
    )
    heading = [*dict.fromkeys(line for one in comparisons for line in _heading(one))]
    printed = {
        f".{dialect}": (above(heading, dialect) + render(table)).encode() for dialect, render in DIALECTS.items()
    }
    return {".csv": text.getvalue().encode(), **printed}
