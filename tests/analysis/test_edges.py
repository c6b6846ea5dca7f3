"""Comparisons at the edges: no sound run, metrics that do not apply, rounding, margins of another metric."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tidy_runs import BASE, START, above, lines, table, with_claims

from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.compare_tables import comparison_files, rows_table, verdict
from grpo_ablate.analysis.compare_text import as_text
from grpo_ablate.analysis.comparison import as_json, read_comparison
from grpo_ablate.analysis.notes import Changes

NAN = float("nan")


@pytest.mark.parametrize("ruined", ["other", "base"])
def test_a_row_that_diverges_early_on_every_seed_is_compared_at_the_floor(three_rows, ruined):
    """Its runs stopped at half of the budget, which is no reason to call the experiment unfair."""
    runs = table(lines("base", BASE), lines("other", above(0.05)))
    own = runs["row"] == ruined
    runs.loc[own & (runs["round"] > 0), "eval/reward"] = NAN
    runs.loc[own, "diverged"] = True
    found = compare(three_rows, runs[~(own & (runs["round"] > 4))])
    assert found.row(ruined).failed == tuple(range(8)) and found.row(ruined).mean == START
    assert found.row("other").verdict == ("lower" if ruined == "other" else "higher")
    assert len(found.failures) == 8


def test_a_metric_that_does_not_apply_to_a_row_is_not_measured_and_no_failure(three_rows):
    runs = table(lines("base", BASE), lines("other", BASE))
    runs.loc[runs["row"] == "other", "eval/reward"] = NAN
    found = compare(three_rows, runs)
    assert found.row("other").verdict == "not measured" and found.row("other").n == 0
    assert found.failures == () and found.row("other").failed == ()


def test_failed_runs_have_no_score_on_a_metric_whose_lowest_value_is_not_its_worst(three_rows):
    asked = with_claims(
        three_rows, {"is": "better", "row": "other", "than": "base", "metric": "eval/kl"}, metric="eval/kl"
    )
    more = {"base": BASE, "other": [*above(0.05)[:7], NAN]}
    runs = table(*(lines(row, BASE, more={"eval/kl": own}) for row, own in more.items()))
    runs.loc[(runs["row"] == "other") & (runs["seed"] == 7), "diverged"] = True
    found = compare(asked, runs)
    assert found.row("other").n == 7 and found.row("other").failed == (7,) and math.isnan(found.floor)
    assert "1 failed left out" in found.claims[0].words and found.claims[0].verdict == "supported"
    assert any("are left out" in note for note in rows_table(found).notes)


def test_differences_of_rounding_are_ties(three_rows):
    base = np.array(BASE)
    near = (base * (1 + 2.3e-16 * np.array([1, 2, 1, 3, 1, 2, 1, 1]))).tolist()
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    found = compare(asked, table(lines("base", BASE), lines("other", near)))
    assert near != BASE and found.row("other").difference.ties == 8
    assert found.claims[0].p == 1 and found.claims[0].words.startswith("equal scores on every seed")
    small = compare(asked, table(lines("base", BASE), lines("other", (base * (1 + 1e-13)).tolist())))
    assert small.row("other").difference.ties == 0


def test_the_margin_of_the_file_is_not_one_of_another_metric(three_rows):
    asked = with_claims(
        three_rows,
        {"is": "worse", "row": "other", "than": "base", "metric": "eval/kl"},
        {"is": "worse", "row": "other", "than": "base", "metric": "eval/kl", "margin": 0.02},
        margin=0.02,
    )
    kl = {"base": [score / 50 for score in BASE], "other": [score / 100 for score in BASE]}
    runs = table(*(lines(row, BASE, more={"eval/kl": own}) for row, own in kl.items()))
    found = compare(asked, runs)
    assert [claim.verdict for claim in found.claims] == ["supported", "equivalent"]
    assert math.isnan(found.claims[0].margin) and found.row("other").verdict == "equal scores on every seed"


def test_a_row_says_of_itself_what_its_claims_say(three_rows):
    """The uncorrected interval alone would call it equivalent; the family of five does not."""
    noise = np.tile([0.022, -0.022], 4)
    noisy = (np.array(BASE) + noise).tolist()
    claims = [{"is": "equivalent", "row": "other", "than": "base", "margin": 0.02}]
    others = [{"is": "better", "row": "third", "than": "other"}] * 4
    runs = table(lines("base", BASE), lines("other", noisy), lines("third", BASE))
    alone = compare(with_claims(three_rows, margin=0.02), runs).row("other")
    assert alone.verdict == "equivalent within ±0.02"
    found = compare(with_claims(three_rows, *claims, *others, margin=0.02), runs)
    assert found.claims[0].verdict == "inconclusive" and found.row("other").verdict.startswith("inconclusive")
    near = table(lines("base", BASE), lines("other", above(0.0)))
    found = compare(with_claims(three_rows, *claims, margin=0.001), near)
    assert found.claims[0].verdict == "supported" and found.row("other").verdict == "equivalent within ±0.02"


def test_a_claim_turned_round_also_speaks_of_the_row(three_rows):
    asked = with_claims(three_rows, {"is": "worse", "row": "base", "than": "other"})
    found = compare(asked, table(lines("base", BASE), lines("other", above(0.05))))
    assert found.claims[0].verdict == "supported" and found.row("other").verdict == "higher"
    assert found.row("other").p == found.claims[0].p


def test_unbounded_intervals_survive_the_json(three_rows, tmp_path):
    asked = with_claims(three_rows, {"is": "ratio", "row": "other", "than": "base", "value": 1, "margin": 0.1})
    around_zero = np.random.default_rng(0).normal(0, 1, 8).tolist()
    found = compare(asked, table(lines("base", around_zero), lines("other", BASE)))
    assert found.claims[0].ratio_low == -math.inf and found.claims[0].ratio_high == math.inf
    (tmp_path / "x.json").write_bytes(as_json(found))
    read = read_comparison(tmp_path / "x.json")
    assert (read.claims[0].ratio_low, read.claims[0].ratio_high) == (-math.inf, math.inf)
    assert as_json(read) == as_json(found)


def test_what_would_have_been_seen_is_said_once_and_of_a_ratio_as_a_ratio(three_rows):
    asked = with_claims(
        three_rows,
        {"is": "better", "row": "other", "than": "base"},
        {"is": "ratio", "row": "other", "than": "base", "value": 1.0, "margin": 0.0001},
    )
    found = compare(asked, table(lines("base", BASE), lines("other", above(0.0))))
    better, ratio = found.claims
    assert f"a ratio {better.difference.detectable / np.mean(BASE):.3g} from 1 would have been seen" in ratio.words
    assert verdict(ratio).startswith("inconclusive") and "seen" not in verdict(ratio)
    text = " ".join(as_text(found).split("claims (")[1].split())
    assert text.count("would have been seen") == 2


def test_partial_tables_say_so_and_count_the_seeds_of_each_row(three_rows):
    runs = table(lines("base", BASE), lines("other", above(0.0)[:5]))
    found = compare(three_rows, runs, partial="Partial: 13 of 24 runs.")
    assert "Partial: 13 of 24 runs." in as_text(found)
    shown = rows_table(found)
    assert [line[shown.header.index("n")] for line in shown.rows] == ["8", "5"]
    assert "n" not in rows_table(compare(three_rows, table(lines("base", BASE)))).header


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_huge_scores_are_compared_without_a_warning(three_rows):
    compare(three_rows, table(lines("base", BASE), lines("other", [1e308] * 8)))


def test_an_interval_that_excludes_0_does_not_look_as_if_it_held_it(three_rows):
    """Its lower bound is .00003, where three decimals are shown."""
    gaps = np.tile([0.01, -0.01], 4)
    half = stats.t.ppf(0.975, 7) * gaps.std(ddof=1) / 8**0.5
    own = (np.array(BASE) + gaps + half + 3e-5).tolist()
    found = compare(three_rows, table(lines("base", BASE), lines("other", own)))
    shown = rows_table(found)
    row = dict(zip(shown.header, shown.rows[1], strict=True))
    assert row["Verdict"] == "higher" and row["95 % interval"].startswith("[0.00003, 0.0")
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    words = compare(asked, table(lines("base", BASE), lines("other", own))).claims[0].words
    assert words.startswith("higher; +0.00897 [0.00003, 0.0179")


def test_a_claim_decided_on_after_a_look_says_so_wherever_its_verdict_stands(three_rows):
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    late = Changes(claims=(("claim-0", "added"), ("gone", "dropped")))
    found = compare(asked, table(lines("base", BASE), lines("other", above(0.05))), changes=late)
    said = "the claim was added after a look at results"
    assert found.claims[0].verdict == "supported" and said in verdict(found.claims[0])
    assert said in " ".join(as_text(found).split())
    files = {ending: content.decode() for ending, content in comparison_files(found).items()}
    for ending in ("md", "tex", "typ"):
        assert said in files[f"-claims.{ending}"]
        for part in ("comparison", "claims"):
            for note in ("The claim claim-0 was added", "The claim gone was dropped"):
                assert f"{note} after a look at results." in files[f"-{part}.{ending}"]
    assert ",added after a look at results," in files["-claims.csv"]
    whole = compare(asked, table(lines("base", BASE), lines("other", above(0.05))))
    assert not any("after a look" in content.decode() for content in comparison_files(whole).values())
