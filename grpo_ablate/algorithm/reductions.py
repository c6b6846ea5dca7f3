"""From responses to one weight per token, fixed before any minibatch split.

The loss is a sum of ``weight * f`` over tokens, so a split of the batch only partitions the sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_ablate.spec.schema import Sampling, Update

Reduction = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def sequence_mean(responses: Tensor, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
    """1 / (B G L_i): each response the same weight (Shao et al. 2024, DeepSeekMath, equation 3)."""
    return 1.0 / (responses * lengths)


def token_mean(responses: Tensor, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
    """1 / N: each token the same weight (Yu et al. 2025, DAPO, section 3.3)."""
    return (1.0 / tokens).expand(lengths.shape)


def constant(responses: Tensor, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
    """1 / (B G L_max), L_max the configured maximum (Liu et al. 2025, Dr. GRPO, section 3.2)."""
    return (1.0 / (responses * limit)).expand(lengths.shape)


def sequence_sum(responses: Tensor, tokens: Tensor, lengths: Tensor, limit: int) -> Tensor:
    """1 / (B G): the full score of a response, unweighted by its length."""
    return (1.0 / responses).expand(lengths.shape)


REDUCTIONS: dict[str, Reduction] = {
    "sequence-mean": sequence_mean,
    "token-mean": token_mean,
    "constant": constant,
    "sequence-sum": sequence_sum,
}


def token_weights(token: Tensor, counted: Tensor, trained: Tensor, update: Update, sampling: Sampling) -> Tensor:
    """Return the weight of every token, float64 [M, B, G, T], 0 where ``trained`` (bool, same shape) is false.

    ``token`` bool [M, B, G, T] scored tokens; ``counted`` bool [M, B, G] the responses that count in B G and,
    with their tokens, in N. Both counts are per member of M.
    """
    lengths = token.sum(-1, dtype=torch.float64)
    responses = counted.sum((-2, -1), keepdim=True, dtype=torch.float64).clamp(min=1.0)
    tokens = torch.where(counted, lengths, 0.0).sum((-2, -1), keepdim=True).clamp(min=1.0)
    limit = sampling.max_tokens if update.constant == "max-tokens" else update.constant
    weight = REDUCTIONS[update.reduction](responses, tokens, lengths.clamp(min=1.0), limit)
    return torch.where(trained, weight.unsqueeze(-1), 0.0)
