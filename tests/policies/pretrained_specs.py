"""Specs, policies and loops of pretrained models on the small task, for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from small_task import Small
from stacked_specs import make as make_stacked
from stacked_specs import spec as stacked_spec
from torch import Tensor

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.stacked.transformers_folder import save_transformers
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.schema import HuggingFacePolicy, Spec

SEED = 5


def scattered(policy: Stacked, spread: float = 0.2) -> Stacked:
    """Move a policy away from its even law."""
    with torch.no_grad():
        policy.flat += spread * torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(0))
        policy.reference.copy_(policy.flat)
    return policy


def saved(folder: Path, policy: Stacked, task: Small | None = None) -> Path:
    """Write a stacked policy's first member as a transformers folder."""
    parameters = {name: value[0] for name, value in policy.parameters().items()}
    assert policy.spec.policy.name == "stacked"
    save_transformers(parameters, policy.spec.policy, task or policy.task, folder)  # type: ignore[arg-type]
    return folder


def spec(folder: Path | str, rounds: int = 5, policy: dict[str, Any] | None = None, **sections: Any) -> Spec:
    """Return a spec of the small task on a model folder; ``sampling`` names only what differs."""
    plain = stacked_spec(rounds, **sections)
    told = {"name": "huggingface", "model": str(folder), "device": "cpu", **(policy or {})}
    return plain.model_copy(update={"policy": HuggingFacePolicy.model_validate(told)})


def keys(seed: int = SEED) -> Keys:
    return Keys(torch.tensor([seed]))


def make(settings: Spec, task: Any = None, seed: int = SEED) -> HuggingFace:
    """Return a policy."""
    return HuggingFace(settings, task or Small(), keys(seed))


def make_loop(settings: Spec, task: Any = None, seed: int = SEED) -> Loop:
    """Return an untrained loop."""
    task = task or Small()
    return Loop(settings, HuggingFace(settings, task, keys(seed)), task, keys(seed))


def drawn_batch(policy: Any, round: int = 0, prompts: Tensor | None = None, wanted: Tensor | None = None) -> Batch:
    """Return a round's batch of every slot's group, unscored."""
    count, size = policy.spec.sampling.prompts, policy.spec.sampling.group_size
    if prompts is None:
        prompts = (torch.arange(count) * 9 % policy.task.prompt_count)[None]
    if wanted is None:
        wanted = torch.ones_like(prompts, dtype=torch.bool)
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


def pair(
    folder: Path, policy: dict[str, Any] | None = None, shape: dict[str, Any] | None = None, **sections: Any
) -> Any:
    """Return a stacked policy and the pretrained one of the same weights, specs alike but for the policy."""
    stacked = scattered(make_stacked(stacked_spec(policy=shape, **sections), SEED))
    saved(folder, stacked)
    return stacked, make(spec(folder, policy=policy, **sections))
