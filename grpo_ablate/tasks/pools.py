"""Which pool a prompt belongs to, and keyed draws of distinct prompts from a pool.

A prompt's pool follows from its text alone. The pools of warm start, training and held-out prompts are therefore
disjoint whatever sizes and settings a testbed chooses, and testbeds that differ in them share held-out prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor

from grpo_ablate.rng import Keys, Purpose

BATCH = 2048  # rows of numbers at a time: what they need stays in the processor's cache
FEWEST_NEW = 10  # prompts that such a batch of proposals must bring: else the pools have hardly more to give


class Pool(Enum):
    """What the prompts of a pool are for."""

    HELD_OUT = "held-out"  # only evaluation sees them
    TRAIN = "train"  # reinforcement learning
    WARM_START = "warm-start"  # demonstrations


POOLS = (Pool.HELD_OUT,) + 4 * (Pool.TRAIN,) + 5 * (Pool.WARM_START,)


def pool_of(text: str) -> Pool:
    """Return the pool of the prompt with this text: one tenth is held out, four tenths train.

    >>> pool_of("3 b +8 c -2 d +7 =")
    <Pool.WARM_START: 'warm-start'>
    """
    return POOLS[int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % len(POOLS)]


def numbers(purpose: Purpose, rows: Tensor, width: int, *, key: int = 0, stream: int = 0) -> Tensor:
    """Return the uniforms float64 [N, width] of a stream's ``rows`` int64 [N], each a function of key and row."""
    keys, token = Keys(torch.tensor([key])), torch.arange(width)
    some = rows[:, None].split(BATCH)
    return torch.cat([keys.uniform(purpose, round=r, slot=stream, token=token, dimensions=3)[0] for r in some])


def distinct(texts: Callable[[Tensor], list[str]], wanted: dict[Pool, int]) -> dict[Pool, Tensor]:
    """Return which proposals are the first so many distinct prompts of each pool: int64, ascending.

    ``texts(rows)`` gives the texts of the proposals ``rows`` int64 [N]. A pool with fewer prompts than wanted
    gives what it has: the caller says which setting asks too much.
    """
    found: dict[Pool, dict[str, int]] = {pool: {} for pool in wanted}
    missing, first, new = {pool for pool in wanted if wanted[pool] > 0}, 0, FEWEST_NEW
    while missing and new >= FEWEST_NEW:
        before = sum(map(len, found.values()))
        rows = torch.arange(first, first + BATCH)
        for row, text in zip(rows.tolist(), texts(rows), strict=True):
            pool = pool_of(text)
            if pool in missing:
                found[pool].setdefault(text, row)
        new = sum(map(len, found.values())) - before
        missing = {pool for pool in missing if len(found[pool]) < wanted[pool]}
        first += BATCH
    return {pool: torch.tensor(list(found[pool].values())[:count]).long() for pool, count in wanted.items()}
