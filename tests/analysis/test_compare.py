"""Rows beside their baseline: pairs, failures, budgets, axes, rates; the files and the text that come of it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from conftest import EXPERIMENT, TESTBED
from fabricated import write_record
from scipy import stats
from tidy_runs import ROLLOUTS, ROWS, START, lines, table, with_claims, written

from grpo_ablate.analysis.collect import collect, tidy
from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.compare_command import compared, write_compared
from grpo_ablate.analysis.compare_tables import rows_table
from grpo_ablate.analysis.compare_text import as_text
from grpo_ablate.analysis.comparison import FILES, as_json, read_comparison
from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_writer import log_experiment
from grpo_ablate.spec.cells import cells

BASE = [0.50, 0.52, 0.48, 0.51, 0.49, 0.53, 0.47, 0.50]
MORE = [0.56, 0.55, 0.53, 0.58, 0.54, 0.57, 0.55, 0.54]


def test_a_row_is_compared_seed_by_seed(three_rows):
    found = compare(three_rows, table(lines("base", BASE), lines("other", MORE)))
    base, other = found.rows
    assert [row.row for row in found.rows] == ["base", "other"]  # a row without runs is not there
    assert base.difference is None and base.verdict == "baseline"
    gap = np.array(MORE) - np.array(BASE)
    expected = stats.ttest_rel(MORE, BASE).confidence_interval(0.95)
    assert other.difference.values == pytest.approx(tuple(gap), rel=1e-12)
    assert (other.difference.low, other.difference.high) == pytest.approx((expected.low, expected.high), rel=1e-10)
    assert other.mean == pytest.approx(np.mean(MORE), rel=1e-12) and other.n == 8
    assert (other.difference.won, other.difference.ties) == (1.0, 0)
    assert other.verdict == "higher" and math.isnan(other.p)  # an interval, and without a claim no p
    # The curve: START, then the score at half and at all of the rollouts. Area: 1/2 (START + s)/2 + 1/2 s.
    assert other.area == pytest.approx(START / 4 + 0.75 * np.mean(MORE), rel=1e-12)
    assert other.area_difference.mean == pytest.approx(0.75 * gap.mean(), rel=1e-12)


def test_seeds_are_paired_by_their_number_whatever_the_order_of_the_lines(three_rows):
    whole = table(lines("base", BASE), lines("other", MORE))
    shuffled = whole.sample(frac=1, random_state=0)
    assert compare(three_rows, shuffled) == compare(three_rows, whole)


def test_missing_seeds_leave_the_pairs_that_both_have(three_rows):
    found = compare(three_rows, table(lines("base", BASE[:5]), lines("other", MORE[2:], first_seed=2)))
    assert found.row("other").difference.seeds == (2, 3, 4)
    assert found.row("other").n == 6 and found.row("base").n == 5


def test_without_a_baseline_or_its_metric_nothing_is_compared(three_rows):
    with pytest.raises(UserError, match=r"small.yaml: the baseline 'base' has no runs"):
        compare(three_rows, table(lines("other", MORE)))
    with pytest.raises(UserError, match="the runs have no metric 'eval/reward'"):
        compare(three_rows, table(lines("base", BASE)).drop(columns="eval/reward"))


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), 0.1])
def test_a_failed_run_scores_the_worst_of_the_experiment_and_is_listed(three_rows, lost):
    """0.1 is less than half of what the untrained policy earns: a collapse."""
    runs = table(lines("base", BASE), lines("other", [*MORE[:7], lost]))
    found = compare(three_rows, runs)
    worst = 0.1 if lost == 0.1 else START  # the lowest value at any evaluation
    assert found.floor == worst and found.row("other").scores[7] == worst
    assert found.row("other").failed == (7,) and found.row("base").failed == ()
    assert found.row("other").n == 8  # never left out
    assert found.row("other").difference.values[7] == pytest.approx(worst - BASE[7])
    (failure,) = found.failures
    assert (failure.row, failure.seed) == ("other", 7)
    assert failure.reason.startswith("collapsed" if lost == 0.1 else "diverged")
    assert "other seed 7: " in as_text(found) and "Failed" in as_text(found)


def test_a_run_whose_parameters_broke_fails_though_its_last_score_was_fine(three_rows):
    runs = table(lines("base", BASE), lines("other", MORE))
    runs.loc[(runs["row"] == "other") & (runs["seed"] == 3), "diverged"] = True
    found = compare(three_rows, runs)
    assert found.row("other").failed == (3,) and found.row("other").scores[3] == START


def test_a_row_whose_every_run_failed_is_still_compared(three_rows):
    found = compare(three_rows, table(lines("base", BASE), lines("other", [float("nan")] * 8)))
    assert found.row("other").verdict == "lower" and len(found.row("other").failed) == 8


def test_one_seed_and_equal_scores_end_without_a_verdict(three_rows):
    one = compare(three_rows, table(lines("base", BASE[:1]), lines("other", MORE[:1])))
    assert one.row("other").verdict == "inconclusive: fewer than two pairs"
    same = compare(three_rows, table(lines("base", BASE), lines("other", BASE)))
    assert same.row("other").verdict == "equal scores on every seed"
    assert same.row("other").difference.ties == 8 and same.row("other").difference.won == 0.5
    exact = compare(three_rows, table(lines("base", BASE, parameters="p"), lines("other", BASE, parameters="p")))
    assert exact.row("other").verdict == "bit-identical to the baseline"
    assert exact.row("other").identical_to == ("base",)
    assert "parameters bit-identical in the end: other = base." in " ".join(rows_table(exact).notes)


def test_inside_a_stated_margin_rows_are_equivalent_and_outside_it_is_not_known(three_rows):
    near = [score + 0.001 * (-1) ** place for place, score in enumerate(BASE)]
    runs = table(lines("base", BASE), lines("other", near))
    assert "would have been seen" in compare(three_rows, runs).row("other").verdict
    bounded = replace(three_rows, margin=0.01)
    assert compare(bounded, runs).row("other").verdict == "equivalent within ±0.01"
    shifted = table(lines("base", BASE), lines("other", [score + 0.002 for score in near]))
    assert compare(bounded, shifted).row("other").verdict == "higher, but equivalent within ±0.01"
    assert compare(replace(three_rows, margin=0.0001), runs).row("other").verdict.startswith("inconclusive")


@pytest.mark.parametrize(
    ("held", "factor", "refused"),
    [("rollouts", 1.0, False), ("rollouts", 1.05, False), ("rollouts", 2.0, True), ("rollouts", 0.5, True),
     ("tokens", 1.04, False), ("tokens", 1.2, True), ("seconds", 1.2, False), ("seconds", 1.5, True),
     ("updates", 1.0, False), ("updates", 1.5, True)],
)  # fmt: skip
def test_rows_of_another_cost_are_refused(three_rows, held, factor, refused):
    """One round of the tiny testbed is 8 rollouts of 64: 1.05 is within a round, as a remainder may be."""
    runs = table(lines("base", BASE), lines("other", MORE))
    runs = runs.astype({"updates": float})
    runs.loc[runs["row"] == "other", held] *= factor
    experiment = replace(three_rows, held=held)
    if not refused:
        assert compare(experiment, runs).row("other").spent.rollouts == pytest.approx(
            ROLLOUTS * (factor if held == "rollouts" else 1)
        )
        return
    with pytest.raises(UserError, match=rf"small.yaml: row 'other' spent .* {held} a seed, the baseline 'base'"):
        compare(experiment, runs)


def test_a_run_that_broke_early_is_not_refused_for_what_it_saved(three_rows):
    runs = table(lines("base", BASE), lines("other", [*MORE[:7], float("nan")]))
    early = (runs["row"] == "other") & (runs["seed"] == 7) & (runs["round"] == 8)
    found = compare(three_rows, runs[~early])
    assert found.row("other").failed == (7,) and found.row("other").spent.rollouts == ROLLOUTS


CROSSED = """
question: Which of two, or both?
testbed: tiny
baseline: a0--b0
seeds: 5
axes:
  a: {a0: {}, a1: {advantage: {scale: none}}}
  b: {b0: {}, b1: {reward: {transform: power, power: 2}}, b2: {reward: {transform: power, power: 3}}}
rows:
  apart: {advantage: {ddof: 1}}
"""


def test_effects_of_crossed_axes_are_those_of_a_plain_fit_with_a_dummy_a_seed(tmp_path):
    experiment = replace(written(tmp_path, CROSSED, TESTBED), controls=())
    numbers = np.random.default_rng(0)
    effect = {"a0": 0.0, "a1": 0.2, "b0": 0.0, "b1": 0.1, "b2": -0.1}
    scores = {}
    seeds = numbers.normal(0, 0.3, 5)
    for a in ("a0", "a1"):
        for b in ("b0", "b1", "b2"):
            joint = 0.05 if (a, b) == ("a1", "b1") else 0.0
            scores[f"{a}--{b}"] = (
                1.5 + seeds + effect[a] + effect[b] + joint + numbers.normal(0, 0.01, 5)
            ).tolist()
    found = compare(experiment, table(*(lines(row, own) for row, own in scores.items())))
    assert [(e.axes, e.levels) for e in found.effects] == [
        (("a",), ("a1",)), (("b",), ("b1",)), (("b",), ("b2",)),
        (("a", "b"), ("a1", "b1")), (("a", "b"), ("a1", "b2")),
    ]  # fmt: skip
    data = pd.DataFrame(
        [(*row.split("--"), seed, own[seed]) for row, own in scores.items() for seed in range(5)],
        columns=["a", "b", "seed", "score"],
    )
    fit = smf.ols("score ~ C(a) * C(b) + C(seed)", data).fit()
    interaction = fit.params["C(a)[T.a1]:C(b)[T.b1]"]
    low, high = fit.conf_int().loc["C(a)[T.a1]:C(b)[T.b1]"]
    joint = found.effects[3]
    assert (joint.estimate, joint.low, joint.high) == pytest.approx((interaction, low, high), rel=1e-8)
    means = {row: np.mean(own) for row, own in scores.items()}
    main = np.mean([means[f"a1--{b}"] - means[f"a0--{b}"] for b in ("b0", "b1", "b2")])
    per_seed = np.mean([np.subtract(scores[f"a1--{b}"], scores[f"a0--{b}"]) for b in ("b0", "b1", "b2")], axis=0)
    own = stats.ttest_1samp(per_seed, 0).confidence_interval()
    assert found.effects[0].estimate == pytest.approx(main, rel=1e-10)
    assert (found.effects[0].seed_low, found.effects[0].seed_high) == pytest.approx((own.low, own.high), rel=1e-10)
    assert found.effects[0].low < main < found.effects[0].high
    assert "a1 vs a0 x b1 vs b0" in as_text(found)


TUNED = ROWS + "tune: {learning_rate: [0.1, 0.3, 1.0]}\n"


def test_rows_are_compared_at_the_rate_that_the_tuning_seeds_chose(tmp_path):
    experiment = replace(written(tmp_path, TUNED, TESTBED), controls=())
    first = experiment.first_tuning_seed
    assert first == 8  # after the whole blocks of the main seeds
    parts = [lines("base", BASE), lines("other", MORE)]
    on_tuning = {"base": {0.1: 0.4, 0.3: 0.6, 1.0: 0.5}, "other": {0.1: 0.5, 0.3: 0.5, 1.0: float("nan")}}
    for row, by_rate in on_tuning.items():
        for rate, score in by_rate.items():
            # On the main seeds the opposite rate looks best: they must not choose.
            main = [0.9 - rate / 2 + (row == "other") / 100 + place / 1000 for place in range(8)]
            parts.append(lines(f"{row}@{rate:g}", main, role="rate"))
            parts.append(lines(f"{row}@{rate:g}", [score] * 8, role="tuning", first_seed=first))
    found = compare(experiment, table(*parts))
    base, other = found.tuned
    assert (base.row, base.best, base.at_edge) == ("base", 0.3, False)
    assert (other.row, other.best, other.at_edge) == ("other", 0.1, True)  # of equal ones the smallest
    assert [rate.learning_rate for rate in base.rates] == [0.1, 0.3, 1.0]
    assert [rate.mean for rate in base.rates] == pytest.approx([0.4, 0.6, 0.5])
    assert other.rates[2].failed == 8 and other.rates[2].mean == START  # diverged: the worst
    assert base.result.difference is None
    assert other.result.row == "other@0.1"
    assert other.result.difference.mean == pytest.approx(0.3 / 2 - 0.1 / 2 + 0.01)
    assert [row.row for row in found.rows] == ["base", "other"]  # as stated: the other comparison
    text = as_text(found)
    assert "best" in text and "optimum may lie beyond" in text


def with_everything(experiment):
    claims = (
        {"is": "better", "row": "mean-only", "than": "base"},
        {"is": "exact", "row": "twin", "than": "base"},
        {"is": "exact", "row": "mean-only", "than": "base", "metric": "eval/hurt", "margin": 0.5},
    )
    return with_claims(experiment, *claims, margin=0.01)


def test_records_and_mlflow_give_the_same_comparison_to_the_byte(experiment_of_three, results):
    experiment = with_everything(experiment_of_three)
    from_records = compared(experiment, results)
    log_experiment(experiment, results)
    assert as_json(compared(experiment, results, "mlflow")) == as_json(from_records)
    collect(experiment, results)
    assert as_json(compared(experiment, results, "table")) == as_json(from_records)
    assert from_records.row("twin").twin_of == "base"
    assert any("cannot act: twin = base." in note for note in rows_table(from_records).notes)
    assert {control.id for control in from_records.controls} >= {"control.a-a", "control.random-reward"}


@pytest.fixture
def experiment_of_three(tmp_path, results):
    """The tiny experiment with its controls, and a record of every cell."""
    experiment = written(tmp_path, EXPERIMENT, TESTBED)
    for cell in cells([experiment]):
        write_record(results, cell)
    return experiment


def test_the_tidy_table_says_what_each_line_is_for(tmp_path, results):
    experiment = written(tmp_path, EXPERIMENT + "tune: {learning_rate: [0.1, 0.3]}\n", TESTBED)
    for cell in cells([experiment]):
        write_record(results, cell, diverged={"1": 3} if cell.first_seed == 0 else None)
    runs = tidy(experiment, results).to_pandas()
    seeds = {
        (row, role): sorted(set(part["seed"])) for (row, role), part in runs.groupby(["row", "role"], sort=False)
    }
    main, tuning = [0, 1, 2], [4, 5, 6]  # blocks of two: the main seeds' last block ends with seed 3
    assert seeds == {
        **{(row, "row"): main for row in ("base", "twin", "mean-only")},
        ("control.a-a", "control"): main,
        ("control.random-reward", "control"): main,
        **{
            (f"{row}@{rate}", role): own
            for row in ("base", "twin", "mean-only")
            for rate in (0.1, 0.3)
            for role, own in (("rate", main), ("tuning", tuning))
        },
    }
    assert set(runs.loc[runs["diverged"], "seed"]) == {1}
    log_experiment(experiment, results)
    from_mlflow = tidy(experiment, results, "mlflow").to_pandas()
    pd.testing.assert_frame_equal(from_mlflow, runs, check_exact=True)
    collect(experiment, results)
    summary = pd.read_csv(results / "tables" / "small.csv")
    assert set(summary["row"]) == {"base", "twin", "mean-only"}  # neither controls nor rates


def test_an_edited_record_is_refused_by_name(experiment_of_three, results, monkeypatch, capsys, tmp_path):
    cell = cells([experiment_of_three])[0]
    path = results / cell.folder / "metrics.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(experiment_of_three.path), "--results", str(results)])
    assert ended.value.code == 2
    assert f"{cell.folder}/metrics.parquet: differs from the checksum in run.json" in capsys.readouterr().err
    assert not (results / "tables" / "small-comparison.json").exists()


def test_a_second_comparison_writes_the_same_bytes(experiment_of_three, results):
    experiment = with_everything(experiment_of_three)
    written_twice = []
    for _ in range(2):
        write_compared(experiment, results)
        written_twice.append({path.name: path.read_bytes() for path in (results / "tables").iterdir()})
        assert {f"small{ending}" for ending in FILES} <= written_twice[-1].keys()
        shutil.rmtree(results / "tables")
    assert written_twice[0] == written_twice[1]


def test_the_json_reads_back_as_the_comparison(experiment_of_three, results):
    experiment = with_everything(experiment_of_three)
    found, path = write_compared(experiment, results), results / "tables" / "small-comparison.json"
    read = read_comparison(path)
    assert as_json(read) == as_json(found)
    assert read.rows[2].difference.values == found.rows[2].difference.values
    path.write_text(path.read_text().replace('"rows"', '"lines"', 1))
    with pytest.raises(UserError, match=r"small-comparison.json: is not a comparison"):
        read_comparison(path)


def test_the_csv_holds_the_numbers_of_the_comparison(experiment_of_three, results):
    experiment = with_everything(experiment_of_three)
    found = write_compared(experiment, results)
    line = pd.read_csv(results / "tables" / "small-comparison.csv").set_index("row").loc["mean-only"]
    own = found.row("mean-only")
    assert line["difference_mean"] == own.difference.mean and line["p"] == own.p
    assert line["difference_detectable"] == own.difference.detectable and line["mean"] == own.mean
    claims = pd.read_csv(results / "tables" / "small-claims.csv")
    assert claims["verdict"].tolist() == [claim.verdict for claim in found.claims]


def test_the_command_prints_text_or_json_and_writes_the_tables(experiment_of_three, results, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(experiment_of_three.path), "--results", str(results), "--json"])
    assert ended.value.code in (0, None)
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((results / "tables" / "small-comparison.json").read_text())
    with pytest.raises(SystemExit):
        main(["compare", str(experiment_of_three.path), "--results", str(results)])
    assert "controls" in capsys.readouterr().out
    for ending in FILES:
        assert (results / "tables" / f"small{ending}").exists(), ending


def test_a_partly_finished_grid_is_compared_on_what_there_is(experiment_of_three, results):
    gone = next(c for c in cells([experiment_of_three]) if c.hash == experiment_of_three.row("mean-only").hash)
    shutil.rmtree(results / gone.folder)
    with pytest.raises(UserError, match="--partial"):
        compared(experiment_of_three, results)
    found = compared(experiment_of_three, results, partial=True)
    assert found.row("mean-only").n == 1 and found.row("base").n == 3


def test_without_a_collected_table_the_command_to_make_it_is_named(experiment_of_three, results):
    with pytest.raises(UserError, match=r"small-runs.parquet: is missing; make it with `grpo-ablate collect"):
        compared(experiment_of_three, results, "table")
