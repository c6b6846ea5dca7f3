"""Measures of a pretrained model on the held-out prompts of its task: temperature 1, full support."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_ablate.policies.evaluation import mean_of_known, rightness, sampled_metrics
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose

if TYPE_CHECKING:
    from grpo_ablate.policies.huggingface.policy import HuggingFace


def evaluate(policy: HuggingFace, samples: int, round: int) -> dict[str, Tensor]:
    """Return the measures of ``samples`` keyed responses to every held-out prompt: name -> float64 [1].

    Entropy and KL are exact at each prefix of the first response to each prompt: the entropy is a mean over its
    tokens, the KL a sum, and NaN where no reference is kept.
    """
    task = policy.task
    prompts = (task.prompt_count + torch.arange(task.held_out_count))[None]
    drawn = policy.draw(prompts[0], Draw(Purpose.EVALUATION, round), samples, greedy=1, plain=True)
    tokens, token = drawn.tokens[None], drawn.token[None]
    chance, best = slice(0, samples), slice(samples, samples + 1)
    scores = task.score(prompts, tokens[:, :, chance], token[:, :, chance])
    greedy = task.score(prompts, tokens[:, :, best], token[:, :, best])
    length = drawn.length[None, :, chance].double()
    found = sampled_metrics(scores, tokens[:, :, chance, 0]) | {
        "eval/greedy_accuracy": mean_of_known(rightness(greedy)),
        "eval/length": length.mean((1, 2)),
        "eval/truncated": (~drawn.ended[None, :, chance]).double().mean((1, 2)),
    }
    first = token[0, :, :1]
    says = policy.score_plainly(prompts[0], tokens[0, :, :1], first)
    found["eval/entropy"] = (says.entropy.double().sum() / first.sum())[None]
    found["eval/kl"] = (
        says.divergence.double().sum(-1).mean()[None] if policy.reference else torch.full((1,), torch.nan).double()
    )
    for name, members in task.groups.items():
        found[f"eval/reward_{name}"] = mean_of_known(scores.reward[:, members])
        found[f"eval/length_{name}"] = length[:, members].mean((1, 2))
    return found
