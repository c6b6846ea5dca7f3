"""One token's objective against its ratio: a surrogate by itself, with no policy and no group."""

from __future__ import annotations

import math

import torch

from grpo_ablate.algorithm.objective import loss
from grpo_ablate.algorithm.records import Batch, Policy, Prepared
from grpo_ablate.spec.schema import Switches, Update


def token_objective(update: Update, ratio: float, advantage: float) -> tuple[float, float]:
    """Return f and d f / d log pi of a response of one token with weight 1 and probability ratio ``ratio``.

    The old log-probability is 0, so that log pi = log u: under `reinforce` and `cispo`, whose f contains log pi
    itself, only the slope means something.

    >>> token_objective(Update(surrogate="clip", clip_high=0.2), 1.5, 1.0)
    (1.2, 0.0)
    """
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    there, group = torch.ones(1, 1, 1, 1, dtype=torch.bool), one[..., 0]
    batch = Batch(
        prompts=torch.zeros(1, 1, dtype=torch.int64),
        tokens=torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        token=there,
        present=there[..., 0],
        truncated=~there[..., 0],
        reward=group,
        components={},
        sampler_logprobs=0.0 * one,
        old_logprobs=0.0 * one,
    )
    logprobs = (math.log(ratio) * one).requires_grad_()
    prepared = Prepared(shaped=group, advantages=advantage * one, weights=one, mismatch=one)
    total = loss(batch, prepared, Policy(logprobs, None, None), Switches(update=update)).loss.sum()
    (slope,) = torch.autograd.grad(total, logprobs, allow_unused=True) if total.requires_grad else (None,)
    return -float(total.detach()), 0.0 if slope is None else 0.0 - float(slope)
