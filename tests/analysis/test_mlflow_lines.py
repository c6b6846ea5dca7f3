"""Lines survive the way through MLflow's points."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ablate.runs.mlflow_lines import LARGEST, Lines, Point, decode, encode, lines_by_seed, timestamps

VALUES = st.sampled_from([0.0, 1.0, -1.5, 1e-9, float("nan"), float("inf"), float("-inf")])


def _lines(metrics: dict[str, list[float]], updates: list[int]) -> Lines:
    count = np.arange(len(updates))
    lines = {"round": count * 10, "updates": np.array(updates), "rollouts": count * 32, "tokens": count * 64}
    columns = {name: np.array(values, dtype=np.float64) for name, values in metrics.items()}
    return {**lines, "seconds": count * 0.25, **columns}


@settings(deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 1)), min_size=1, max_size=12), st.randoms())
def test_every_line_comes_back_whatever_the_order_of_the_points(rows, random):
    updates = np.cumsum([step for *_, step in rows]).tolist()
    lines = _lines({"eval/a": [row[0] for row in rows], "train/b": [row[1] for row in rows]}, updates)
    points = encode(lines, timestamps(10**12, lines["seconds"]))
    random.shuffle(points)
    found = decode(points)
    assert found.keys() <= lines.keys()
    for name, column in lines.items():
        got = found.get(name, np.full(len(column), np.nan))  # a metric that never applied has no points
        assert np.array_equal(got, column, equal_nan=name != "round"), name
    assert all(found[name].dtype == np.int64 for name in ("round", "updates", "rollouts", "tokens"))


def test_a_constant_train_metric_is_two_points_and_an_eval_metric_one_per_line():
    lines = _lines({"train/flat": [float("nan"), *[3.0] * 40], "eval/flat": [3.0] * 41}, list(range(41)))
    keys = Counter(point.key for point in encode(lines, timestamps(0, lines["seconds"])))
    assert (keys["train/flat"], keys["eval/flat"]) == (2, 41)


def test_points_are_finite_or_nan_since_sql_has_no_infinity():
    lines = _lines({"eval/a": [float("inf"), float("-inf")]}, [0, 1])
    points = encode(lines, timestamps(0, lines["seconds"]))
    assert [point.value for point in points if point.key == "eval/a"] == [LARGEST, -LARGEST]


def test_a_gap_in_a_train_metric_stays_a_gap():
    nan = float("nan")
    column = [nan, 1.0, nan, nan, nan, 2.0]
    points = encode(_lines({"train/a": column}, list(range(6))), np.arange(6))
    logged = [point.timestamp for point in points if point.key == "train/a"]
    assert logged == [1, 2, 4, 5]
    assert np.array_equal(decode(points)["train/a"], column, equal_nan=True)


def test_two_lines_at_one_step_are_told_apart_by_their_timestamps():
    lines = _lines({"eval/a": [1.0, 2.0, 3.0]}, [0, 1, 1])
    points = encode(lines, timestamps(0, [0.0, 0.0, 0.0]))
    assert Point("eval/a", 2.0, 1, 1) in points and Point("eval/a", 3.0, 2, 1) in points
    assert decode(points)["eval/a"].tolist() == [1.0, 2.0, 3.0]


def test_lines_of_a_seed_are_sorted_by_round():
    columns = {"seed": np.array([7, 4, 7]), "round": np.array([2, 0, 1]), "eval/a": np.array([0.1, 0.2, 0.3])}
    found = lines_by_seed(columns)
    assert {seed: lines["eval/a"].tolist() for seed, lines in found.items()} == {4: [0.2], 7: [0.3, 0.1]}


def test_timestamps_of_lines_strictly_increase():
    stamps = timestamps(5, [0.0, 0.0001, 0.0001, 7.0, 6.9, float("nan")])
    assert (np.diff(stamps) > 0).all()
    assert stamps[3] == 7005
