"""Subtracting the group mean shrinks the gradient by 1 - 1/G; leave-one-out gives the gradient itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from grpo_ablate.exact.dynamics import UpdateField, iterate
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import LEAVE_ONE_OUT, MEAN_ONLY, categorical, random_policy, row
from grpo_ablate.exact.propositions.findings import Finding, equals, largest_gap
from grpo_ablate.exact.quantities import response_laws, reward_gradient
from grpo_ablate.exact.update import expected_update

TITLE = "Group mean and leave-one-out"
STATEMENT = (
    "On policy, with full response scores and no scaling, the expected update under the group mean is (1 - "
    "1/G) times the reward gradient, and under leave-one-out the gradient itself; beside an exact KL term, "
    "the fixed point of mean-only is pi_ref exp(r (1 - 1/G) / beta), normalised."
)
SIZES = range(2, 9)
RANDOM = 5
IDENTITY = "conditional independence of the group's responses"
REWARDS, REFERENCE, BETA = (0.0, 0.35, 0.7, 1.0), (0.1, 0.4, 0.3, 0.2), 0.4


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    policies = [random_policy(seed) for seed in range(RANDOM)]
    gradients = [reward_gradient(policy) for policy in policies]
    case = f"{RANDOM} random policies over four responses, random rewards"
    for size in SIZES:
        for name, switches, factor in (
            ("mean only", row(size, MEAN_ONLY), 1 - 1 / size),
            ("leave-one-out", row(size, LEAVE_ONE_OUT), 1.0),
        ):
            updates = [expected_update(policy, switches).expected_update for policy in policies]
            gap = largest_gap((u, factor * g) for u, g in zip(updates, gradients, strict=True))
            quantity = f"largest |E update - {factor:.6g} gradient|"
            yield equals(f"{name}, G = {size}; {case}", quantity, gap, 0.0, IDENTITY)
    start = with_reference([1.0] * len(REWARDS))
    for size in (2, 4, 8):
        switches = row(size, MEAN_ONLY, {"kl": {"beta": BETA, "estimator": "exact"}})
        path = iterate(start.parameters, UpdateField(start, switches), learning_rate=4.0, steps=1000)
        yield equals(
            f"mean only with exact KL, beta = {BETA}, G = {size}: 1000 expected updates from uniform",
            "law reached",
            response_laws(start.at(path[-1]))[0],
            tilted([1 - 1 / size] * len(REWARDS)),
            "pi_ref exp(r (1 - 1/G) / beta), normalised",
            within=1e-9,
        )
        switches = row(size, LEAVE_ONE_OUT, {"kl": {"beta": BETA, "estimator": "exact"}})
        yield equals(
            f"leave-one-out with exact KL, beta = {BETA}, G = {size}: at pi_ref exp(r / beta)",
            "|E update|",
            expected_update(with_reference(tilted([1.0] * len(REWARDS))), switches).expected_update.norm(),
            0.0,
            "pi_ref exp(r / beta) is stationary",
        )


def with_reference(weights: list[float]) -> ExactPolicy:
    """Return the policy proportional to ``weights``, with the rewards and reference above."""
    total = sum(weights)
    return categorical(
        *(
            {"probability": weight / total, "reward": reward, "reference": reference}
            for weight, reward, reference in zip(weights, REWARDS, REFERENCE, strict=True)
        )
    )


def tilted(factors: list[float]) -> list[float]:
    """Return pi_ref exp(factor r / beta), normalised."""
    exponents = [f * r / BETA for f, r in zip(factors, REWARDS, strict=True)]
    weights = [q * math.exp(e) for q, e in zip(REFERENCE, exponents, strict=True)]
    return (torch.tensor(weights, dtype=torch.float64) / sum(weights)).tolist()
