"""Counter-based random numbers: a number is a function of its key, never of the order of calls.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11)
on int64 tensors, so that it runs wherever torch runs. A number depends on the run's seed and random
key, on what it is for, on the round, the attempt, the prompt slot, the sample and the token; it does
not depend on how many members are trained side by side, on the group size, or on an interruption.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
HALF_WORD = 1 << 16


class Purpose(IntEnum):
    """What a random number is for; part of the key, so numbers of two purposes are unrelated."""

    RESPONSE = 1  # tokens of training responses
    EVALUATION = 2  # tokens of evaluation responses
    PROMPT_ORDER = 3  # which prompts a round trains on
    MINIBATCH = 4  # how groups are dealt to minibatches
    REWARD_NORMAL = 5  # additive reward noise
    REWARD_UNIFORM = 6  # rewards of the random control
    PROMPT_UNIFORM = 7  # the affine map of a prompt
    EXHIBIT = 8  # responses shown to the reader
    INITIAL_WEIGHTS = 9  # parameters of a policy before any training
    WARM_START = 10  # which demonstrations a step of a warm start trains on
    REWARD_MODEL = 11  # which responses a refresh of the reward model trains on
    TASK_PROMPT = 20  # a task's pools of prompts; the same for every run
    DEMONSTRATION = 21  # a task's noisy demonstrations


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four 32-bit words for each counter and key (words held in int64, any broadcastable shapes).

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [f"{word.item():08x}" for word in philox((zero, zero, zero, zero), (zero, zero))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    word0, word1, word2, word3 = torch.broadcast_tensors(*counter)
    key0, key1 = key
    for _ in range(10):
        product0, product1 = word0 * MULTIPLIERS[0], word2 * MULTIPLIERS[1]
        # The product wraps to a signed 64-bit number; the mask after the shift takes the sign bits off.
        high0, high1 = (product0 >> 32).bitwise_and_(WORD), (product1 >> 32).bitwise_and_(WORD)
        word0, word2 = high1.bitwise_xor_(word1).bitwise_xor_(key0), high0.bitwise_xor_(word3).bitwise_xor_(key1)
        word1, word3 = product1.bitwise_and_(WORD), product0.bitwise_and_(WORD)
        key0, key1 = (key0 + WEYL[0]) & WORD, (key1 + WEYL[1]) & WORD
    return word0, word1, word2, word3


def _within(name: str, value: Tensor | int, end: int) -> None:
    if isinstance(value, Tensor):
        if value.numel() == 0:
            return
        low, high = (int(bound) for bound in value.aminmax())
    else:
        low = high = value
    if low < 0 or high >= end:
        raise ValueError(f"{name} from {low} to {high} leaves the range 0 to {end - 1} of its bits")


@dataclass(frozen=True)
class Keys:
    """The keyed random numbers of M members: seeds int64 [M] and the experiment's random key."""

    seeds: Tensor
    random_key: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a seed or key beyond its bits, which would repeat the numbers of another."""
        _within("random_key", self.random_key, HALF_WORD)
        _within("seeds", self.seeds, WORD + 1)

    def uniform(
        self,
        purpose: Purpose,
        *,
        round: Tensor | int = 0,
        attempt: Tensor | int = 0,
        slot: Tensor | int = 0,
        sample: Tensor | int = 0,
        token: Tensor | int = 0,
        dimensions: int = 1,
    ) -> Tensor:
        """Return float64 uniforms in [0, 1) with 53 random bits, shape [M, ...] with ``dimensions`` axes.

        The coordinates broadcast against each other and against the members' leading axis. ``sample``
        and ``token`` stay below 65,536, the others below 2^32; ValueError otherwise.
        """
        for name, value in (("round", round), ("attempt", attempt), ("slot", slot)):
            _within(name, value, WORD + 1)
        for name, value in (("sample", sample), ("token", token)):
            _within(name, value, HALF_WORD)
        seeds = self.seeds.reshape(-1, *(1 for _ in range(dimensions - 1)))

        def word(value: Tensor | int) -> Tensor:
            tensor = torch.as_tensor(value, dtype=torch.int64, device=seeds.device)
            return tensor + torch.zeros_like(seeds)

        last = word(sample) * HALF_WORD + word(token)
        purposes = torch.full_like(seeds, (self.random_key << 16) | int(purpose))
        high, low, _, _ = philox((word(round), word(attempt), word(slot), last), (seeds, purposes))
        return ((high >> 5).double() * 2.0**26 + (low >> 6).double()) * 2.0**-53


def normal(uniform: Tensor) -> Tensor:
    """Return the standard normals that belong to float64 uniforms in [0, 1): the inverse distribution function.

    >>> normal(torch.tensor([0.025, 0.8, 0.975], dtype=torch.float64))
    tensor([-1.9600,  0.8416,  1.9600], dtype=torch.float64)
    """
    # The middle of the cell of width 2^-52 lies inside (0, 1), where the inverse is finite.
    return torch.special.ndtri(((uniform * 2.0**52).floor() + 0.5) * 2.0**-52)


class RoundUniforms:
    """Uniforms [M, B, G, T] of one purpose, round after round, computed a block of rounds at a time.

    A cache only: the numbers equal those of ``Keys.uniform``, which costs too much per round when the
    tensors are tiny.
    """

    def __init__(self, keys: Keys, purpose: Purpose, shape: tuple[int, int, int], elements: int = 1 << 16):
        self.keys, self.purpose, self.shape = keys, purpose, shape
        size = max(1, len(keys.seeds) * shape[0] * shape[1] * shape[2])
        self.rounds = max(1, min(64, elements // size))
        self.first = -1
        self.block = torch.empty(0)

    def __call__(self, round: int, attempt: int = 0) -> Tensor:
        """Return the uniforms [M, B, G, T] of one round and attempt."""
        if attempt:
            return self.compute(round, 1, attempt)[:, 0]
        first = round - round % self.rounds
        if first != self.first:
            self.first, self.block = first, self.compute(first, self.rounds, 0)
        return self.block[:, round - first]

    def compute(self, first: int, rounds: int, attempt: int) -> Tensor:
        """Return the uniforms [M, rounds, B, G, T] of consecutive rounds."""
        prompts, group_size, tokens = self.shape
        device = self.keys.seeds.device

        def axis(length: int, *shape: int) -> Tensor:
            return torch.arange(length, device=device).reshape(shape)

        return self.keys.uniform(
            self.purpose,
            round=first + axis(rounds, -1, 1, 1, 1),
            attempt=attempt,
            slot=axis(prompts, -1, 1, 1),
            sample=axis(group_size, -1, 1),
            token=axis(tokens, -1),
            dimensions=5,
        )
