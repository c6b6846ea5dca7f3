"""A fixed number of rollouts: bias and variance per rollout as G grows and prompts x G is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grpo_ablate.exact.policy_file import parse
from grpo_ablate.exact.propositions.cases import GROUP_STD, LEAVE_ONE_OUT, MEAN_ONLY, binomial, row, spread
from grpo_ablate.exact.propositions.findings import Finding, equals, exceeds, falls_below
from grpo_ablate.exact.update import ExactUpdate, expected_update

TITLE = "Group size at a fixed number of rollouts"
STATEMENT = (
    "N rollouts make N/G groups of independently drawn prompts, so the variance of their mean update is G var "
    "/ N. Four prompts with p = .02, .2, .5, .9, logits of their own, rewards 0 and 1, on policy: here "
    "unbiased leave-one-out has its least variance per rollout at G = 3, where its baseline has two rewards in "
    "place of one; from there on it grows, since fewer prompts are seen. The bias of the group mean falls as "
    "1/G, that of group-std grows with G, as its step does."
)
SUCCESSES = (0.02, 0.2, 0.5, 0.9)
SIZES = (2, 3, 4, 8, 16, 32, 64)
LEAST = 3  # the group size with the least variance per rollout of leave-one-out
ROWS: dict[str, tuple[dict[str, Any], Callable[[float, int], float]]] = {
    "group-std": (GROUP_STD, lambda share, size: spread(share)),
    "mean only": (MEAN_ONLY, lambda share, size: share * (1 - share)),
    "leave-one-out": (LEAVE_ONE_OUT, lambda share, size: size / (size - 1) * share * (1 - share)),
}


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    policy = parse(
        {
            "prompts": [
                {"responses": [{"probability": p, "reward": 1}, {"probability": 1 - p, "reward": 0}]}
                for p in SUCCESSES
            ]
        }
    )
    found: dict[str, list[ExactUpdate]] = {}
    for name, (advantage, value) in ROWS.items():
        found[name] = [expected_update(policy, row(size, advantage)) for size in SIZES]
        for size, update in zip(SIZES, found[name], strict=True):
            bias, variance = closed(value, size)
            case = f"{name}, G = {size}"
            measured = float((update.expected_update - update.gradient).norm())
            yield equals(case, "bias |E update - gradient|", measured, bias, "binomial sums, prompt by prompt")
            yield equals(
                case,
                "variance per rollout, G x trace",
                size * update.variance,
                variance,
                "binomial sums, prompt by prompt",
            )
    shrinks = found["mean only"]
    for size, update in zip(SIZES, shrinks, strict=True):
        measured = float((update.expected_update - update.gradient).norm() / update.gradient.norm())
        yield equals(f"mean only, G = {size}", "bias / |gradient|", measured, 1 / size, "1/G")
    for before, after, first, second in zip(
        SIZES, SIZES[1:], found["leave-one-out"], found["leave-one-out"][1:], strict=False
    ):
        case, quantity = f"leave-one-out, G = {after} beside G = {before}", "variance per rollout"
        values = after * second.variance, before * first.variance
        if after <= LEAST:
            yield falls_below(case, quantity, *values, "a better baseline outweighs fewer prompts", by=1e-3)
        else:
            yield exceeds(case, quantity, *values, "between-prompt variance grows as G", by=1e-3)
        biases = [float((f[i].expected_update - f[i].gradient).norm()) for f in (found["group-std"],)
                  for i in (SIZES.index(before), SIZES.index(after))]  # fmt: skip
        yield exceeds(
            f"group-std, G = {after} beside G = {before}",
            "bias |E update - gradient|",
            biases[1],
            biases[0],
            "c_G(p) grows with G",
            by=1e-3,
        )


def closed(value: Callable[[float, int], float], size: int) -> tuple[float, float]:
    """Return bias and G x variance (trace) where each prompt's update is value(phat) (1, -1) on its own logits."""
    share = 1 / len(SUCCESSES)
    means = [binomial(size, p, lambda phat: value(phat, size)) for p in SUCCESSES]
    squares = [binomial(size, p, lambda phat: value(phat, size) ** 2) for p in SUCCESSES]
    wanted = [p * (1 - p) for p in SUCCESSES]
    bias = sum(2 * share**2 * (m - w) ** 2 for m, w in zip(means, wanted, strict=True)) ** 0.5
    variance = sum(2 * share * s - 2 * share**2 * m**2 for s, m in zip(squares, means, strict=True))
    return bias, size * variance
