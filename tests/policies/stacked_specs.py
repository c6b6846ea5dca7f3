"""Specs, policies and loops of the stacked policy on the small task, for the tests."""

from __future__ import annotations

from typing import Any

import torch
from small_task import Small
from torch import Tensor

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.schema import (
    ArithmeticTask,
    Budget,
    Evaluation,
    Optimizer,
    Sampling,
    Spec,
    StackedPolicy,
    Update,
)

PROMPTS, SIZE, LIMIT = 5, 4, 7


def spec(rounds: int = 5, policy: dict[str, Any] | None = None, **sections: Any) -> Spec:
    """Return a spec of the small task; ``sampling`` names only what differs."""
    sampling = {"prompts": PROMPTS, "group_size": SIZE, "max_tokens": LIMIT, **sections.pop("sampling", {})}
    settings = {
        "task": ArithmeticTask(name="arithmetic"),  # stands for the small task, which no spec can name
        "policy": StackedPolicy(name="stacked", **{"hidden": 32, "intermediate": 48, **(policy or {})}),
        "evaluation": Evaluation(every=1000, samples=4),
        "update": Update(inner_passes=2, minibatches=2),
        "optimizer": Optimizer(name="adamw", learning_rate=3e-3, max_grad_norm=1.0),
        "budget": Budget(rollouts=rounds * sampling["prompts"] * sampling["group_size"]),
        **sections,
    }
    return Spec(sampling=Sampling(**sampling), **settings)


def keys(*seeds: int) -> Keys:
    """Return the keys of members with these seeds."""
    return Keys(torch.tensor(seeds))


def make(
    settings: Spec, *seeds: int, task: Small | None = None, start: dict[str, Tensor] | None = None
) -> Stacked:
    """Return a policy from keyed random weights."""
    return Stacked(settings, task or Small(), keys(*seeds), start)


def make_loop(settings: Spec, *seeds: int, task: Small | None = None) -> Loop:
    """Return an untrained loop."""
    task = task or Small()
    return Loop(settings, Stacked(settings, task, keys(*seeds)), task, keys(*seeds))


def drawn_batch(policy: Stacked, round: int = 0, prompts: Tensor | None = None) -> Batch:
    """Return a round's batch of every slot's group, unscored."""
    members = policy.members
    if prompts is None:
        prompts = (torch.arange(PROMPTS) * 9 % policy.task.prompt_count).expand(members, -1)
    wanted = torch.ones_like(prompts, dtype=torch.bool)
    size = policy.spec.sampling.group_size
    drawn = policy.sample(prompts, size, Draw(Purpose.RESPONSE, round), wanted=wanted)
    return Batch(
        prompts=prompts,
        tokens=drawn.tokens,
        token=drawn.token,
        present=wanted[..., None].expand(-1, -1, size),
        truncated=drawn.truncated,
        reward=torch.zeros(*prompts.shape, size, dtype=torch.float64),
        components={},
        sampler_logprobs=drawn.sampler_logprobs,
        old_logprobs=drawn.old_logprobs,
        support=drawn.support,
    )
