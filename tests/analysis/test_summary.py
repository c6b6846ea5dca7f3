"""Means, spreads and intervals, against numbers worked by hand and against scipy's own interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fabricated import write_record
from scipy import stats

from grpo_ablate.analysis.collect import collect, tidy
from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.scores import Scores
from grpo_ablate.analysis.summary import COLUMNS, estimate, scores, summarise
from grpo_ablate.spec.cells import cells


def test_the_interval_of_a_hand_worked_example():
    # Ten heights; mean 175, squared deviations 190, sd sqrt(190 / 9); t(0.975, 9) = 2.262157 from a printed table.
    values = [168, 170, 171, 173, 174, 176, 177, 179, 180, 182]
    assert sum(values) == 1750 and sum((v - 175) ** 2 for v in values) == 190
    found = estimate(values)
    sd = (190 / 9) ** 0.5
    half = 2.262157 * sd / 10**0.5
    assert (found.n, found.mean) == (10, 175.0)
    assert found.sd == pytest.approx(sd, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((175 - half, 175 + half), rel=1e-7)


@pytest.mark.parametrize("count", [2, 3, 8, 40])
def test_the_interval_is_scipys_one_sample_t_interval(count):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = estimate(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-10)


def test_the_interval_covers_the_truth_in_95_of_100_repetitions():
    draws = np.random.default_rng(0).normal(1.0, 3.0, (4000, 5))
    covered = sum(found.low <= 1.0 <= found.high for found in map(estimate, draws)) / 4000
    assert abs(covered - 0.95) < 4 * (0.95 * 0.05 / 4000) ** 0.5


def test_values_that_are_not_finite_are_left_out_and_not_counted():
    assert estimate([1.0, 3.0, np.nan, np.inf])[:2] == (2, 2.0)
    assert estimate([np.nan])[0] == 0 and np.isnan(estimate([np.nan]).mean)
    assert estimate([5.0])[:2] == (1, 5.0) and np.isnan(estimate([5.0]).sd)


def test_equal_values_have_spread_zero_and_an_interval_of_one_point():
    assert estimate([0.5, 0.5, 0.5]) == (3, 0.5, 0.0, 0.5, 0.5)


def test_a_score_is_the_mean_of_the_last_evaluations_and_of_train_metrics_the_last_line():
    lines = pd.DataFrame(
        {
            "seed": [0, 0, 0, 1, 1, 1],
            "round": [0, 1, 2, 2, 1, 0],  # the second seed's lines are in reverse
            "eval/a": [9.0, 1.0, 2.0, 6.0, 4.0, 9.0],
            "eval/b": [np.nan, 1.0, 1.0, np.nan, 1.0, 1.0],
            "train/c": [np.nan, 1.0, 5.0, 7.0, 1.0, np.nan],
        }
    )
    found = scores(lines, ["eval/a", "eval/b", "train/c"], last=2)
    assert found["eval/a"].tolist() == [1.5, 5.0]
    assert found["eval/b"].tolist()[0] == 1.0 and np.isnan(found["eval/b"].tolist()[1])
    assert found["train/c"].tolist() == [5.0, 7.0]


def test_the_summary_agrees_with_a_plain_loop(recorded, results):
    runs = tidy(recorded, results).to_pandas()
    found = summarise(recorded, Scores(recorded, runs))
    assert tuple(found.columns) == COLUMNS
    assert found[found["metric"] == "eval/reward"]["row"].tolist() == ["base", "twin", "mean-only"]
    line = found[(found["row"] == "mean-only") & (found["metric"] == "eval/reward")].iloc[0]
    rows = runs[runs["role"] == "row"]
    worst, per_seed, failed = min(rows["eval/reward"]), [], 0
    for seed in range(3):
        own = rows[(rows["row"] == "mean-only") & (rows["seed"] == seed)]
        final = (own["eval/reward"].iloc[-2] + own["eval/reward"].iloc[-1]) / 2  # evaluation.last: 2
        collapsed = final < 0.5125 / 2  # half of what the untrained policy had
        failed += collapsed
        per_seed.append(worst if collapsed else final)
    assert line["mean"] == pytest.approx(np.mean(per_seed), rel=1e-12)
    assert line["sd"] == pytest.approx(np.std(per_seed, ddof=1), rel=1e-12)
    assert (line["n"], line["failed"], line["partial"]) == (3, failed, "") and 0 < failed < 3
    assert (line["rollouts"], line["tokens"], line["updates"]) == (40, 40, 3)
    assert line["seconds"] == pytest.approx(0.404 / 2)


def failing(table: dict[str, list[float]]) -> None:
    """Seed 1 ends without a number, and its entropy stays finite; the others improve."""
    places = zip(table["seed"], table["round"], strict=True)
    table["eval/reward"] = [0.5125 + (0.1 + 0.01 * seed if number else 0) for seed, number in places]
    table["eval/entropy"] = [1.0 + seed for seed in table["seed"]]
    if 1 in table["seed"]:
        table["eval/reward"][-1] = float("nan")


@pytest.fixture
def failed(experiment, results):
    """The experiment with a record of every cell, seed 1 of every row failed."""
    for cell in cells([experiment]):
        write_record(results, cell, change=failing)
    return experiment


def test_a_failed_run_scores_the_worst_value_that_any_row_had_as_in_the_comparison(failed, results):
    runs = tidy(failed, results).to_pandas()
    found = summarise(failed, Scores(failed, runs))
    worst = np.nanmin(runs["eval/reward"])
    for row in ("base", "mean-only"):
        line = found[(found["row"] == row) & (found["metric"] == "eval/reward")].iloc[0]
        own = runs[runs["row"] == row]
        finals = [own[own["seed"] == seed]["eval/reward"].iloc[-2:].mean() for seed in (0, 2)]
        assert (line["n"], line["failed"]) == (3, 1), "never left out"
        assert line["mean"] == pytest.approx(np.mean([*finals, worst]), rel=1e-12)
        assert line["sd"] == pytest.approx(np.std([*finals, worst], ddof=1), rel=1e-12)
        compared_row = compare(failed, runs).row(row)
        told = (compared_row.n, compared_row.mean, compared_row.sd, compared_row.low, compared_row.high)
        assert told == (line["n"], line["mean"], line["sd"], line["ci_low"], line["ci_high"]), "one word, one rule"


def test_a_failed_run_is_left_out_of_a_metric_without_a_worst_value(failed, results):
    found = summarise(failed, Scores(failed, tidy(failed, results).to_pandas()))
    line = found[(found["row"] == "base") & (found["metric"] == "eval/entropy")].iloc[0]
    assert (line["n"], line["failed"], line["mean"]) == (2, 1, 2.0)  # of seeds 0 and 2


def test_the_printed_summary_says_what_failed_runs_score_and_which_they_are(failed, results):
    paths = {path.name: path for path in collect(failed, results)}
    worst = np.nanmin(tidy(failed, results).to_pandas()["eval/reward"])
    for ending in ("md", "tex", "typ"):
        text = paths[f"small.{ending}"].read_text()
        assert f"Failed runs (diverged or collapsed) score {worst:.3g}, the lowest value seen." in text
        assert "Failed: base, seed 1; twin, seed 1; mean-only, seed 1." in text


def test_a_metric_that_does_not_apply_to_a_row_has_no_line(experiment, results):
    plain = experiment.row("mean-only").hash

    def drop(table):
        table["train/noisy"] = [float("nan")] * len(table["seed"])

    for cell in cells([experiment]):
        write_record(results, cell, change=drop if cell.hash == plain else None)
    found = summarise(experiment, Scores(experiment, tidy(experiment, results).to_pandas()))
    assert found[found["metric"] == "train/noisy"]["row"].tolist() == ["base", "twin"]


def test_the_written_summary_reads_back_exactly(recorded, results):
    path = next(path for path in collect(recorded, results) if path.name == "small.csv")
    expected = summarise(recorded, Scores(recorded, tidy(recorded, results).to_pandas()))
    read = pd.read_csv(path)
    assert read.pop("partial").isna().all() and set(expected.pop("partial")) == {""}
    pd.testing.assert_frame_equal(read, expected, check_exact=True, check_dtype=False)
