"""Intervals, tests and corrections against scipy, rliable, enumeration, hand-worked numbers and simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from rliable import metrics as rliable
from scipy import stats

from grpo_ablate.analysis.sign_flip_bound import seeds_needed
from grpo_ablate.analysis.statistics import (
    area,
    beyond,
    bootstrap_interval,
    detectable,
    equivalence,
    holm,
    improvement_interval,
    interquartile_difference,
    interquartile_mean,
    mean_of,
    one_sided,
    probability_of_improvement,
    ratio_beyond,
    ratio_of_means,
    ratio_within,
    resampled,
    share_won,
    sign_flip,
    wilcoxon,
)

SIZES = (5, 8, 16)


def draws(name: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Differences of mean 0: normal, or skewed (a centred exponential law, skewness 2)."""
    numbers = np.random.default_rng([seed, *shape])
    return numbers.normal(size=shape) if name == "normal" else numbers.exponential(size=shape) - 1


@pytest.mark.parametrize("n", [2, 5, 8, 16, 40])
def test_the_paired_t_test_is_scipys(n):
    numbers = np.random.default_rng(n)
    one, other = numbers.normal(0.1, 1, n), numbers.normal(0, 1, n)
    found, expected = mean_of(one - other), stats.ttest_rel(one, other)
    assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-10)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    for side in (-0.3, 0.0, 0.2):
        greater = stats.ttest_1samp(one - other, side, alternative="greater").pvalue
        assert one_sided(one - other, side) == pytest.approx(greater, rel=1e-10)


def test_a_hand_worked_paired_t_test():
    # Differences 1..5 of five seeds: mean 3, squared deviations 10, sd sqrt(10/4), error sqrt(1/2),
    # t = 3 sqrt 2 = 4.2426 with 4 degrees of freedom; t(.975, 4) = 2.776445 from a printed table.
    found = mean_of([1, 2, 3, 4, 5])
    assert (found.n, found.mean) == (5, 3.0)
    assert found.sd == pytest.approx(2.5**0.5, rel=1e-12)
    assert found.t == pytest.approx(3 * 2**0.5, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((3 - 2.776445 * 0.5**0.5, 3 + 2.776445 * 0.5**0.5), rel=1e-6)
    # With 4 degrees of freedom the tail has a closed form: p = 1 - s (3 - s^2) / 2, s = t / sqrt(t^2 + 4).
    s = found.t / (found.t**2 + 4) ** 0.5
    assert found.p == pytest.approx(1 - s * (3 - s**2) / 2, rel=1e-10)


def test_one_value_has_no_interval_and_no_p():
    found = mean_of([0.5])
    assert (found.n, found.mean) == (1, 0.5)
    assert all(math.isnan(number) for number in (found.sd, found.low, found.high, found.t, found.p))
    assert math.isnan(one_sided([0.5])) and math.isnan(equivalence([0.5], 1.0)) and math.isnan(beyond([0.5], 1))
    assert math.isnan(detectable(1.0, 1)) and mean_of([]).n == 0
    assert sign_flip([0.5]) == 1.0 and wilcoxon([0.5]) == 1.0


def test_differences_without_spread_are_certain_or_nothing():
    nothing, certain = mean_of([0.0] * 5), mean_of([0.1] * 5)  # 0.1 is not exact: no rounding may look like spread
    assert (nothing.sd, nothing.low, nothing.high, nothing.p) == (0, 0, 0, 1)
    assert (certain.sd, certain.low, certain.high, certain.p) == (0, 0.1, 0.1, 0)
    assert sign_flip([0.0] * 5) == 1 and wilcoxon([0.0] * 5) == 1 and share_won([0.0] * 5) == 0.5
    assert equivalence([0.0] * 5, 0.1) == 0 and equivalence([0.2] * 5, 0.1) == 1 and beyond([0.2] * 5, 0.1) == 0


@pytest.mark.parametrize("n", range(1, 11))
def test_the_sign_flip_test_is_the_enumeration_of_all_signs(n):
    differences = np.random.default_rng(n).normal(0.4, 1, n).round(1)  # rounded: some sums tie
    exact = [Fraction(str(number)) for number in differences]
    sums = [
        abs(sum(s * d for s, d in zip(signs, exact, strict=True)))
        for signs in itertools.product((1, -1), repeat=n)
    ]
    expected = sum(total >= abs(sum(exact)) for total in sums) / 2**n
    assert sign_flip(differences) == pytest.approx(expected, abs=1e-15)


def test_the_sign_flip_test_is_scipys_permutation_test():
    differences = np.random.default_rng(3).normal(0.3, 1, 12)
    expected = stats.permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert sign_flip(differences) == pytest.approx(expected.pvalue, rel=1e-10)


def test_sampled_signs_agree_with_all_of_them_and_are_seeded():
    differences = np.random.default_rng(5).normal(0.3, 1, 17)
    sums = np.array([0.0])
    for number in differences:
        sums = np.concatenate([sums + number, sums - number])
    exact = float((np.abs(sums) >= abs(differences.sum()) - 1e-12).mean())
    found = sign_flip(differences)
    assert found == sign_flip(differences) and found != sign_flip(differences, seed=1)
    assert abs(found - exact) < 4 * (exact * (1 - exact) / 100_000) ** 0.5 + 2e-5
    assert sign_flip(np.ones(30)) == pytest.approx(1 / 100_001)  # never 0


def test_wilcoxon_is_scipys():
    differences = np.random.default_rng(7).normal(0.3, 1, 14)
    assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences).pvalue, rel=1e-10)


def test_holm_by_hand_and_by_statsmodels():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02, float("nan"), 0.01])[0] == pytest.approx(0.04)  # of three: .01 x 3, .02 x 2
    assert holm([0.02, float("nan"), 0.01])[2] == pytest.approx(0.03)
    assert math.isnan(holm([0.02, float("nan")])[1]) and holm([]) == []
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(0).random(25) ** 3
    assert holm(p.tolist()) == pytest.approx(multipletests(p, method="holm")[1].tolist(), rel=1e-10)


def test_equivalence_is_two_one_sided_tests():
    from statsmodels.stats.weightstats import DescrStatsW

    differences = np.random.default_rng(1).normal(0.05, 0.2, 12)
    expected = DescrStatsW(differences).ttost_mean(-0.2, 0.2)[0]
    assert equivalence(differences, 0.2) == pytest.approx(expected, rel=1e-10)
    # At level .05 it says what the 90 % interval says.
    for margin in np.linspace(0.01, 0.5, 30):
        inside = mean_of(differences, 0.9)
        assert (equivalence(differences, margin) < 0.05) == (-margin < inside.low and inside.high < margin)


def test_beyond_the_margin_is_the_interval_outside_it():
    differences = np.random.default_rng(2).normal(0.5, 0.3, 10)
    whole = mean_of(differences)
    for margin in np.linspace(0.05, 0.8, 30):
        assert (beyond(differences, margin) < 0.05) == (whole.low > margin or whole.high < -margin)


@pytest.mark.parametrize("family", [1, 4])
def test_the_detectable_effect_is_found_with_its_power(family):
    n, sd, repetitions = 8, 2.0, 20_000
    effect = detectable(sd, n, family)
    t = stats.t.ppf([1 - 0.05 / (2 * family), 0.8], n - 1).sum()
    assert effect == pytest.approx(t * sd / n**0.5, rel=1e-10)
    drawn = draws("normal", (repetitions, n)) * sd + effect
    p = stats.ttest_1samp(drawn, 0, axis=1).pvalue
    # The formula takes the shifted t for the noncentral one: two points of power at 8 seeds.
    assert abs((p < 0.05 / family).mean() - 0.8) < 0.04


def test_fiellers_interval_holds_the_ratios_that_a_t_test_does_not_reject():
    numbers = np.random.default_rng(4)
    x, y = numbers.normal(3, 0.5, 9), numbers.normal(2, 0.5, 9)
    found = ratio_of_means(x, y)
    assert found.ratio == pytest.approx(x.mean() / y.mean(), rel=1e-12)
    for bound in (found.low, found.high):
        assert stats.ttest_1samp(x - bound * y, 0).pvalue == pytest.approx(0.05, rel=1e-8)
    assert found.low < found.ratio < found.high


def test_a_ratio_to_nothing_has_no_bound():
    found = ratio_of_means([1.0, 2.0, 3.0], [-1.0, 1.0, 0.5])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert math.isnan(ratio_of_means([1.0, 2.0], [1.0, -1.0]).ratio)
    assert math.isnan(ratio_of_means([1.0], [2.0]).low) and ratio_of_means([1.0], [2.0]).ratio == 0.5


def test_fiellers_interval_covers_the_truth():
    drawn = np.random.default_rng(6).normal([3.0, 2.0], [0.6, 0.4], (4000, 6, 2))
    intervals = [ratio_of_means(pairs[:, 0], pairs[:, 1]) for pairs in drawn]
    covered = np.mean([found.low <= 1.5 <= found.high for found in intervals])
    assert abs(covered - 0.95) < 4 * (0.95 * 0.05 / 4000) ** 0.5


@pytest.mark.parametrize("sign", [1, -1])
def test_a_ratio_within_its_margin_is_one_whose_90_percent_interval_is(sign):
    numbers = np.random.default_rng(8)
    y = sign * numbers.normal(2, 0.1, 10)
    x = 1.5 * y + numbers.normal(0, 0.1, 10)
    interval, whole = ratio_of_means(x, y, 0.9), ratio_of_means(x, y)
    for margin in np.linspace(0.001, 0.2, 40):
        inside = 1.5 - margin < interval.low and interval.high < 1.5 + margin
        assert (ratio_within(x, y, 1.5, margin) < 0.05) == inside
        outside = whole.low > 1.3 + margin or whole.high < 1.3 - margin
        assert (ratio_beyond(x, y, 1.3, margin) < 0.05) == outside


@pytest.mark.parametrize("claims", [1, 2, 3, 10, 40])
def test_fewer_seeds_than_the_bound_can_not_reach_alpha_and_the_bound_can(claims):
    n = seeds_needed(claims)
    assert n == math.ceil(math.log2(2 * claims / 0.05))
    assert claims * sign_flip(np.arange(1.0, n + 1)) <= 0.05 < claims * sign_flip(np.arange(1.0, n))


def test_share_won_counts_a_tie_half():
    assert share_won([1, -1, 0, 0]) == 0.5 and share_won([3, 2, -1, 0]) == 0.625


def test_the_area_of_known_curves():
    x = np.linspace(0, 12800, 17)
    assert area(x, 0.3 + 0.5 * x / 12800) == pytest.approx(0.55, rel=1e-12)  # a line: its middle
    assert area([0, 1, 3], [0, 1, 1]) == pytest.approx((0.5 + 2) / 3, rel=1e-12)  # unequal steps
    quadratic = np.linspace(0, 1, 1001)
    assert area(quadratic, quadratic**2) == pytest.approx(1 / 3, abs=1e-6)
    assert area([5], [0.7]) == 0.7 and math.isnan(area([0, 1], [0, math.nan]))


@pytest.mark.parametrize("sizes", [(8,), (8, 8, 8), (5, 5)])
def test_interquartile_mean_and_probability_of_improvement_are_rliables(sizes):
    numbers = np.random.default_rng(len(sizes))
    first = [numbers.normal(0.3, 1, n).round(1) for n in sizes]  # rounded: ties
    second = [numbers.normal(0, 1, n).round(1) for n in sizes]
    theirs = [np.array(side).T for side in (first, second)]
    assert interquartile_mean(first) == pytest.approx(rliable.aggregate_iqm(theirs[0]), rel=1e-10)
    expected = rliable.probability_of_improvement(*theirs)
    assert probability_of_improvement(first, second) == pytest.approx(expected, rel=1e-10)


def test_the_stratified_bootstrap_is_rliables_on_the_same_resamples():
    numbers = np.random.default_rng(9)
    first, second = ([numbers.normal(shift, 1, n) for n in (6, 6)] for shift in (0.5, 0.0))
    drawn = resampled([6, 6], 300)
    resamples = [
        [np.stack([side[s][drawn[s][r]] for s in range(2)], axis=1) for side in (first, second)]
        for r in range(300)
    ]
    chances = [rliable.probability_of_improvement(*pair) for pair in resamples]
    assert improvement_interval(first, second, resamples=300) == pytest.approx(
        np.quantile(chances, [0.025, 0.975]), rel=1e-10
    )
    gaps = [rliable.aggregate_iqm(a) - rliable.aggregate_iqm(b) for a, b in resamples]
    found = interquartile_difference(first, second, resamples=300)
    assert found[1:] == pytest.approx(np.quantile(gaps, [0.025, 0.975]), rel=1e-10)
    assert found[0] == pytest.approx(interquartile_mean(first) - interquartile_mean(second), rel=1e-12)


def test_strata_may_differ_in_size():
    first, second = [[1.0, 2.0, 3.0], [5.0] * 8], [[0.0, 2.0, 4.0], [4.0] * 8]
    # Against (0, 2, 4): 1 beats one of three, 2 one and a tie, 3 two: 4.5 of 9; in the second stratum all.
    assert probability_of_improvement(first, second) == pytest.approx((0.5 + 1) / 2)
    low, high = improvement_interval(first, second)
    assert low < 0.75 < high <= 1.0


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("law", ["normal", "skewed"])
def test_the_t_interval_covers_as_it_says(law, n):
    """Within Monte Carlo error for normal differences; for skewed ones the known loss is pinned."""
    repetitions = 20_000
    drawn = draws(law, (repetitions, n))
    found = np.array([(m.low <= 0 <= m.high) for m in map(mean_of, drawn)]).mean()
    error = 4 * (0.95 * 0.05 / repetitions) ** 0.5
    expected = {"normal": {5: 0.95, 8: 0.95, 16: 0.95}, "skewed": {5: 0.884, 8: 0.891, 16: 0.916}}[law][n]
    assert abs(found - expected) < error


@pytest.mark.parametrize(("n", "expected"), [(5, 0.84), (20, 0.93)])
def test_the_bootstrap_interval_is_no_primary_interval_under_20_seeds(n, expected):
    drawn = draws("normal", (800, n))
    covered = np.mean([low <= 0 <= high for low, high in map(bootstrap_interval, drawn)])
    assert abs(covered - expected) < 4 * (expected * (1 - expected) / 800) ** 0.5 + 0.005


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("law", ["normal", "skewed"])
def test_the_family_wise_error_under_the_null_is_alpha(law, n):
    """Four claims, no effect: any false verdict. Sign-flip holds it for every symmetric law, t for normal ones."""
    repetitions, claims = 4000, 4
    drawn = draws(law, (repetitions * claims, n), seed=1)
    if law == "skewed":  # a difference of two rows that are alike is symmetric, however skewed the scores
        drawn = drawn - draws(law, (repetitions * claims, n), seed=2)
    error = 4 * (0.05 * 0.95 / repetitions) ** 0.5
    tests = {"t": lambda values: mean_of(values).p, "sign flip": sign_flip if n < 16 else None}
    for name, test in tests.items():
        if test is None:
            continue
        p = np.array([test(values) for values in drawn]).reshape(repetitions, claims)
        wrong = np.mean([min(holm(line.tolist())) <= 0.05 for line in p])
        assert wrong < 0.05 + error, name
        if name == "t" and law == "normal":
            assert wrong > 0.05 - error
