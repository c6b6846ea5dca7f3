"""Measures of sampled answers: the unbiased pass@k and the number of distinct answers."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.tasks.protocol import Scores


def pass_at_k(correct: Tensor, samples: int | Tensor, k: int) -> Tensor:
    """Return the unbiased estimate that one of ``k`` answers is right, ``correct`` of ``samples`` being right.

    1 - C(n - c, k) / C(n, k), as in Chen et al., "Evaluating large language models trained on code",
    2021, section 2.1. Any shape, float64. Of less than ``k`` samples nothing can be said.

    >>> pass_at_k(torch.tensor([0, 1, 2, 4]), 4, 2)
    tensor([0.0000, 0.5000, 0.8333, 1.0000], dtype=torch.float64)
    """
    taken = torch.arange(k, dtype=torch.float64, device=correct.device)
    wrong = (samples - correct).double()[..., None]
    if isinstance(samples, Tensor):
        samples = samples.double().where(samples >= k, torch.nan)[..., None]
    return 1 - ((wrong - taken).clamp(min=0) / (samples - taken)).prod(-1)


def distinct(answers: Tensor) -> Tensor:
    """Return how many different answers each group [..., G] of numbered answers holds, float64 [...].

    >>> distinct(torch.tensor([[3, 1, 3, 3], [2, 2, 2, 2]]))
    tensor([2., 1.], dtype=torch.float64)
    """
    ordered = answers.sort(-1).values
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).double().sum(-1)


def sampled_metrics(scores: Scores, tokens: Tensor) -> dict[str, Tensor]:
    """Return the measures of G responses to each of P prompts: name -> float64 [M].

    An answer is right when its component ``accuracy`` is 1; pass@k is given for every power of two up to G. Two
    answers are the same where ``scores.answers`` says so; a task that says nothing answers in one token, and
    ``tokens`` int64 [M, P, G] are its answers. An answer without a verdict is counted and left out of all else,
    and a prompt with less than k verdicts out of pass@k.
    """
    answers = tokens if scores.answers is None else scores.answers
    right = rightness(scores)
    missing = bool(right.isnan().any())
    samples = right.shape[-1]
    known: int | Tensor = (~right.isnan()).sum(-1) if missing else samples
    correct = (right == 1).sum(-1)
    found = {
        "eval/reward": mean_of_known(scores.reward),
        "eval/reward_missing": scores.reward.isnan().double().mean((1, 2)),
        "eval/accuracy": mean_of_known(right),
        "eval/distinct_answers": distinct(answers).mean(-1),
    }
    if len(scores.components) > 1:
        found |= {f"eval/component_{name}": mean_of_known(value) for name, value in scores.components.items()}
    for power in range(samples.bit_length()):
        estimate = pass_at_k(correct, known, 2**power)
        found[f"eval/pass_at_{2**power}"] = estimate.nanmean(-1) if missing else estimate.mean(-1)
    return found


def rightness(scores: Scores) -> Tensor:
    """Return 1 for right answers, 0 for wrong ones, NaN for those without a verdict, float64 [M, P, G]."""
    accuracy = scores.components["accuracy"]
    return (accuracy == 1).double().where(~accuracy.isnan(), torch.nan)


def mean_of_known(values: Tensor) -> Tensor:
    """Return the mean over prompts of the mean over their answers, float64 [M], of [M, P, G]; NaN is left out."""
    if not bool(values.isnan().any()):
        return values.mean(-1).mean(-1)
    return values.nanmean(-1).nanmean(-1)
