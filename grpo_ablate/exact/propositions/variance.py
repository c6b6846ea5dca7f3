"""Baselines and the variance of the update: who is lowest, and where the group mean raises it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_ablate.exact.propositions.cases import (
    GROUP_STD,
    LEAVE_ONE_OUT,
    MEAN_ONLY,
    NO_BASELINE,
    binomial,
    coin,
    constant,
    random_policy,
    row,
    spread,
)
from grpo_ablate.exact.propositions.findings import Finding, equals, exceeds, falls_below
from grpo_ablate.exact.quantities import expected_reward, variance_minimising_baseline
from grpo_ablate.exact.update import expected_update

TITLE = "Baselines and variance"
STATEMENT = (
    "One prompt with two answers, rewards 0 and 1 with chance p, full scores, on policy, variance as trace: "
    "the variance-minimising scalar baseline is 1 - p and leaves no variance at all. Leave-one-out has more "
    "variance than no baseline where p > (2G - 4)/(3G - 5), which for G = 2 is everywhere; the expected "
    "reward where p > 2/3."
)
SUCCESSES = (0.05, 0.3, 0.5, 0.8, 0.95)
SIZES = (2, 8)


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for size in SIZES:
        for p in SUCCESSES:
            yield from _closed_forms(p, size)
    yield from _thresholds()
    yield from _scalar()


def trace(success: float, size: int, advantage: dict[str, Any]) -> float:
    """Return the variance of the update of one group by enumeration."""
    return expected_update(coin(success), row(size, advantage)).variance


def _closed_forms(p: float, size: int) -> Iterator[Finding]:
    case, q = f"p = {p}, G = {size}", 1 - p
    # The score of both answers is (R - p) (1, -1): updates lie on a line, and variances are those of a number.
    yield equals(
        f"none, {case}", "variance", trace(p, size, NO_BASELINE), 2 * p * q**3 / size, "2 p (1 - p)^3 / G"
    )
    centred = trace(p, size, constant(p))
    source = "2 p (1 - p) (1 - 2 p)^2 / G"
    yield equals(f"expected reward, {case}", "variance", centred, 2 * p * q * (1 - 2 * p) ** 2 / size, source)
    best = variance_minimising_baseline(coin(p))
    yield equals(f"variance-minimising, {case}", "baseline", best, q, "1 - p")
    yield equals(
        f"variance-minimising, {case}", "variance", trace(p, size, constant(best)), 0.0, "(r - b) S is one value"
    )
    source = "2 var(phat (1 - phat)), binomial sums"
    shrunk = 2 * number_variance(p, size, lambda share: share * (1 - share))
    yield equals(f"mean, {case}", "variance", trace(p, size, MEAN_ONLY), shrunk, source)
    unbiased = 2 * (p * q * (1 - 3 * p * q) - p**2 * q**2 * (size - 3) / (size - 1)) / size
    source = "2 (mu4 - sigma^4 (G - 3)/(G - 1)) / G, the variance of a sample variance"
    yield equals(f"leave-one-out, {case}", "variance", trace(p, size, LEAVE_ONE_OUT), unbiased, source)
    source = "2 var sqrt(phat (1 - phat)), binomial sums"
    yield equals(
        f"group-std, {case}", "variance", trace(p, size, GROUP_STD), 2 * number_variance(p, size, spread), source
    )


def number_variance(success: float, size: int, value: Any) -> float:
    """Return var value(C / G), C ~ Binomial(G, p)."""
    mean = binomial(size, success, value)
    return binomial(size, success, lambda share: (value(share) - mean) ** 2)


def _thresholds() -> Iterator[Finding]:
    for size in (3, 8, 32):
        p = (2 * size - 4) / (3 * size - 5)
        case = f"G = {size}, p = (2G - 4)/(3G - 5) = {p:.4f}"
        none, other = trace(p, size, NO_BASELINE), trace(p, size, LEAVE_ONE_OUT)
        yield equals(case, "variance of leave-one-out, none beside it", other, none, "where the closed forms meet")
        for moved, judge in ((p + 0.05, exceeds), (p - 0.05, falls_below)):
            none, other = trace(moved, size, NO_BASELINE), trace(moved, size, LEAVE_ONE_OUT)
            yield judge(
                f"G = {size}, p = {moved:.4f}",
                "variance of leave-one-out, none beside it",
                other,
                none,
                "above the threshold it is larger, below smaller",
                by=1e-5,
            )
    for p in SUCCESSES:
        yield exceeds(
            f"G = 2, p = {p}",
            "variance of leave-one-out, none beside it",
            trace(p, 2, LEAVE_ONE_OUT),
            trace(p, 2, NO_BASELINE),
            "p^2 > 0",
            by=1e-5,
        )
    for size in SIZES:
        for p, judge in ((0.95, exceeds), (0.3, falls_below)):
            mean, none = trace(p, size, MEAN_ONLY), trace(p, size, NO_BASELINE)
            source = "2 var(phat (1 - phat)) against 2 p (1 - p)^3 / G"
            yield judge(
                f"G = {size}, p = {p}", "variance of the group mean, none beside it", mean, none, source, by=1e-5
            )
    for p, judge in ((0.7, exceeds), (0.6, falls_below)):
        yield judge(
            f"G = 8, p = {p}",
            "variance of baseline E r, none beside it",
            trace(p, 8, constant(p)),
            trace(p, 8, NO_BASELINE),
            "(1 - 2p)^2 against (1 - p)^2: the threshold is 2/3",
            by=1e-5,
        )


def _scalar() -> Iterator[Finding]:
    """Among constants nothing is below the variance-minimising one, whatever the policy."""
    for seed in range(3):
        policy = random_policy(seed)
        best = variance_minimising_baseline(policy)
        here = expected_update(policy, row(4, constant(best))).variance
        case = f"random policy {seed}, four responses, G = 4"
        for name, value in (("E r", expected_reward(policy)), ("b + 0.1", best + 0.1), ("b - 0.1", best - 0.1)):
            there = expected_update(policy, row(4, constant(value))).variance
            yield falls_below(
                case,
                f"variance at b = E[|S|^2 r]/E|S|^2, baseline {name} beside it",
                here,
                there,
                "b minimises a parabola",
            )
