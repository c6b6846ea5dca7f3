"""Measures of a language model on the held-out prompts of its task: temperature 1, full support."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.policies.evaluation import sampled_metrics
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.policies.stacked.drawing import Drawn
from grpo_ablate.rng import Purpose

if TYPE_CHECKING:
    from grpo_ablate.policies.stacked.policy import Stacked

ROWS = 384  # responses a member drawn at a time, which bounds the key-value cache


@torch.no_grad()
def evaluate(policy: Stacked, samples: int, round: int) -> dict[str, Tensor]:
    """Return the measures of ``samples`` keyed responses to every held-out prompt: name -> float64 [M].

    Entropy and KL are exact at each prefix of the first response to each prompt: the entropy is a mean over its
    tokens, the KL a sum.
    """
    task = policy.task
    count = task.held_out_count
    prompts = (task.prompt_count + torch.arange(count)).expand(policy.members, -1)
    drawn, greedy = _drawn(policy, prompts, samples, round)
    scores = task.score(prompts, drawn.tokens, drawn.token)
    length = drawn.token.sum(-1).double()
    found = sampled_metrics(scores, drawn.tokens)
    right = task.score(prompts, greedy.tokens, greedy.token).components["accuracy"] == 1
    found |= {
        "eval/greedy_accuracy": right.double().mean((1, 2)),
        "eval/length": length.mean((1, 2)),
        "eval/truncated": drawn.truncated.double().mean((1, 2)),
    }
    tokens, token = drawn.tokens[:, :, :1], drawn.token[:, :, :1]
    says = policy.score_plainly(prompts, tokens, token)
    assert says.entropy is not None and says.kl_exact is not None
    found["eval/entropy"] = says.entropy.double().sum((1, 2, 3)) / token.sum((1, 2, 3))
    found["eval/kl"] = says.kl_exact.double().sum(-1).mean((1, 2))
    for name, members in task.groups.items():
        found[f"eval/reward_{name}"] = scores.reward[:, members].mean((1, 2))
        found[f"eval/length_{name}"] = length[:, members].mean((1, 2))
    return found


def _drawn(policy: Stacked, prompts: Tensor, samples: int, round: int) -> tuple[Drawn, Drawn]:
    """Return ``samples`` keyed responses and the greedy one to ``prompts`` [M, P], some prompts at a time."""
    parts = []
    for slots in torch.arange(prompts.shape[1]).split(max(1, ROWS // (samples + 1))):
        uniforms = policy.keyed(Draw(Purpose.EVALUATION, round), slots, samples)
        uniforms = functional.pad(uniforms, (0, 0, 0, 1), value=-1.0)
        wanted = torch.ones(policy.members, len(slots), dtype=torch.bool)
        parts.append(policy.generate(prompts[:, slots], samples + 1, uniforms, wanted, plain=True))
    names = [field.name for field in fields(Drawn) if field.name != "support"]
    whole = {name: torch.cat([getattr(part, name) for part in parts], 1).cpu() for name in names}
    sampled = {name: tensor[:, :, :samples] for name, tensor in whole.items()}
    greedy = {name: tensor[:, :, samples:] for name, tensor in whole.items()}
    return Drawn(**sampled, support=None), Drawn(**greedy, support=None)
