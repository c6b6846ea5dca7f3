"""The lines of a run (one per evaluation), and the points of MLflow's metric histories that stand for them.

A line becomes points that share a timestamp, which names it: two lines can have the same step (their optimiser
updates), when every group between them was constant. ``eval/*`` and the counters are logged at every line;
``train/*`` where it changes, as the two ends of each run of equal values: lossless, straight in a chart, and
half of the points, at some 90 microseconds each. What comes before the first number is not logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from grpo_ablate.runs.record import Record

INTEGERS = ("round", "updates", "rollouts", "tokens")
LARGEST = float(np.finfo(np.float64).max)  # SQL has no infinity: MLflow's own stand-in for it

Lines = dict[str, NDArray[Any]]
"""Columns of one run by name, by round: ``INTEGERS``, ``seconds`` (NaN where unknown), then the metrics."""


class Point(NamedTuple):
    """A metric point as MLflow has it."""

    key: str
    value: float  # never infinite
    timestamp: int  # milliseconds since 1970
    step: int


def lines_by_seed(columns: Mapping[str, NDArray[Any]]) -> dict[int, Lines]:
    """Return the lines of each seed from columns of many, one of them ``seed``."""
    order = np.lexsort((columns["round"], columns["seed"]))
    seeds, first = np.unique(columns["seed"][order], return_index=True)
    return {
        seed: {name: column[rows] for name, column in columns.items() if name != "seed"}
        for seed, rows in zip(seeds.tolist(), np.split(order, first[1:]), strict=True)
    }


def record_lines(record: Record) -> dict[int, Lines]:
    """Return the lines of each seed of a record; ``seconds`` is the seed's share of its block's time so far."""
    columns = {name: record.metrics.column(name).to_numpy() for name in record.metrics.column_names}
    taken = {int(number): float(seconds) for number, seconds in record.timing["curve"]}
    seconds = np.array([taken.get(number, np.nan) for number in columns["round"].tolist()], dtype=np.float64)
    return lines_by_seed({**columns, "seconds": seconds / len(record.run["seeds"])})


def timestamps(start: int, seconds: Iterable[float]) -> NDArray[np.int64]:
    """Return one strictly increasing timestamp per line: start (ms) plus its seconds, or 1 ms after the last.

    >>> timestamps(1000, [0.0, 0.0, 2.5, float("nan")]).tolist()
    [1000, 1001, 3500, 3501]
    """
    known = np.nan_to_num(np.array(list(seconds), dtype=np.float64), nan=0.0)
    index = np.arange(len(known))
    return np.maximum.accumulate(start + np.round(known * 1000).astype(np.int64) - index) + index


def encode(lines: Lines, timestamp: NDArray[np.int64]) -> list[Point]:
    """Return the points that stand for ``lines``; ``decode`` gives the lines back."""
    points: list[Point] = []
    for name, column in lines.items():
        if name == "updates":
            continue  # the step
        kept = _ends(column) if name.startswith("train/") else np.ones(len(column), dtype=bool)
        values = np.clip(column[kept].astype(np.float64), -LARGEST, LARGEST)
        times, steps = timestamp[kept], lines["updates"][kept]
        points.extend(map(Point, [name] * len(values), values.tolist(), times.tolist(), steps.tolist()))
    return points


def _ends(column: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True at both ends of each run of equal values, NaN equal to NaN, after the leading NaNs."""
    missing = np.isnan(column)
    same = (column[1:] == column[:-1]) | (missing[1:] & missing[:-1])
    inside = np.zeros(len(column), dtype=bool)
    inside[1:-1] = same[1:] & same[:-1]
    return ~inside & ~np.logical_and.accumulate(missing)


def decode(points: Iterable[Point]) -> Lines:
    """Return the lines that ``points`` (of one run, in any order) stand for."""
    series: dict[str, dict[int, float]] = {}
    steps: dict[int, int] = {}
    for key, value, timestamp, step in points:
        series.setdefault(key, {})[timestamp] = value
        if key == "round":
            steps[timestamp] = step
    times = sorted(steps)
    lines: Lines = {"updates": np.array([steps[time] for time in times], dtype=np.int64)}
    for key, values in series.items():
        logged = np.array([time in values for time in times], dtype=bool)
        column = np.array([values.get(time, np.nan) for time in times], dtype=np.float64)
        column[column >= LARGEST], column[column <= -LARGEST] = np.inf, -np.inf
        if key in INTEGERS:
            column = column.astype(np.int64)
        elif key.startswith("train/"):  # what is not logged is as the line before
            last = np.maximum.accumulate(np.where(logged, np.arange(len(times)), -1))
            column = np.where(last >= 0, column[last], np.nan)
        lines[key] = column
    return lines
