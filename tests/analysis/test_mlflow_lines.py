"""Lines survive the way through MLflow's points."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ablate.runs.mlflow_lines import LARGEST, Lines, Points, decode, encode, timestamps

VALUES = st.sampled_from([0.0, 1.0, -1.5, 1e-9, float("nan"), float("inf"), float("-inf")])


def _lines(metrics: dict[str, list[float]], updates: list[int]) -> Lines:
    count = len(updates)
    numbers = np.arange(count)
    columns = {name: np.array(values, dtype=np.float64) for name, values in metrics.items()}
    return Lines(numbers * 10, np.array(updates), numbers * 32, numbers * 64, numbers * 0.25, columns)


def _assert_equal(left: Lines, right: Lines) -> None:
    for name in ("round", "updates", "rollouts", "tokens", "seconds"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for name in left.metrics.keys() | right.metrics.keys():
        absent = np.full(len(left), np.nan)
        got, expected = right.metrics.get(name, absent), left.metrics.get(name, absent)
        assert np.array_equal(got, expected, equal_nan=True), name


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 1)), min_size=1, max_size=12), st.randoms())
def test_every_line_comes_back_whatever_the_order_of_the_points(rows, random):
    updates = np.cumsum([step for *_, step in rows]).tolist()
    lines = _lines({"eval/a": [row[0] for row in rows], "train/b": [row[1] for row in rows]}, updates)
    points = encode(lines, timestamps(10**12, lines.seconds))
    order = list(range(len(points)))
    random.shuffle(order)
    shuffled = Points(
        tuple(points.key[i] for i in order), points.value[order], points.timestamp[order], points.step[order]
    )
    _assert_equal(lines, decode(shuffled))


def test_a_constant_train_metric_is_two_points_and_an_eval_metric_one_per_line():
    lines = _lines({"train/flat": [float("nan"), *[3.0] * 40], "eval/flat": [3.0] * 41}, list(range(41)))
    keys = list(encode(lines, timestamps(0, lines.seconds)).key)
    assert keys.count("train/flat") == 2
    assert keys.count("eval/flat") == 41


def test_points_are_finite_or_nan_since_sql_has_no_infinity():
    lines = _lines({"eval/a": [float("inf"), float("-inf")]}, [0, 1])
    points = encode(lines, timestamps(0, lines.seconds))
    assert sorted(points.value[[key == "eval/a" for key in points.key]]) == [-LARGEST, LARGEST]


def test_a_round_logged_twice_counts_once_with_its_later_timestamp():
    lines = _lines({"eval/a": [0.0, 1.0, 2.0]}, [0, 1, 2])
    first = encode(lines, np.array([100, 200, 300]))
    again = encode(_lines({"eval/a": [0.0, 1.0, 5.0]}, [0, 1, 2]).part(2, 3), np.array([400]))
    both = Points(
        first.key + again.key,
        *(np.concatenate([getattr(first, n), getattr(again, n)]) for n in ("value", "timestamp", "step")),
    )
    assert decode(both).metrics["eval/a"].tolist() == [0.0, 1.0, 5.0]


def test_a_gap_between_unequal_values_stays_a_gap():
    def point(key: str, value: float, step: int) -> tuple[str, float, int, int]:
        return key, value, step, step

    rows = [point("round", step, step) for step in range(5)]
    rows += [point("train/a", 1.0, 0), point("train/a", 2.0, 2), point("train/a", 2.0, 4)]
    keys, values, times, steps = zip(*rows, strict=True)
    found = decode(Points(keys, np.array(values, dtype=float), np.array(times), np.array(steps)))
    assert np.array_equal(found.metrics["train/a"], [1.0, np.nan, 2.0, 2.0, 2.0], equal_nan=True)


def test_timestamps_of_lines_strictly_increase():
    stamps = timestamps(5, [0.0, 0.0001, 0.0001, 7.0, 6.9, float("nan")])
    assert (np.diff(stamps) > 0).all()
    assert stamps[3] == 7005
