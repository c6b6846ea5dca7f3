"""The sampling half of a round: draw groups, score them, and filter or draw anew under dynamic sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ablate.algorithm.orders import Order
from grpo_ablate.algorithm.packing import pack, unpack
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.sampling import accepted
from grpo_ablate.policies.protocol import Draw, Policy
from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import Switches
from grpo_ablate.tasks.protocol import Task


@dataclass(frozen=True)
class Rollout:
    """What one round generated: the groups to train on, and everything that was paid for."""

    batch: Batch  # ``present`` marks the accepted groups
    generated: Batch  # every attempt, side by side on axis B; ``present`` marks what was drawn
    training: Tensor  # bool [M]: the members that drew
    short: Tensor  # bool [M]: fewer than B groups were accepted after ``max_resample`` further draws

    def rollouts(self) -> Tensor:
        """Return the responses generated, rejected ones included, int64 [M]."""
        return self.generated.present.sum((1, 2))

    def tokens(self) -> Tensor:
        """Return the tokens generated, rejected responses included, int64 [M]."""
        return (self.generated.token & self.generated.present[..., None]).sum((1, 2, 3))


def rollout(
    policy: Policy, task: Task, order: Order, switches: Switches, round: int, training: Tensor, budget: Tensor
) -> Rollout:
    """Draw and score the groups of one round for the members ``training`` bool [M].

    ``budget`` int64 [M] is what each member may still generate, at least B G where it trains. Under
    ``resample`` the slots of rejected groups are drawn again, at most ``max_resample`` times and only while
    a whole group is paid for (Yu et al. 2025, DAPO, section 3.2, with an end).
    """
    sampling = switches.sampling
    wanted = training[:, None].expand(-1, sampling.prompts)
    prompts = order.draw(round, 0, wanted, ~wanted)
    batch = draw_groups(policy, task, switches, prompts, wanted, Draw(Purpose.RESPONSE, round))
    if sampling.dynamic == "off":
        return Rollout(batch, batch, training, torch.zeros_like(training))
    attempts = [batch]
    keep = accepted(batch, sampling)
    left = budget - wanted.sum(1) * sampling.group_size
    for attempt in range(1, (sampling.max_resample if sampling.dynamic == "resample" else 0) + 1):
        missing = wanted & ~keep
        again = missing & (missing.cumsum(1) <= (left // sampling.group_size)[:, None])
        if not again.any():
            # The shape never depends on how often another member had to draw: sums then round alike.
            attempts.append(replace(batch, present=torch.zeros_like(batch.present)))
            continue
        prompts = order.draw(round, attempt, again, keep)
        fresh = draw_groups(policy, task, switches, prompts, again, Draw(Purpose.RESPONSE, round, attempt))
        attempts.append(fresh)
        batch = choose(again, fresh, batch)
        keep = keep | accepted(fresh, sampling)
        left = left - again.sum(1) * sampling.group_size
    batch = replace(batch, present=batch.present & keep[..., None])
    # Where the budget ended first, the run ends with it; that is no shortage.
    short = training & (keep.sum(1) < sampling.prompts) & (left >= sampling.group_size)
    return Rollout(batch, side_by_side(attempts), training, short)


def draw_groups(
    policy: Policy, task: Task, switches: Switches, prompts: Tensor, wanted: Tensor, draw: Draw
) -> Batch:
    """Sample and score one group for each wanted slot: ``prompts`` int64 and ``wanted`` bool, both [M, B]."""
    size, kl = switches.sampling.group_size, switches.kl
    in_reward = kl.beta > 0 and kl.place != "loss" and kl.estimator == "exact"
    drawn = policy.sample(prompts, size, draw, wanted=wanted, kl_exact=in_reward)
    scores = task.score(prompts, drawn.tokens, drawn.token)
    return Batch(
        prompts=prompts,
        tokens=drawn.tokens,
        token=drawn.token,
        present=wanted[..., None].expand(-1, -1, size),
        truncated=drawn.truncated,
        reward=scores.reward,
        components=scores.components,
        sampler_logprobs=drawn.sampler_logprobs,
        old_logprobs=drawn.old_logprobs,
        old_kl_exact=drawn.old_kl_exact,
        steps=scores.steps,
        support=drawn.support,
    )


def choose(groups: Tensor, first: Batch, second: Batch) -> Batch:
    """Return ``first`` in the slots ``groups`` bool [M, B], ``second`` elsewhere."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(groups.reshape(*groups.shape, *(1 for _ in one.shape[2:])), one, other)

    others = pack(second)
    return unpack(Batch, {name: pick(tensor, others[name]) for name, tensor in pack(first).items()})


def side_by_side(batches: list[Batch]) -> Batch:
    """Return the groups of several batches as one, along the axis B."""
    if len(batches) == 1:
        return batches[0]
    packed = [pack(batch) for batch in batches]
    return unpack(Batch, {name: torch.cat([part[name] for part in packed], 1) for name in packed[0]})
