"""Expected updates followed through parameter space: along a line off policy, and iterated as if learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_ablate.exact import policy as tables
from grpo_ablate.exact.groups import Setting, coefficients, setting
from grpo_ablate.exact.multisets import MultisetLaw
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.update import ExactUpdate, enumerated, expected_update
from grpo_ablate.spec.schema import Switches

_CACHE = 20_000_000  # numbers kept between steps


def along(
    policy: ExactPolicy, switches: Switches, direction: Tensor, distances: Sequence[float]
) -> list[ExactUpdate]:
    """Return the expected update at ``policy.parameters + t direction`` for each t, groups drawn at t = 0.

    Off policy, as in later optimiser steps on the same responses: ratios differ from 1, clips may act.
    ``gradient`` stays that of the reward at t = 0.
    """
    return [
        expected_update(policy, switches, at=policy.parameters + distance * direction) for distance in distances
    ]


class UpdateField:
    """The exact on-policy expected update as a function of the parameters, [D] -> [D].

    Where the slopes of every group's loss are the same at every point (no KL, or a KL whose slope is a constant)
    they are computed once, and a call only weighs them anew. Under dynamic sampling: the update of an accepted
    group. Raises what ``expected_update`` raises.
    """

    def __init__(self, policy: ExactPolicy, switches: Switches):
        self.policy, self.switches = policy, switches
        first = expected_update(policy, switches)
        self.kept: list[tuple[Setting, Tensor, Tensor, Tensor]] | None = None
        width = switches.sampling.group_size + max(
            points * choices + 2 * points + 3 for points, choices in (prompt.shape for prompt in policy.prompts)
        )
        if _same_everywhere(switches) and first.groups * width <= _CACHE:
            self.kept = [self._enumerate(policy, number) for number in range(len(policy.prompts))]

    def _enumerate(self, policy: ExactPolicy, number: int) -> tuple[Setting, Tensor, Tensor, Tensor]:
        at = setting(policy.prompts[number], self.switches, policy.parameters)
        index = torch.cat(list(enumerated(at)))
        found = [coefficients(at, at.possible[part]) for part in enumerated(at)]
        slopes = torch.cat([part.slopes for part in found])
        return at, index, slopes, torch.cat([part.accepted for part in found])

    def __call__(self, parameters: Tensor) -> Tensor:
        """Return the expected update at ``parameters`` [D]."""
        if self.kept is None:
            return expected_update(self.policy.at(parameters), self.switches).expected_update
        point = parameters.detach().double().clone().requires_grad_()
        sampling = self.switches.sampling
        total, accepted = torch.zeros((), dtype=torch.float64), 0.0
        for at, index, slopes, keeps in self.kept:
            prompt = at.prompt
            every = torch.ones(prompt.shape, dtype=torch.bool)
            now = tables.tables(prompt, point, every, sampling)
            law = now.logprobs.detach()[prompt.edges].sum(-1).exp()
            weigh = MultisetLaw(law / law.sum(), sampling.group_size)
            weights = torch.where(keeps, prompt.probability * weigh(index), 0.0)
            kl = torch.zeros_like(now.entropy) if now.kl is None else now.kl
            total = total - (weights @ slopes) @ torch.cat([now.logprobs, now.entropy, kl])
            accepted += float(weights.sum())
        (direction,) = torch.autograd.grad(total / accepted, point)
        return direction


def _same_everywhere(switches: Switches) -> bool:
    """Whether no group's slopes depend on the parameters: on policy, every ratio is 1."""
    sampling, kl = switches.sampling, switches.kl
    if sampling.top_k != "off" or sampling.top_p < 1:
        return False
    constant_slope = kl.estimator == "exact" or (kl.estimator == "k1" and kl.gradient == "pathwise")
    return kl.beta == 0 or (kl.place == "loss" and constant_slope)


def iterate(parameters: Tensor, direction: Callable[[Tensor], Tensor], learning_rate: float, steps: int) -> Tensor:
    """Return the parameters after 0..steps ascent steps ``parameters + learning_rate direction``, [steps + 1, D].

    ``direction`` is any function of the parameters: an :class:`UpdateField`, or a gradient of ``quantities``.
    """
    path = [parameters.detach().double()]
    for _ in range(steps):
        path.append(path[-1] + learning_rate * direction(path[-1]).detach())
    return torch.stack(path)
