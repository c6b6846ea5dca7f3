"""The factor on the policy term when the sampler's numerics differ from the trainer's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.spec.schema import Update


def token_level(log_ratio: Tensor) -> Tensor:
    """One factor per token."""
    return log_ratio


def sequence_level(log_ratio: Tensor) -> Tensor:
    """The response's product, repeated over its tokens."""
    return log_ratio.sum(-1, keepdim=True).expand(log_ratio.shape)


LEVELS: dict[str, Callable[[Tensor], Tensor]] = {"token": token_level, "sequence": sequence_level}


def none(raw: Tensor, cap: float) -> Tensor:
    """No correction."""
    return torch.ones_like(raw)


def truncate(raw: Tensor, cap: float) -> Tensor:
    """min(w, cap) (Yao et al. 2025, truncated importance sampling)."""
    return raw.clamp(max=cap)


def mask(raw: Tensor, cap: float) -> Tensor:
    """w, and 0 where it is above the cap."""
    return torch.where(raw > cap, 0.0, raw)


CORRECTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {"none": none, "truncate": truncate, "mask": mask}


def raw_ratio(batch: Batch, update: Update) -> Tensor:
    """Return exp(old - sampler) at the switch's level, float64 [M, B, G, T], uncapped; 1 where not scored."""
    scored = batch.token & batch.present.unsqueeze(-1)
    log_ratio = torch.where(scored, batch.old_logprobs.double() - batch.sampler_logprobs.double(), 0.0)
    return torch.where(scored, LEVELS[update.mismatch_level](log_ratio).exp(), 1.0)


def factor(batch: Batch, update: Update) -> Tensor:
    """Return the factor on the policy term, float64 [M, B, G, T]; 1 where not scored. It never touches the KL."""
    if update.mismatch == "none":
        return torch.ones(batch.token.shape, dtype=torch.float64, device=batch.token.device)
    return CORRECTIONS[update.mismatch](raw_ratio(batch, update), update.mismatch_cap)
