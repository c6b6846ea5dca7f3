"""Rewards 0, 1 and 10: dividing by the group's spread turns the direction of the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_ablate.exact.propositions.cases import MEAN_ONLY, categorical, row
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, printed
from grpo_ablate.exact.quantities import reward_gradient
from grpo_ablate.exact.update import expected_update

TITLE = "The counterexample of rewards 0, 1, 10"
STATEMENT = (
    "Three responses of equal probability with rewards 0, 1, 10: under group-std the expected update is no "
    "multiple of the reward gradient (-11, -8, 19)/9, and for G = 2 it is (-2, 0, 2)/9; on policy, no "
    "clipping, equal lengths."
)
COSINES = {2: 0.9078, 3: 0.9544, 4: 0.9789, 8: 0.9991}
NINTHS = {3: (-2.4292, -0.3953, 2.8245), 4: (-2.4860, -0.7644, 3.2503)}


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    policy = categorical(*({"logit": 0, "reward": reward} for reward in (0, 1, 10)))
    gradient = reward_gradient(policy)
    pairs = "by hand: every unordered pair of distinct rewards has probability 2/9"
    yield equals("any row", "9 x gradient", 9 * gradient, (-11, -8, 19), "by hand: pi (r - mean)")
    for size, cosine in COSINES.items():
        found = expected_update(policy, row(size))
        case = f"group-std, G = {size}"
        if size == 2:
            yield equals(case, "9 x E update", 9 * found.expected_update, (-2, 0, 2), pairs)
        if size in NINTHS:
            source = "ordered groups enumerated, four decimals"
            yield equals(case, "9 x E update", 9 * found.expected_update, NINTHS[size], source, printed(4))
        angle = float(found.expected_update @ gradient / (found.expected_update.norm() * gradient.norm()))
        yield equals(
            case, "cosine with the gradient", angle, cosine, "from the vectors, four decimals", printed(4)
        )
        yield differs(case, "cosine with the gradient", angle, 1.0, "a multiple would have 1", by=1e-4)
        mean_only = expected_update(policy, row(size, MEAN_ONLY))
        straight = float(
            mean_only.expected_update @ gradient / (mean_only.expected_update.norm() * gradient.norm())
        )
        yield equals(
            f"mean only, G = {size}", "cosine with the gradient", straight, 1.0, "the group mean only shrinks"
        )
