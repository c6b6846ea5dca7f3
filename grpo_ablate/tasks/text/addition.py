"""Integer addition as a text: a few worked sums and one to finish, or a chat message."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch

from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import AdditionTask
from grpo_ablate.tasks.pools import BATCH, Pool, numbers, pool_of
from grpo_ablate.tasks.text.judging import Judge
from grpo_ablate.tasks.text.prompting import chat, plain
from grpo_ablate.tasks.text.protocol import Judged, Prompt
from grpo_ablate.tasks.text.verifiers import Options, last_of_all, numeric

WORKED = "6 + 3 = 9\n14 + 5 = 19\n8 + 9 = 17\n27 + 31 = 58\n"
STREAM = 1000  # of the keyed numbers: beyond those of the arithmetic task, which are numbers of operands

Sum = tuple[int, int]


class Addition:
    """Sums of two numbers, the listed sizes in turns; held-out groups ``digits-2-1`` and so on.

    A sum's text decides whether it is held out. Few-shot the response is its first line and must be the sum alone;
    in a chat the last number counts.
    """

    name = "addition"

    def __init__(self, settings: AdditionTask):
        self.settings = settings
        self.prompt_count, self.held_out_count = settings.train_prompts, settings.held_out
        train, held_out = (
            sums(settings.digits, pool, count)
            for pool, count in ((Pool.TRAIN, settings.train_prompts), (Pool.HELD_OUT, settings.held_out))
        )
        self.sums = train + held_out
        in_chat = settings.form == "chat"
        self.stop: tuple[str, ...] = () if in_chat else ("\n",)
        kinds = [f"digits-{first}-{second}" for first, second in settings.digits]
        self.groups = {
            kind: [kinds[place % len(kinds)] == kind for place in range(self.held_out_count)]
            for kind in sorted(set(kinds))
        }
        self.judge_all = Judge(
            partial(last_of_all if in_chat else numeric, options=Options()),
            ("accuracy",),
            settings.format,
            settings.time_limit,
        )
        self.components = self.judge_all.components

    def prompt(self, number: int) -> Prompt:
        """Return a sum to finish, or a chat message that asks for it."""
        first, second = self.sums[number]
        if self.settings.form == "chat":
            return chat(self.settings, f"What is {first} + {second}?")
        return plain(self.settings, f"{WORKED}{first} + {second} =")

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        """Judge responses to the sums ``numbers``."""
        return self.judge_all(numbers, responses, [(str(sum(self.sums[number])),) for number in numbers])

    def exhibit(self, number: int) -> dict[str, Any]:
        """Return the right sum."""
        return {"answer": str(sum(self.sums[number]))}


def sums(digits: list[list[int]], pool: Pool, count: int) -> list[Sum]:
    """Return so many sums of a pool, the sizes in turns, the same for every run: fewer are the first of more."""
    streams = [_proposals(size, STREAM + turn, pool) for turn, size in enumerate(digits)]
    parts = [list(islice(stream, -(-count // len(digits)))) for stream in streams]
    return [parts[place % len(parts)][place // len(parts)] for place in range(count)]


def _proposals(size: list[int], stream: int, pool: Pool) -> Iterator[Sum]:
    """Yield keyed sums of a size that belong to the pool, without end."""
    lowest = [10 ** (digits - 1) if digits > 1 else 0 for digits in size]
    first = 0
    while True:
        drawn = numbers(Purpose.TASK_PROMPT, torch.arange(first, first + BATCH), 2, stream=stream)
        for row in drawn.tolist():
            one, other = (
                low + int(share * (10**digits - low)) for low, digits, share in zip(lowest, size, row, strict=True)
            )
            if pool_of(f"{one} + {other}") is pool:
                yield one, other
        first += BATCH
