"""Verdicts of every kind of claim, and what becomes of them at the edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tidy_runs import BASE, NOISE, above, lines, table, with_claims

from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.compare_tables import claims_table, rows_table
from grpo_ablate.analysis.compare_text import as_text
from grpo_ablate.analysis.statistics import detectable, mean_of
from grpo_ablate.analysis.tables import MINUS


def judged(experiment, test, other, *, margin=None, base=BASE, **more):
    """The verdict on one claim about the row other, whose scores are given."""
    asked = with_claims(experiment, {"row": "other", "than": "base", **test}, margin=margin)
    found = compare(asked, table(lines("base", base), lines("other", other, **more)))
    return found.claims[0]


@pytest.mark.parametrize(
    ("kind", "amount", "verdict"),
    [("better", 0.05, "supported"), ("better", -0.05, "contradicted"), ("better", 0.0, "inconclusive"),
     ("worse", -0.05, "supported"), ("worse", 0.05, "contradicted"), ("worse", 0.0, "inconclusive")],
)  # fmt: skip
def test_better_and_worse_follow_the_paired_t_test(three_rows, kind, amount, verdict):
    found = judged(three_rows, {"is": kind}, above(amount))
    p = stats.ttest_rel(above(amount), BASE).pvalue
    assert found.verdict == verdict and found.p == pytest.approx(p, rel=1e-9) and (p <= 0.05) == (amount != 0)
    assert found.tests.sign_flip == pytest.approx(
        stats.permutation_test(
            (np.subtract(above(amount), BASE),), np.mean, permutation_type="samples", n_resamples=np.inf
        ).pvalue
    )
    assert found.tests.wilcoxon == pytest.approx(stats.wilcoxon(np.subtract(above(amount), BASE)).pvalue)


def test_an_inconclusive_claim_says_what_would_have_been_seen(three_rows):
    found = judged(three_rows, {"is": "better"}, above(0.0))
    gap = mean_of(np.subtract(above(0.0), BASE))
    assert found.difference.detectable == pytest.approx(detectable(gap.sd, 8, family=1), rel=1e-12)
    assert f"an effect of {found.difference.detectable:.3g} would have been seen" in found.words


@pytest.mark.parametrize(
    ("amount", "margin", "verdict"),
    [(0.0, 0.02, "equivalent"), (0.0, 0.0001, "inconclusive"), (0.05, 0.02, "supported"),
     (0.015, 0.05, "equivalent"), (-0.015, 0.05, "equivalent")],
)  # fmt: skip
def test_differences_inside_the_margin_do_not_matter(three_rows, amount, margin, verdict):
    """The last two are surely not zero, and surely of no matter."""
    found = judged(three_rows, {"is": "better"}, above(amount), margin=margin)
    assert found.verdict == verdict
    assert judged(three_rows, {"is": "better", "margin": margin}, above(amount)).verdict == verdict


@pytest.mark.parametrize(
    ("amount", "margin", "verdict"),
    [(0.0, 0.02, "supported"), (0.0, 0.001, "inconclusive"), (0.05, 0.02, "contradicted"),
     (-0.05, 0.02, "contradicted"), (0.02, 0.0201, "inconclusive")],
)  # fmt: skip
def test_equivalence_is_claimed_and_judged_against_its_margin(three_rows, amount, margin, verdict):
    found = judged(three_rows, {"is": "equivalent", "margin": margin}, above(amount))
    assert found.verdict == verdict
    gap = np.subtract(above(amount), BASE)
    if verdict == "supported":
        p = max(
            stats.ttest_1samp(gap, -margin, alternative="greater").pvalue,
            stats.ttest_1samp(gap, margin, alternative="less").pvalue,
        )
        assert found.p == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "margin", "verdict"),
    [
        (1.1, 0.05, "supported"),
        (1.1, 0.0001, "inconclusive"),
        (1.3, 0.05, "contradicted"),
        (1.0, 0.02, "contradicted"),
    ],
)
def test_a_ratio_is_judged_against_the_stated_one(three_rows, value, margin, verdict):
    other = (np.array(BASE) * 1.1 + NOISE / 4).tolist()
    found = judged(three_rows, {"is": "ratio", "value": value, "margin": margin}, other)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(np.mean(other) / np.mean(BASE), rel=1e-12)
    assert found.ratio_low < found.ratio < found.ratio_high


def test_a_ratio_to_a_row_of_zeros_is_not_judged(three_rows):
    found = judged(three_rows, {"is": "ratio", "value": 2, "margin": 0.1}, [0.0] * 8, base=[0.0] * 8)
    assert found.verdict == "inconclusive" and "does not exist" in found.words


def test_exact_means_the_same_parameters_or_histories_within_the_margin(three_rows):
    same = judged(three_rows, {"is": "exact"}, BASE, parameters="of base")
    assert (same.verdict, same.words) == ("supported", "parameters bit-identical on every seed")
    assert math.isnan(same.p) and same.tests is None and same.n == 8
    rounding = [score + 1e-13 for score in BASE]
    assert judged(three_rows, {"is": "exact"}, rounding).verdict == "contradicted"
    found = judged(three_rows, {"is": "exact"}, BASE)  # the scores are equal, the parameters are not
    assert found.verdict == "contradicted" and found.words.startswith("parameters differ")
    assert judged(three_rows, {"is": "exact", "margin": 1e-12}, rounding).verdict == "supported"
    assert judged(three_rows, {"is": "exact", "margin": 1e-14}, rounding).verdict == "contradicted"


def test_two_names_of_one_run_say_so(three_rows):
    base, other, third = three_rows.rows
    twins = replace(three_rows, rows=(base, replace(base, id=other.id), third))
    found = judged(twins, {"is": "exact"}, BASE, parameters="of base")
    assert (found.verdict, found.words) == ("supported", "one run under both names: no switch of theirs acts")


def test_an_equivalence_whose_interval_excludes_zero_says_so(three_rows):
    near = [score + 0.004 + 1e-4 * index for index, score in enumerate(BASE)]
    found = judged(three_rows, {"is": "equivalent", "margin": 0.02}, near)
    assert found.verdict == "supported" and "within the margin, though its interval excludes 0" in found.words


def test_exact_without_known_parameters_goes_by_every_evaluation(three_rows):
    asked = with_claims(three_rows, {"is": "exact", "row": "other", "than": "base"})
    runs = table(lines("base", BASE), lines("other", BASE))
    runs["parameters"] = ""
    assert compare(asked, runs).claims[0].verdict == "supported"
    early = (runs["row"] == "other") & (runs["seed"] == 3) & (runs["round"] == 0)
    runs.loc[early, "eval/reward"] += 1e-9
    assert compare(asked, runs).claims[0].verdict == "contradicted"
    runs.loc[early, "eval/reward"] = float("nan")
    assert compare(asked, runs).claims[0].verdict == "contradicted"
    assert compare(asked, runs[~early]).claims[0].verdict == "contradicted"  # an evaluation is missing


def test_one_seed_says_nothing_of_chance(three_rows):
    found = judged(three_rows, {"is": "better"}, [0.9], base=[0.1])
    assert found.verdict == "inconclusive" and found.words == "one seed tells nothing of chance" and found.n == 1


def test_a_row_without_runs_leaves_its_claim_open(three_rows):
    asked = with_claims(
        three_rows,
        {"is": "better", "row": "third", "than": "base"},
        {"is": "exact", "row": "third", "than": "base"},
    )
    found = compare(asked, table(lines("base", BASE)))
    assert [claim.verdict for claim in found.claims] == ["inconclusive"] * 2
    assert found.claims[0].words == "no seed was measured in both rows"


def test_equal_scores_are_no_difference_and_equivalent_within_any_margin(three_rows):
    found = judged(three_rows, {"is": "better"}, BASE)
    assert found.verdict == "inconclusive" and found.p == 1 and found.tests.sign_flip == found.tests.wilcoxon == 1
    assert judged(three_rows, {"is": "better"}, BASE, margin=1e-9).verdict == "equivalent"
    assert judged(three_rows, {"is": "equivalent", "margin": 1e-9}, BASE).verdict == "supported"


def test_a_difference_without_spread_is_established(three_rows):
    found = judged(three_rows, {"is": "better"}, [0.75] * 8, base=[0.5] * 8)
    assert found.verdict == "supported" and found.p == 0 and found.difference.sd == 0
    assert found.tests.sign_flip == 2 / 2**8


def test_a_diverged_run_counts_against_the_row_that_it_belongs_to(three_rows):
    sound = judged(three_rows, {"is": "better"}, above(0.02))
    broken = judged(three_rows, {"is": "better"}, [*above(0.02)[:7], float("nan")])
    assert sound.verdict == "supported" and broken.verdict == "inconclusive" and broken.n == 8


def test_missing_seeds_are_not_paired_with_others(three_rows):
    found = judged(three_rows, {"is": "better"}, above(0.05)[3:], first_seed=3)
    assert found.difference.seeds == (3, 4, 5, 6, 7)
    assert found.difference.values == pytest.approx(NOISE[3:] + 0.05)


def test_a_claim_may_ask_for_another_metric(three_rows):
    asked = with_claims(
        three_rows,
        {"is": "better", "row": "other", "than": "base", "metric": "eval/entropy"},
        {"is": "better", "row": "other", "than": "base", "metric": "eval/kl"},
    )
    more = {"base": {"eval/entropy": BASE}, "other": {"eval/entropy": above(0.05)}}
    runs = table(*(lines(row, BASE, more=own) for row, own in more.items()))
    entropy, unmeasured = compare(asked, runs).claims
    assert entropy.verdict == "supported" and entropy.metric == "eval/entropy"
    assert unmeasured.verdict == "inconclusive" and unmeasured.n == 0
    assert math.isnan(compare(asked, runs).row("other").p)  # a claim on another metric gives the row no p


def test_the_family_is_all_claims_of_the_file(three_rows):
    """By hand: p1 < p2 of a family of four, one of them exact: Holm multiplies by 4, then 3."""
    third = (np.array(BASE) + NOISE[::-1] + 0.012).tolist()
    asked = with_claims(
        three_rows,
        {"is": "better", "row": "other", "than": "base"},
        {"is": "better", "row": "third", "than": "base"},
        {"is": "exact", "row": "third", "than": "base"},
        {"is": "worse", "row": "third", "than": "other"},
    )
    found = compare(asked, table(lines("base", BASE), lines("other", above(0.05)), lines("third", third)))
    raw = [
        stats.ttest_rel(above(0.05), BASE).pvalue, stats.ttest_rel(third, BASE).pvalue,
        stats.ttest_rel(third, above(0.05)).pvalue,
    ]  # fmt: skip
    order = np.argsort(raw)
    expected, largest = [0.0] * 3, 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (4 - rank) * raw[place]))
        expected[place] = largest
    statistical = [found.claims[place] for place in (0, 1, 3)]
    assert [claim.p for claim in statistical] == pytest.approx(expected, rel=1e-9)
    assert found.family == 4 and "4 claims" in " ".join(claims_table(found).notes)
    assert found.row("other").p == statistical[0].p and found.row("third").p == statistical[1].p
    assert found.row("other").claims == ("claim-0", "claim-3")
    assert found.row("third").difference.detectable == pytest.approx(
        detectable(found.row("third").difference.sd, 8, family=4)
    )


def test_rows_that_no_claim_compares_with_the_baseline_have_no_p(three_rows):
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    found = compare(asked, table(lines("base", BASE), lines("other", above(0.05)), lines("third", above(0.02))))
    header, *_ = rows_table(found).header, None
    place = header.index("p")
    assert [line[place] != "" for line in rows_table(found).rows] == [False, True, False]
    assert "p" not in rows_table(replace(found, rows=(found.rows[0], found.rows[2]))).header


@pytest.mark.parametrize(("seeds", "reaches"), [(5, False), (6, True)])
def test_too_few_seeds_for_a_sign_flip_test_are_marked(three_rows, seeds, reaches):
    found = judged(three_rows, {"is": "better"}, above(0.05)[:seeds], base=BASE[:seeds])
    assert found.sign_flip_reaches == reaches  # 2/2^5 > .05 >= 2/2^6
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    whole = compare(asked, table(lines("base", BASE[:seeds]), lines("other", above(0.05)[:seeds])))
    shown = claims_table(whole)
    assert ("‡" in shown.rows[0][-1]) != reaches
    assert any("fewer than 6 seeds" in note for note in shown.notes) != reaches


def test_the_text_shows_statement_source_test_and_verdict(three_rows):
    asked = with_claims(three_rows, {"is": "better", "row": "other", "than": "base"})
    text = as_text(compare(asked, table(lines("base", BASE), lines("other", above(-0.05)))))
    assert "claim-0: It holds (nobody)" in text and "other > base, eval/reward" in text
    assert f"CONTRADICTED: lower; {MINUS}0.0" in text


@pytest.mark.slow
def test_verdicts_on_rows_that_do_not_differ_are_wrong_one_time_in_twenty_files(three_rows):
    """The whole way: three claims on rows of equal law; a file is wrong if any is supported or contradicted."""
    numbers, wrong, repetitions = np.random.default_rng(1), 0, 300
    asked = with_claims(
        three_rows,
        {"is": "better", "row": "other", "than": "base"},
        {"is": "worse", "row": "third", "than": "base"},
        {"is": "better", "row": "third", "than": "other"},
    )
    for _ in range(repetitions):
        rows = {name: numbers.normal(0.6, 0.02, 8).tolist() for name in ("base", "other", "third")}
        found = compare(asked, table(*(lines(name, scores) for name, scores in rows.items())))
        wrong += any(claim.verdict != "inconclusive" for claim in found.claims)
    assert wrong / repetitions < 0.05 + 3 * (0.05 * 0.95 / repetitions) ** 0.5
    assert wrong > 0
