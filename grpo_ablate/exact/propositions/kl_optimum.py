"""Reward minus beta KL: its optimum, and what scaling the rewards does to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from grpo_ablate.exact.dynamics import UpdateField, iterate
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import GROUP_STD, LEAVE_ONE_OUT, MEAN_ONLY, random_policy, row
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, largest_gap
from grpo_ablate.exact.quantities import kl_gradient, response_laws, reward_gradient
from grpo_ablate.exact.update import expected_update

TITLE = "The optimum of reward minus KL, and reward units"
STATEMENT = (
    "With raw rewards the unrestricted optimum is pi_ref exp(r / beta), normalised, and gradient ascent ends "
    "there; rewards times a need beta times a. Under group-std with eps 0 a scale and a shift of the rewards, "
    "of each prompt its own, change no update, and beta keeps its meaning."
)
BETA = 1.0
RATE, STEPS = 2.0, 500


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for seed in (0, 1):
        policy = random_policy(seed, reference=True)
        case = f"random policy, rewards and reference {seed} over four responses, beta = {BETA}"
        path = ascent(policy, BETA)
        reached, optimum = response_laws(policy.at(path[-1]))[0], tilted(policy, BETA)
        yield equals(
            f"gradient ascent, {case}", "law reached", reached, optimum, "pi_ref exp(r / beta)", within=1e-9
        )
        larger = scaled(policy, [10.0], [0.0])
        path = ascent(larger, 10 * BETA, rate=RATE / 10)
        reached = response_laws(policy.at(path[-1]))[0]
        source = "the same optimum"
        yield equals(f"10 r and 10 beta, {case}", "law reached", reached, optimum, source, within=1e-9)
        yield differs(
            f"10 r and beta, {case}",
            "optimum beside that of r",
            tilted(larger, BETA),
            optimum,
            "rewards count ten times as much",
            by=1e-2,
        )
        kl = {"kl": {"beta": BETA, "estimator": "exact"}}
        field = UpdateField(policy, row(4, LEAVE_ONE_OUT, kl))
        path = iterate(policy.parameters, field, learning_rate=RATE, steps=STEPS)
        reached = response_laws(policy.at(path[-1]))[0]
        yield equals(
            f"leave-one-out with exact KL, G = 4, {case}",
            "law reached",
            reached,
            optimum,
            "its expected update is the gradient",
            within=1e-9,
        )
    yield from _units()


def _units() -> Iterator[Finding]:
    policy = random_policy(7, prompts=2, reference=True)
    kl = {"kl": {"beta": BETA, "estimator": "k3"}}
    changes = (
        ("10 r + 3", [10.0, 10.0], [3.0, 3.0]),
        ("10 r + 3 and r/100 - 1, by prompt", [10.0, 0.01], [3.0, -1.0]),
    )
    for name, scales, shifts in changes:
        other = scaled(policy, scales, shifts)
        for size in (2, 4):
            case = f"{name}, two random prompts, G = {size}, k3 with beta = {BETA}"
            first, second = (expected_update(p, row(size, GROUP_STD, kl)).expected_update for p in (policy, other))
            gap = largest_gap([(first, second)])
            yield equals(
                f"group-std, {case}", "largest change of E update", gap, 0.0, "units cancel in (r - mean)/s"
            )
            first, second = (expected_update(p, row(size, MEAN_ONLY, kl)).expected_update for p in (policy, other))
            yield differs(
                f"mean only, {case}",
                "largest change of E update",
                largest_gap([(first, second)]),
                0.0,
                "units stay",
                by=1e-2,
            )


def ascent(policy: ExactPolicy, beta: float, rate: float = RATE) -> Tensor:
    """Return the path of gradient ascent on E r - beta KL, [steps + 1, D]."""

    def direction(point: Tensor) -> Tensor:
        here = policy.at(point)
        return reward_gradient(here) - beta * kl_gradient(here)

    return iterate(policy.parameters, direction, rate, STEPS)


def tilted(policy: ExactPolicy, beta: float) -> list[float]:
    """Return pi_ref exp(r / beta), normalised, of the first prompt."""
    prompt = policy.prompts[0]
    assert prompt.reference is not None
    weights = [
        q * math.exp(r / beta)
        for q, r in zip(prompt.reference[0].softmax(0).tolist(), prompt.reward.tolist(), strict=True)
    ]
    return [weight / sum(weights) for weight in weights]


def scaled(policy: ExactPolicy, scales: list[float], shifts: list[float]) -> ExactPolicy:
    """Return the policy with each prompt's rewards a r + b."""
    prompts = [
        replace(prompt, reward=scale * prompt.reward + shift)
        for prompt, scale, shift in zip(policy.prompts, scales, shifts, strict=True)
    ]
    return replace(policy, prompts=tuple(prompts), parameters=torch.clone(policy.parameters))
