"""Which prompts a round trains on: each at most once, epoch after epoch, or independent draws.

All orders are keyed by the seed, so every row of a seed meets the same prompts in the same order. Under
dynamic resampling an order is asked again for the slots whose groups were rejected.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from grpo_ablate.rng import Keys, Purpose, RoundUniforms


class Order(Protocol):
    """The prompts of round after round, for M members."""

    def draw(self, round: int, attempt: int, wanted: Tensor, kept: Tensor) -> Tensor:
        """Return prompts int64 [M, B] for the slots ``wanted``; other slots may hold anything in the pool.

        ``kept`` bool [M, B] marks slots whose groups were accepted in earlier attempts of the round.
        Attempts of a round are asked for in turn, starting at 0.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what the order remembers between rounds."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        ...


class EachOnce:
    """Distinct prompts in every round: the whole pool in its own order, or a keyed sample without replacement.

    A rejected prompt goes to the end of the round's queue, and the next in the queue takes its slot; when
    the queue is used up rejected prompts are tried again.
    """

    def __init__(self, keys: Keys, prompts: int, pool: int):
        self.whole = prompts == pool
        self.fixed = torch.arange(pool).expand(len(keys.seeds), pool)
        self.uniforms = RoundUniforms(keys, Purpose.PROMPT_ORDER, (pool, 1, 1))
        self.queue = self.fixed  # int64 [M, P]: each prompt's place in the queue of this round
        self.current = self.fixed[:, :prompts]

    def draw(self, round: int, attempt: int, wanted: Tensor, kept: Tensor) -> Tensor:
        pool = self.queue.shape[1]
        if attempt == 0:
            if self.whole:
                self.queue = self.current = self.fixed
                return self.current
            drawn = self.uniforms(round)[..., 0, 0].argsort(-1)
            self.queue = drawn.argsort(-1)
            self.current = drawn[:, : wanted.shape[1]]
            return self.current
        # Accepted prompts leave for good (the far end), rejected ones queue up behind all others.
        backwards = torch.where(kept, 1 << 40, pool * attempt)
        place = self.queue.gather(1, self.current)
        self.queue = self.queue.scatter(1, self.current, place % pool + backwards)
        self.current = torch.where(wanted, _deal(self.queue.argsort(-1), wanted), self.current)
        return self.current

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        pass


class Cycle:
    """Epoch after epoch through the pool, each in a keyed order of its own; a round may span several."""

    def __init__(self, keys: Keys, prompts: int, pool: int):
        self.keys, self.pool = keys, pool
        members = len(keys.seeds)
        self.consumed = torch.zeros(members, dtype=torch.int64)  # prompts handed out so far
        self.first, self.block = 0, torch.empty(members, 0, pool, dtype=torch.int64)
        self.ahead = max(1, min(64, 65536 // (members * pool)))

    def draw(self, round: int, attempt: int, wanted: Tensor, kept: Tensor) -> Tensor:
        position = self.consumed[:, None] + (wanted.cumsum(1) - 1).clamp(min=0)
        self.consumed = self.consumed + wanted.sum(1)
        first, last = int(position.min()) // self.pool, int(position.max()) // self.pool
        if first < self.first or last >= self.first + self.block.shape[1]:
            self.first, self.block = first, self.epochs(first, max(self.ahead, last - first + 1))
        return self.block.flatten(1).gather(1, position - self.first * self.pool)

    def epochs(self, first: int, count: int) -> Tensor:
        """Return the prompts of consecutive epochs in their order, int64 [M, count, P]."""
        uniforms = self.keys.uniform(
            Purpose.PROMPT_ORDER,
            round=torch.arange(first, first + count)[:, None],
            slot=torch.arange(self.pool),
            dimensions=3,
        )
        return uniforms.argsort(-1)

    def state(self) -> dict[str, Tensor]:
        return {"consumed": self.consumed}

    def load(self, state: dict[str, Tensor]) -> None:
        self.consumed = state["consumed"]


class Independent:
    """Prompts drawn independently and uniformly from the pool."""

    def __init__(self, keys: Keys, prompts: int, pool: int):
        self.pool = pool
        self.uniforms = RoundUniforms(keys, Purpose.PROMPT_ORDER, (prompts, 1, 1))

    def draw(self, round: int, attempt: int, wanted: Tensor, kept: Tensor) -> Tensor:
        return (self.uniforms(round, attempt)[..., 0, 0] * self.pool).long()

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        pass


ORDERS: dict[str, type[EachOnce] | type[Cycle] | type[Independent]] = {
    "each-once": EachOnce,
    "cycle": Cycle,
    "iid": Independent,
}


def _deal(queue: Tensor, wanted: Tensor) -> Tensor:
    """Give the k-th wanted slot of each member the k-th prompt of its queue, int64 [M, B]."""
    return queue.gather(1, (wanted.cumsum(1) - 1).clamp(min=0))
