"""Groups of two: DPO's direction with a constant weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from grpo_ablate.exact.groups import coefficients, setting
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import GROUP_STD, MEAN_ONLY, advantages, categorical, coin, row
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, largest_gap
from grpo_ablate.exact.quantities import response_laws, scores
from grpo_ablate.exact.update import expected_update

TITLE = "Groups of two beside DPO"
STATEMENT = (
    "G = 2, unequal rewards, eps 0, divisor G: advantages +1 and -1 whatever the gap, so a mixed group's "
    "update is (grad log pi(y+) - grad log pi(y-)) / 2, DPO's direction with a constant weight; DPO's weight "
    "beta sigmoid(-beta margin) falls with the margin. Under the group mean alone the weight is a quarter of "
    "the reward gap."
)
DROP = {"sampling": {"dynamic": "drop"}}
GAPS = (1e-3, 1.0, 10.0)


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for gap in GAPS:
        found = advantages(row(2), [gap, 0.0])[:, 0]
        yield equals(
            f"group-std, G = 2, reward gap {gap:g}", "advantages", found, (1.0, -1.0), "the gap drops out"
        )
    for p in (0.1, 0.5, 0.9):
        yield from _binary(p)
        for gap in GAPS:
            for name, kind, weight in (("group-std", GROUP_STD, 0.5), ("mean only", MEAN_ONLY, gap / 4)):
                case = f"{name}, G = 2, p = {p}, reward gap {gap:g}"
                found = mixed_update(pair(p, gap), kind)
                better, worse = scores(pair(p, gap))[0]
                yield equals(
                    case,
                    "update of a mixed group",
                    found,
                    weight * (better - worse),
                    f"{weight:g} (grad log pi(y+) - grad log pi(y-))",
                )
    yield from _preferences()


def pair(success: float, gap: float = 1.0) -> ExactPolicy:
    """Return two answers with that gap of rewards; the reference is one half each."""
    return categorical(
        {"probability": success, "reward": gap, "reference": 0.5},
        {"probability": 1 - success, "reward": 0, "reference": 0.5},
    )


def mixed_update(policy: ExactPolicy, advantage: dict[str, Any]) -> torch.Tensor:
    """Return the update of a mixed group of two, [D]: with two answers all of them are alike."""
    return expected_update(policy, row(2, advantage, DROP)).expected_update


def _binary(p: float) -> Iterator[Finding]:
    law = response_laws(coin(p))[0].tolist()
    rewards = (1.0, 0.0)
    for own, name, value in ((0, "success", 1 - p), (1, "failure", -p)):
        mean = sum(
            law[other] * float(advantages(row(2), [rewards[own], rewards[other]])[0, 0]) for other in (0, 1)
        )
        yield equals(
            f"group-std, G = 2, binary rewards, p = {p}", f"E[A | {name}]", mean, value, "the other answer"
        )


def group_update(policy: ExactPolicy, advantage: dict[str, Any], group: tuple[int, int]) -> torch.Tensor:
    """Return the update of one group of two, given by the numbers of its responses, [D]."""
    at = setting(policy.prompts[0], row(2, advantage), policy.parameters)
    return -(coefficients(at, torch.tensor([group])).slopes @ at.jacobians)[0]


def dpo_gradient(policy: ExactPolicy, beta: float, better: int = 0, worse: int = 1) -> torch.Tensor:
    """Return the ascent direction of log sigmoid(beta margin), by differentiating it (Rafailov et al. 2023)."""
    point = policy.parameters.clone().requires_grad_()
    law = point.log_softmax(0)
    reference = policy.prompts[0].reference
    assert reference is not None
    anchor = reference[0].log_softmax(0)
    margin = (law[better] - anchor[better]) - (law[worse] - anchor[worse])
    (gradient,) = torch.autograd.grad(torch.nn.functional.logsigmoid(beta * margin), point)
    return gradient


def _preferences() -> Iterator[Finding]:
    beta, weights = 0.5, []
    for p in (0.1, 0.5, 0.9):
        policy = pair(p)
        better, worse = scores(policy)[0]
        margin = math.log(p / (1 - p))
        weight = beta / (1 + math.exp(beta * margin))
        case = f"p = {p}, margin {margin:.4f}, beta = {beta}"
        gradient = dpo_gradient(policy, beta)
        yield equals(
            f"DPO, {case}",
            "gradient of log sigmoid(beta margin)",
            gradient,
            weight * (better - worse),
            "beta sigmoid(-beta margin) (grad log pi(y+) - grad log pi(y-))",
        )
        weights.append(weight)
    yield differs(
        f"DPO, beta = {beta}",
        "weight at p = 0.9 beside p = 0.1",
        weights[2],
        weights[0],
        "it depends on the margin",
        by=0.1,
    )
    yield from _among_four(beta)


def _among_four(beta: float) -> Iterator[Finding]:
    """Two answers have one direction between them; each pair of four has its own."""
    policy = categorical(
        *(
            {"probability": p, "reward": r, "reference": q}
            for p, r, q in ((0.1, 3, 0.4), (0.2, 0, 0.3), (0.3, 1, 0.2), (0.4, 0.5, 0.1))
        )
    )
    score, rewards = scores(policy)[0], policy.prompts[0].reward.tolist()
    for pair_of in itertools.combinations(range(4), 2):
        better, worse = sorted(pair_of, key=lambda k: -rewards[k])
        case = f"four answers, {better} better than {worse}"
        update = group_update(policy, GROUP_STD, (better, worse))
        half = (score[better] - score[worse]) / 2
        yield equals(
            f"group-std, G = 2, {case}", "update of the group", update, half, "half the gap of the scores"
        )
        gradient = dpo_gradient(policy, beta, better, worse)
        gap = largest_gap([(update / update.norm(), gradient / gradient.norm())])
        name = f"group-std beside DPO, beta = {beta}, {case}"
        yield equals(name, "largest gap of the two unit vectors", gap, 0.0, "one direction")
