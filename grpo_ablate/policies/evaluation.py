"""Measures of sampled answers: the unbiased pass@k and the number of distinct answers."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.tasks.protocol import Scores


def pass_at_k(correct: Tensor, samples: int, k: int) -> Tensor:
    """Return the unbiased estimate that one of ``k`` answers is right, ``correct`` of ``samples`` being right.

    1 - C(n - c, k) / C(n, k), as in Chen et al., "Evaluating large language models trained on code",
    2021, section 2.1. Any shape, float64.

    >>> pass_at_k(torch.tensor([0, 1, 2, 4]), 4, 2)
    tensor([0.0000, 0.5000, 0.8333, 1.0000], dtype=torch.float64)
    """
    taken = torch.arange(k, dtype=torch.float64, device=correct.device)
    wrong = (samples - correct).double()[..., None]
    return 1 - ((wrong - taken).clamp(min=0) / (samples - taken)).prod(-1)


def distinct(tokens: Tensor) -> Tensor:
    """Return how many different answers each group of one-token responses [..., G] holds, float64 [...].

    >>> distinct(torch.tensor([[3, 1, 3, 3], [2, 2, 2, 2]]))
    tensor([2., 1.], dtype=torch.float64)
    """
    ordered = tokens.sort(-1).values
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).double().sum(-1)


def sampled_metrics(scores: Scores, tokens: Tensor) -> dict[str, Tensor]:
    """Return the measures of G one-token responses to each of P prompts: name -> float64 [M].

    ``tokens`` int64 [M, P, G]. An answer is right when its component ``accuracy`` is 1; pass@k is given
    for every power of two up to G.
    """
    samples = tokens.shape[-1]
    right = scores.components["accuracy"] == 1
    correct = right.sum(-1)
    found = {
        "eval/reward": scores.reward.mean(-1).mean(-1),
        "eval/accuracy": right.double().mean(-1).mean(-1),
        "eval/distinct_answers": distinct(tokens).mean(-1),
    }
    k = 2
    while k <= samples:
        found[f"eval/pass_at_{k}"] = pass_at_k(correct, samples, k).mean(-1)
        k *= 2
    return found
