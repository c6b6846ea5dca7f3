"""Prompts as ``3 b +8 c -2 d +7 =``: a number, then labelled operands that keep the total in 0..20."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.rng import Purpose
from grpo_ablate.tasks.arithmetic.words import (
    EQUALS,
    FIRST_LABEL,
    FIRST_MINUS,
    FIRST_PLUS,
    FIRST_TOTAL,
    HIGHEST,
    LARGEST,
    MOST_OPERANDS,
    PAD,
    VOCABULARY,
)
from grpo_ablate.tasks.pools import Pool, distinct, numbers

CHAIN_NUMBERS = 2 * MOST_OPERANDS - 1  # uniforms that draw one chain
WIDEST = 2 * MOST_OPERANDS  # tokens of the longest prompt


@dataclass(frozen=True)
class Chains:
    """N chains; column 0 is the number a chain starts from, the others its labelled operands."""

    totals: Tensor  # int64 [N, 7], the running total, -1 beyond the operands
    changes: Tensor  # int64 [N, 7], the start and the signed operands, 0 beyond
    operands: Tensor  # int64 [N]


def chains(uniforms: Tensor, operands: Tensor) -> Chains:
    """Return the chains that uniforms [N, 13] draw: an operand that would leave 0..20 changes its sign."""
    total = (uniforms[:, 0] * (HIGHEST + 1)).long()
    totals, changes = [total], [total]
    for place in range(1, MOST_OPERANDS):
        size = 1 + (uniforms[:, 2 * place - 1] * LARGEST).long()
        change = torch.where(uniforms[:, 2 * place] < 0.5, size, -size)
        leaves = (total + change < 0) | (total + change > HIGHEST)
        change = torch.where(leaves, -change, change)
        total = total + change
        totals.append(total)
        changes.append(change)
    inside = torch.arange(MOST_OPERANDS) < operands[:, None]
    return Chains(
        torch.where(inside, torch.stack(totals, 1), -1), torch.where(inside, torch.stack(changes, 1), 0), operands
    )


def prompt_tokens(drawn: Chains) -> tuple[Tensor, Tensor]:
    """Return the prompts' tokens int64 [N, 14], padded on the right, and their lengths int64 [N]."""
    count = drawn.changes.shape[0]
    tokens = torch.full((count, WIDEST), PAD)
    tokens[:, 0] = FIRST_TOTAL + drawn.changes[:, 0]
    for place in range(1, MOST_OPERANDS):
        change = drawn.changes[:, place]
        word = torch.where(change > 0, FIRST_PLUS - 1 + change, FIRST_MINUS - 1 - change)
        tokens[:, 2 * place - 1] = torch.where(change != 0, FIRST_LABEL + place - 1, PAD)
        tokens[:, 2 * place] = torch.where(change != 0, word, PAD)
    length = 2 * drawn.operands
    tokens[torch.arange(count), length - 1] = EQUALS
    return tokens, length


def texts(tokens: Tensor, length: Tensor) -> list[str]:
    """Return prompts in words.

    >>> texts(torch.tensor([[13, 4, 38, 5, 41, 2]]), torch.tensor([6]))
    ['3 b +8 c -2 =']
    """
    return [
        " ".join(VOCABULARY[token] for token in row[:size])
        for row, size in zip(tokens.tolist(), length.tolist(), strict=True)
    ]


def propose(rows: Tensor, operands: int) -> Chains:
    """Return proposals ``rows`` int64 [N] of prompts with so many operands; the same for every run."""
    uniforms = numbers(Purpose.TASK_PROMPT, rows, CHAIN_NUMBERS, stream=operands)
    return chains(uniforms, torch.full_like(rows, operands))


def _proposals(operands: int, rows: Tensor) -> list[str]:
    return texts(*prompt_tokens(propose(rows, operands)))


def pools(operands: list[int], wanted: dict[Pool, int]) -> dict[Pool, Chains]:
    """Return distinct prompts of each pool, the numbers of operands taking turns.

    Raises UserError where there are too few prompts with some number of operands.
    """
    kinds = sorted(set(operands))
    parts: dict[Pool, list[Chains]] = {pool: [] for pool in wanted}
    for turn, kind in enumerate(kinds):
        shares = {pool: len(range(turn, count, len(kinds))) for pool, count in wanted.items()}
        found = distinct(partial(_proposals, kind), shares)
        for pool, rows in found.items():
            if len(rows) < shares[pool]:
                key = "train_prompts" if pool is Pool.TRAIN else "held_out"
                raise UserError(
                    f"task.{key}: {wanted[pool]} needs {shares[pool]} different prompts of {kind} operands, but "
                    f"there are {len(rows)}: choose at most {len(rows) * len(kinds)}, or other task.operands."
                )
            parts[pool].append(propose(rows, kind))
    return {pool: _in_turn(some) for pool, some in parts.items()}


def _in_turn(parts: list[Chains]) -> Chains:
    """Return the chains of several parts as one: the first of each part, then the second of each, and so on."""
    place = torch.cat([torch.arange(len(part.operands)) for part in parts])
    order = place.argsort(stable=True)
    return Chains(*(torch.cat([getattr(part, f.name) for part in parts])[order] for f in fields(Chains)))
