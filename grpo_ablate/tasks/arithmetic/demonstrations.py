"""Noisy answers to learn from: steps are skipped, totals go wrong and stay wrong, and fillers come in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.rng import Purpose
from grpo_ablate.tasks.arithmetic.prompts import CHAIN_NUMBERS, Chains, chains, prompt_tokens, texts
from grpo_ablate.tasks.arithmetic.words import (
    END,
    FILLER,
    FIRST_LABEL,
    FIRST_TOTAL,
    HIGHEST,
    MOST_OPERANDS,
    PAD,
)
from grpo_ablate.tasks.pools import BATCH, Pool, numbers, pool_of
from grpo_ablate.tasks.protocol import Demonstrations

FEWEST_OPERANDS = 3  # demonstrations have 3..7 operands whatever a testbed trains on, so that they share a start
STEPS = MOST_OPERANDS - 1
ANSWER_NUMBERS = 1 + 4 * STEPS  # uniforms that draw one answer


@dataclass(frozen=True)
class Noise:
    """How demonstrations differ from the ideal answer."""

    skipped: float = 0.35  # of the steps before the last
    wrong: float = 0.12  # of all steps, skipped ones too: off by one or two, carried on to the later totals
    filled: float = 0.5  # of the answers: those that hold fillers
    filler: float = 0.5  # in such an answer, before each written step


def demonstrations(count: int, key: int, noise: Noise | None = None) -> Demonstrations:
    """Return ``count`` demonstrations on prompts of the warm-start pool, a function of ``key``."""
    drawn, uniforms = _warm_start(count, key)
    prompts, prompt_length = prompt_tokens(drawn)
    answers, written = _answers(drawn, uniforms, noise or Noise())
    length = prompt_length + written.sum(1)
    tokens = torch.full((count, int(length.max())), PAD)
    tokens[:, : prompts.shape[1]] = prompts[:, : tokens.shape[1]]
    place = prompt_length[:, None] + written.cumsum(1) - 1
    tokens[written.nonzero()[:, 0], place[written]] = answers[written]
    return Demonstrations(tokens, prompt_length, length)


def _warm_start(count: int, key: int) -> tuple[Chains, Tensor]:
    """Return chains of the warm-start pool and uniforms [N, 25] for their answers; prompts may repeat."""
    kept: list[Tensor] = []
    first, size = 0, min(BATCH, 64 + 2 * count)
    while sum(len(rows) for rows in kept) < count:
        rows = torch.arange(first, first + size)
        prompts = texts(*prompt_tokens(_propose(rows, key)))
        kept.append(rows[torch.tensor([pool_of(prompt) is Pool.WARM_START for prompt in prompts])])
        first += size
    rows = torch.cat(kept)[:count]
    return _propose(rows, key), numbers(Purpose.DEMONSTRATION, rows, ANSWER_NUMBERS, key=key, stream=1)


def _propose(rows: Tensor, key: int) -> Chains:
    uniforms = numbers(Purpose.DEMONSTRATION, rows, 1 + CHAIN_NUMBERS, key=key)
    operands = FEWEST_OPERANDS + (uniforms[:, 0] * (MOST_OPERANDS - FEWEST_OPERANDS + 1)).long()
    return chains(uniforms[:, 1:], operands)


def _answers(drawn: Chains, uniforms: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Return three tokens per step (filler, label, total) and the end, int64 [N, 19], and which are written."""
    skip, wrong, size, filler = uniforms[:, 1:].reshape(-1, 4, STEPS).unbind(1)
    last = drawn.operands - 1
    step = torch.arange(1, MOST_OPERANDS)
    asked = step <= last[:, None]
    kept = asked & ((skip >= noise.skipped) | (step == last[:, None]))
    fills = kept & (uniforms[:, :1] < noise.filled) & (filler < noise.filler)
    errors = torch.tensor([-2, -1, 1, 2])[(size * 4).long()]
    total, totals = drawn.totals[:, 0], []
    for place in range(STEPS):
        total = (
            total + drawn.changes[:, place + 1] + torch.where(wrong[:, place] < noise.wrong, errors[:, place], 0)
        )
        total = total.clamp(0, HIGHEST)
        totals.append(total)
    words = torch.stack(
        [
            torch.full_like(asked, FILLER, dtype=torch.int64),
            (FIRST_LABEL - 1 + step).expand(len(last), -1),
            FIRST_TOTAL + torch.stack(totals, 1),
        ],
        -1,
    )
    written = torch.stack([fills, kept, kept], -1)
    end = torch.full((len(last), 1), END)
    return torch.cat([words.flatten(1), end], 1), torch.cat([written.flatten(1), end == END], 1)
