"""Between the lines of a record (one per evaluation) and the points of MLflow's metric histories.

A line becomes points that share a step (its optimiser updates) and a timestamp, which together name it:
two lines can have the same step, when every group between them was constant. ``eval/*`` and the counters
are logged at every line. ``train/*`` is logged where it changes, as the two ends of each run of equal
values: lossless, straight in a chart, and a third of the points. NaN counts as equal to NaN; what comes
before a metric's first number is not logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COUNTERS = ("round", "rollouts", "tokens", "seconds")  # series beside the metrics; updates is the step
LARGEST = float(np.finfo(np.float64).max)  # SQL has no infinity: MLflow's own stand-in for it

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Metric points of one MLflow run, as parallel columns; ``value`` is never infinite."""

    key: tuple[str, ...]
    value: Column
    timestamp: NDArray[np.int64]  # milliseconds since 1970
    step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class Lines:
    """Evaluations of one run in order: counters and metrics, each one number per line."""

    round: NDArray[np.int64]
    updates: NDArray[np.int64]
    rollouts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    seconds: Column  # NaN where unknown
    metrics: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.round)

    def part(self, first: int, end: int) -> Lines:
        """Return the lines with index ``first`` up to, not including, ``end``."""
        where = slice(first, end)
        return Lines(
            self.round[where],
            self.updates[where],
            self.rollouts[where],
            self.tokens[where],
            self.seconds[where],
            {name: column[where] for name, column in self.metrics.items()},
        )


def timestamps(start: int, seconds: Sequence[float] | Column) -> NDArray[np.int64]:
    """Return one strictly increasing timestamp per line: start (ms) plus its seconds, or 1 ms after the last.

    >>> timestamps(1000, [0.0, 0.0, 2.5, float("nan")]).tolist()
    [1000, 1001, 3500, 3501]
    """
    known = np.nan_to_num(np.asarray(seconds, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    index = np.arange(len(known))
    milliseconds = start + np.round(known * 1000).astype(np.int64)
    return np.maximum.accumulate(milliseconds - index) + index


def encode(lines: Lines, timestamp: NDArray[np.int64]) -> Points:
    """Return the points that stand for ``lines``; ``decode`` gives the lines back."""
    columns: dict[str, tuple[Column, NDArray[np.bool_]]] = {}
    everywhere = np.ones(len(lines), dtype=bool)
    for name in COUNTERS:
        column = np.asarray(getattr(lines, name), dtype=np.float64)
        columns[name] = (column, np.isfinite(column) if name == "seconds" else everywhere)
    for name, column in lines.metrics.items():
        columns[name] = (column, _ends(column) if name.startswith("train/") else everywhere)
    keys: list[str] = []
    for name, (_, kept) in columns.items():
        keys.extend([name] * int(kept.sum()))
    if not columns:
        return Points((), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
    values = np.concatenate([column[kept] for column, kept in columns.values()])
    return Points(
        key=tuple(keys),
        value=np.clip(values, -LARGEST, LARGEST) + 0.0,
        timestamp=np.concatenate([timestamp[kept] for _, kept in columns.values()]),
        step=np.concatenate([lines.updates[kept] for _, kept in columns.values()]).astype(np.int64),
    )


def _equal(left: Column, right: Column) -> NDArray[np.bool_]:
    return (left == right) | (np.isnan(left) & np.isnan(right))


def _ends(column: Column) -> NDArray[np.bool_]:
    """True at both ends of each run of equal values, after the leading NaNs."""
    same = _equal(column[1:], column[:-1])
    inside = np.zeros(len(column), dtype=bool)
    inside[1:-1] = same[1:] & same[:-1]
    leading = np.logical_and.accumulate(np.isnan(column))
    return ~inside & ~leading


def decode(points: Points) -> Lines:
    """Return the lines that ``points`` (in any order, of one run) stand for.

    Lines are the points of the series ``round``; a round logged twice counts once, its later timestamp.
    Points of ``eval/*`` and ``train/*`` belong to the line with their step and timestamp; a ``train/*``
    value missing between two equal ones is that value, any other missing value is NaN.
    """
    keys = np.asarray(points.key, dtype=object)
    order = np.argsort(keys, kind="stable")
    names, first = np.unique(keys[order].astype(str), return_index=True)
    parts = dict(zip(names.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}
    rounds = parts.pop("round", np.empty(0, np.int64))
    rounds = rounds[np.lexsort((points.timestamp[rounds], points.value[rounds]))]
    if len(rounds):
        last = np.append(points.value[rounds][1:] != points.value[rounds][:-1], True)
        rounds = rounds[last]
    index = {
        key: line
        for line, key in enumerate(
            zip(points.timestamp[rounds].tolist(), points.step[rounds].tolist(), strict=True)
        )
    }
    dense: dict[str, Column] = {}
    for name, part in parts.items():
        if name not in COUNTERS and not name.startswith(("eval/", "train/")):
            continue
        where = np.array(
            [
                index.get(key, -1)
                for key in zip(points.timestamp[part].tolist(), points.step[part].tolist(), strict=True)
            ]
        )
        column, logged = np.full(len(rounds), np.nan), np.zeros(len(rounds), dtype=bool)
        known = where >= 0
        column[where[known]] = _infinite(points.value[part][known])
        logged[where[known]] = True
        dense[name] = _filled(column, logged) if name.startswith("train/") else column
    absent = np.zeros(len(rounds))
    return Lines(
        round=points.value[rounds].astype(np.int64),
        updates=points.step[rounds].astype(np.int64),
        rollouts=dense.pop("rollouts", absent).astype(np.int64),
        tokens=dense.pop("tokens", absent).astype(np.int64),
        seconds=dense.pop("seconds", np.full(len(rounds), np.nan)),
        metrics=dense,
    )


def _infinite(values: Column) -> Column:
    result = values.copy()
    result[values >= LARGEST] = np.inf
    result[values <= -LARGEST] = -np.inf
    return result


def _filled(column: Column, logged: NDArray[np.bool_]) -> Column:
    """Fill what lies between two equal logged values with that value."""
    if logged.all() or not logged.any():
        return column
    line = np.arange(len(column))
    before = np.maximum.accumulate(np.where(logged, line, -1))
    after = np.minimum.accumulate(np.where(logged, line, len(column))[::-1])[::-1]
    between = ~logged & (before >= 0) & (after < len(column))
    result = column.copy()
    left, right = column[before[between]], column[after[between]]
    result[between] = np.where(_equal(left, right), left, np.nan)
    return result
