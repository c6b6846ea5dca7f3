"""The supervised loss of a warm start: cross-entropy of the answers, given their prompts."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.layout import layout
from grpo_ablate.policies.stacked.rotation import rotations
from grpo_ablate.policies.stacked.scoring import Law, score


def answer_loss(
    flat: Tensor, architecture: Architecture, tokens: Tensor, prompt_length: Tensor, length: Tensor
) -> Tensor:
    """Return the mean cross-entropy [M] per answer token of demonstrations ``tokens`` int64 [M, N, L].

    ``flat`` [M, P] are the parameters; ``length`` [M, N] counts prompt and answer, end token included, and only
    answer tokens are in the mean. Gradients flow to ``flat``.
    """
    limit = tokens.shape[-1]
    answer = (length - prompt_length)[..., None]
    step = torch.arange(int(answer.max()), device=tokens.device)
    where = (prompt_length[..., None] + step).clamp(max=limit - 1)
    answers = tokens.gather(-1, where)[:, :, None]
    scored = (step < answer)[:, :, None]
    place = layout(
        tokens, prompt_length, answers, scored, architecture, rotations(architecture, limit, tokens.device)
    )
    logprobs, _, _ = score(flat, architecture, place, Law())
    return -logprobs.sum((1, 2, 3)) / scored.sum((1, 2, 3))
