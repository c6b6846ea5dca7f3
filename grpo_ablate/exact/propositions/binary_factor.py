"""Binary rewards: group-std scales the gradient of the success probability by c_G(p)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from grpo_ablate.exact.propositions.cases import binomial, coin, row, spread
from grpo_ablate.exact.propositions.findings import Finding, equals, largest_gap, printed
from grpo_ablate.exact.quantities import population_limit
from grpo_ablate.exact.update import expected_update

TITLE = "Binary rewards: the factor c_G(p)"
STATEMENT = (
    "One prompt, rewards 0 and 1, equal lengths, on policy: the expected update of group-std is c_G(p) grad p "
    "with c_G(p) = E sqrt(phat (1 - phat)) / (p (1 - p)); c_2 = 1, and as G grows c_G tends to 1 / sqrt(p (1 "
    "- p)), the gradient of 2 arcsin sqrt(p)."
)
SIZES = (2, 4, 8, 16, 32, 64)
GRID = [i / 100 for i in range(1, 100)]
BINOMIAL = "the binomial sum of the closed form"


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for size in SIZES:
        case = f"group-std, G = {size}, p = 0.01 to 0.99"
        gap = max(_turned(p, size) for p in GRID)
        yield equals(case, "largest |E update / c_G(p) - grad p| / |grad p|", gap, 0.0, BINOMIAL)
    gap = max(abs(factor(p, 2) - 1) for p in GRID)
    yield equals("group-std, G = 2, p = 0.01 to 0.99", "largest |c_2(p) - 1|", gap, 0.0, "c_2 = 1")
    for p, size, value in ((0.1, 8, 2.3277), (0.3, 16, 2.0925)):
        case = f"group-std, G = {size}, p = {p}"
        yield equals(case, f"c_{size}({p})", factor(p, size), value, "four decimals by hand", printed(4))
    yield from _limit()
    yield from _variants()


def _limit() -> Iterator[Finding]:
    for p in (0.05, 0.3, 0.5):
        root = math.sqrt(p * (1 - p))
        limit = population_limit(coin(p))
        case = f"p = {p}"
        source = "the derivative of 2 arcsin sqrt(p) in the two logits"
        yield equals(case, "grad mu / sigma", limit, (root, -root), source)
        gaps = [1 / root - factor(p, size) for size in (500, 1000)]
        yield equals(
            f"group-std, {case}",
            "gap of c_500 to 1 / sqrt(p (1 - p)) over gap of c_1000",
            gaps[0] / gaps[1],
            2.0,
            "the gap falls as 1/G",
            within=0.1,
        )


def _variants() -> Iterator[Finding]:
    for p, size in ((0.1, 8), (0.3, 4)):
        case = f"p = {p}, G = {size}"
        shrunk = math.sqrt((size - 1) / size) * closed(p, size, spread)
        found = factor(p, size, ddof=1)
        yield equals(f"divisor G - 1, {case}", "factor", found, shrunk, "sqrt((G - 1)/G) c_G(p)")
        for eps in (1e-6, 0.1):
            outside = closed(p, size, lambda share, eps=eps: share * (1 - share) / (spread(share) + eps))
            found = factor(p, size, eps=eps)
            yield equals(f"s + {eps:g}, {case}", "factor", found, outside, BINOMIAL)
            inside = closed(
                p, size, lambda share, eps=eps: share * (1 - share) / math.sqrt(spread(share) ** 2 + eps)
            )
            found = factor(p, size, eps=eps, eps_inside=True)
            yield equals(f"sqrt(s^2 + {eps:g}), {case}", "factor", found, inside, BINOMIAL)


def factor(success: float, size: int, **advantage: Any) -> float:
    """Return the expected update along grad p, over |grad p|, by enumeration."""
    found = expected_update(coin(success), row(size, {"advantage": advantage}))
    return float(found.expected_update @ found.gradient / (found.gradient @ found.gradient))


def _turned(success: float, size: int) -> float:
    """Return the largest entry of E update / (c_G(p) p (1 - p)) minus grad p / (p (1 - p)) = (1, -1)."""
    update = expected_update(coin(success), row(size)).expected_update.tolist()
    slope = success * (1 - success)
    scale = closed(success, size, spread) * slope
    return largest_gap([([entry / scale for entry in update], (1.0, -1.0))])


def closed(success: float, size: int, value: Callable[..., float]) -> float:
    """Return E value(phat) / (p (1 - p))."""
    return binomial(size, success, value) / (success * (1 - success))
