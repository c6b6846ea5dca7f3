"""The verifier, the step scores and the final answers of arithmetic responses, whatever tokens they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Steps
from grpo_ablate.tasks.arithmetic.words import END, FIRST_LABEL, FIRST_PLUS, FIRST_TOTAL


def final_answers(tokens: Tensor, token: Tensor) -> Tensor:
    """Return the total that a response [M, B, G, T] ends on, int64 [M, B, G]; -1 where it gives no answer.

    An answer is a total followed by the end token as the response's last two tokens.
    """
    length = token.sum(-1)
    last = tokens.gather(-1, (length - 1).clamp(min=0)[..., None])[..., 0]
    before = _totals(tokens.gather(-1, (length - 2).clamp(min=0)[..., None])[..., 0])
    return torch.where((length >= 2) & (last == END), before, -1)


def step_scores(running: Tensor, tokens: Tensor, token: Tensor) -> Steps:
    """Score the steps of responses int64 [M, B, G, T] by the prompts' running totals int64 [M, B, 7].

    A label followed at once by a total is a step, which ends at the total. It scores +1 where the total is the
    running total at that label and the label comes after those of all earlier steps, so that no step pays twice;
    otherwise -1, as for a label beyond the prompt's operands. Steps [M, B, G, T // 2], in order.
    """
    members, prompts, samples, width = tokens.shape
    room = max(1, width // 2)
    end = torch.zeros(members, prompts, samples, room, dtype=torch.int64, device=tokens.device)
    score, present = torch.zeros_like(end, dtype=torch.float64), torch.zeros_like(end, dtype=torch.bool)
    label = torch.where((tokens >= FIRST_LABEL) & (tokens < FIRST_TOTAL), tokens - FIRST_LABEL + 1, 0)
    label = torch.where(token, label, 0)[..., :-1]
    total = torch.where(token, _totals(tokens), -1)[..., 1:]
    step = (label > 0) & (total >= 0)
    where = step.nonzero()
    member, prompt, sample, place = where.unbind(1)
    reached = torch.where(step, label, 0)
    earlier = (reached.cummax(-1).values if width > 1 else reached).roll(1, -1)
    here = label[step]
    advances = (place == 0) | (here > earlier[step])
    right = advances & (running[member, prompt, here] == total[step])
    slot = step.cumsum(-1)[step] - 1
    end[member, prompt, sample, slot] = place + 1
    score[member, prompt, sample, slot] = torch.where(right, 1.0, -1.0).double()
    present[member, prompt, sample, slot] = True
    return Steps(end, score, present)


def _totals(tokens: Tensor) -> Tensor:
    """Return the totals that tokens name, -1 where they name none."""
    return torch.where((tokens >= FIRST_TOTAL) & (tokens < FIRST_PLUS), tokens - FIRST_TOTAL, -1)
