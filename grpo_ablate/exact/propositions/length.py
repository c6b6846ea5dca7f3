"""Length weighting: 1/L is biased even with a constant baseline, and what each reduction pushes up or down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.exact.columns import Found, cosine_and_norm, push_classes
from grpo_ablate.exact.points import Point
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import GROUP_STD, LEAVE_ONE_OUT, constant, row, tree
from grpo_ablate.exact.propositions.findings import Finding, equals, exceeds, falls_below
from grpo_ablate.exact.quantities import response_laws, reward_gradient, scores
from grpo_ablate.exact.update import expected_update
from grpo_ablate.spec.exact_files import ExactRow
from grpo_ablate.spec.schema import Switches

TITLE = "Length weighting and the four reductions"
STATEMENT = (
    "On a token tree with responses of one to three tokens, on policy: E[S/L] is not 0, so weighting by 1/L "
    "is biased even with a constant baseline. Leave-one-out under sequence-sum is unbiased and under the "
    "constant reduction has the gradient's direction; under sequence-mean and token-mean it has neither."
)
REDUCTIONS = ("sequence-mean", "token-mean", "constant", "sequence-sum")
LONGEST = 3
LOOPS = "all 225 ordered pairs, advantages by hand"
# Signs seen in this tree with groups of four; other trees can have others.
PUSHED_UP = ("short-right", "long-right")


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    policy = tree()
    law, score = response_laws(policy)[0], scores(policy)[0]
    length = policy.prompts[0].token.sum(-1).double()
    yield equals("token tree, lengths 1 to 3", "|E S|", (law @ score).norm(), 0.0, "score identity")
    weighted = law @ (score / length[:, None])
    yield exceeds(
        "token tree, lengths 1 to 3", "|E[S / L]|", weighted.norm(), 0.0, "the length depends on y", by=1e-2
    )
    yield from _constant_baseline(policy, law, score, length, weighted)
    gradient = reward_gradient(policy)
    for name, advantage in (("leave-one-out", LEAVE_ONE_OUT), ("group-std", GROUP_STD)):
        for reduction in REDUCTIONS:
            case = f"{name}, {reduction}, G = 2"
            found = expected_update(policy, switches(2, reduction, advantage))
            mean, trace = by_loops(policy, reduction)
            yield equals(case, "E update", found.expected_update, mean, LOOPS)
            yield equals(case, "variance", found.variance, trace, LOOPS)
            bias = float((found.expected_update - gradient).norm())
            yield equals(case, "|E update - gradient|", bias, (mean - gradient).norm(), LOOPS)
    yield from _leave_one_out(policy, gradient)
    yield from _pushes(policy)


def switches(size: int, reduction: str, advantage: dict[str, Any]) -> Switches:
    """Return a row with that reduction; L_max is the tree's horizon."""
    return row(size, advantage, {"sampling": {"max_tokens": LONGEST}}, reduction=reduction)


def _constant_baseline(
    policy: ExactPolicy, law: Tensor, score: Tensor, length: Tensor, weighted: Tensor
) -> Iterator[Finding]:
    """Rewards that are the same for all answers still move the policy; lengths that are the same do not."""
    reward = policy.prompts[0].reward
    for b in (0.0, 0.5, 1.0):
        found = expected_update(policy, switches(2, "sequence-mean", constant(b))).expected_update
        expected = law @ ((reward - b)[:, None] * score / length[:, None])
        case = f"baseline {b:g}, sequence-mean, G = 2"
        yield equals(case, "E update", found, expected, "E[(r - b) S / L]")
    every = expected_update(tree(rewards={}, other_reward=1), switches(2, "sequence-mean", constant(0.0)))
    case = "reward 1 for every response, no baseline, sequence-mean, G = 2"
    yield equals(case, "E update", every.expected_update, weighted, "E[S / L]")
    every = expected_update(tree(rewards={}, other_reward=1), switches(2, "sequence-sum", constant(0.0)))
    case = "reward 1 for every response, no baseline, sequence-sum, G = 2"
    yield equals(case, "|E update|", every.expected_update.norm(), 0.0, "E S = 0")


def _leave_one_out(policy: ExactPolicy, gradient: Tensor) -> Iterator[Finding]:
    for size in (2, 4):
        for reduction in REDUCTIONS:
            found = expected_update(policy, switches(size, reduction, LEAVE_ONE_OUT)).expected_update
            cosine, _ = cosine_and_norm(found, gradient)
            case = f"leave-one-out, {reduction}, G = {size}"
            if reduction == "sequence-sum":
                gap = float((found - gradient).norm())
                yield equals(case, "|E update - gradient|", gap, 0.0, "leave-one-out is unbiased")
            elif reduction == "constant":
                gap = float((found - gradient / LONGEST).norm())
                yield equals(case, "|E update - gradient / Lmax|", gap, 0.0, "the same factor for every token")
            else:
                source = "the weight depends on the response"
                yield falls_below(case, "cosine with the gradient", cosine, 1.0, source, by=1e-3)


def by_loops(policy: ExactPolicy, reduction: str) -> tuple[Tensor, float]:
    """Return expectation and variance (trace) of the update of two responses with binary rewards.

    Leave-one-out and group-std both give the better of two unequal answers +1 and the other -1.
    """
    law, score = response_laws(policy)[0], scores(policy)[0]
    reward, length = policy.prompts[0].reward, policy.prompts[0].token.sum(-1).tolist()
    mean, square = torch.zeros(score.shape[1], dtype=torch.float64), 0.0
    for i in range(len(law)):
        for j in range(len(law)):
            advantage = float(reward[i] - reward[j])
            first, second = {
                "sequence-mean": (1 / (2 * length[i]), 1 / (2 * length[j])),
                "token-mean": (1 / (length[i] + length[j]), 1 / (length[i] + length[j])),
                "constant": (1 / (2 * LONGEST), 1 / (2 * LONGEST)),
                "sequence-sum": (1 / 2, 1 / 2),
            }[reduction]
            update = advantage * (first * score[i] - second * score[j])
            chance = law[i] * law[j]
            mean = mean + chance * update
            square += float(chance * update.square().sum())
    return mean, square - float(mean.square().sum())


def pushes(policy: ExactPolicy, chosen: Switches) -> dict[str, float]:
    """Return d log P(class) along the expected update, by class."""
    row_of = ExactRow("", "", chosen, None)
    found = push_classes(Found(Point(row_of, {}, chosen, policy, policy.parameters)))
    return {name.partition("/")[2]: value for name, value in found.items()}


def _pushes(policy: ExactPolicy) -> Iterator[Finding]:
    share: dict[str, float] = {}
    for reduction in REDUCTIONS:
        found = pushes(policy, switches(4, reduction, GROUP_STD))
        for name, value in found.items():
            judge = exceeds if name in PUSHED_UP else falls_below
            quantity = f"d log P({name}) along E update"
            yield judge(f"group-std, {reduction}, G = 4", quantity, value, 0.0, "its sign in this tree", by=1e-3)
        share[reduction] = found["long-right"] / found["short-right"]
    for reduction in REDUCTIONS[1:]:
        yield falls_below(
            f"group-std, sequence-mean beside {reduction}, G = 4",
            "push of long right over push of short right",
            share["sequence-mean"],
            share[reduction],
            "1/L favours short right answers",
            by=1e-3,
        )
