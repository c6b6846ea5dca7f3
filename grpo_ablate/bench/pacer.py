"""Runs one side of a comparison in slices of whole rounds, each when the measuring process asks for it.

Orders and replies are lines of JSON: ``{"rounds": 7}`` asks for a slice, ``{"evaluate": [2, 16]}`` for the
seconds of an evaluation with that many samples a prompt. The end of the orders ends the side.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch
from torch import Tensor

from grpo_ablate.bench.flops import TokenCost, forward, training


class Finished(BaseException):
    """No more slices are wanted. Not an Exception: no trainer may take it for a fault of its own."""


@dataclass(frozen=True)
class Round:
    """What one rollout round with all its inner steps did; the seconds are None where a side cannot tell."""

    prompts: Tensor  # int64 [M, B], tokens of each prompt
    responses: Tensor  # int64 [M, B, G], tokens of each response, the end token included
    learns: Tensor  # bool [M, B]: not all rewards of the group are equal, so that it has a gradient
    sampling: float | None = None
    training: float | None = None


@dataclass(frozen=True)
class Slice:
    """What one process did in one slice; sums over its rounds and models."""

    rounds: int
    seconds: float  # wall time
    updates: int = 0  # rounds of one model, summed over models
    tokens: int = 0  # sampled
    responses: int = 0
    sampling_seconds: float | None = None
    training_seconds: float | None = None
    sampling_flops: float = 0.0
    training_flops: float = 0.0
    peak_bytes: int = 0  # resident memory so far, or that of the accelerator


class Pacer:
    """A side calls ``ready`` once and ``round`` after each round; both return when work is wanted."""

    def __init__(self, orders: TextIO, replies: TextIO, *, cost: TokenCost, passes: int, device: str = "cpu"):
        self.orders, self.replies = orders, replies
        self.cost, self.passes, self.device = cost, passes, device
        self.evaluate: Callable[[int], object] | None = None
        self.rounds: list[Round | None] = []
        self.wanted, self.began = 0, 0.0

    def ready(self) -> None:
        """Say that everything is loaded and wait for the first order."""
        self._reply({"ready": True})
        self._wait()

    def round(self, done: Round | None) -> None:
        """Count a round; at the end of a slice, report it and wait. ``None`` is a round of no responses."""
        self.rounds.append(done)
        if len(self.rounds) < self.wanted:
            return
        self._synchronise()
        seconds = time.perf_counter() - self.began
        self._reply(asdict(self._slice(seconds)))
        self._wait()

    def _wait(self) -> None:
        self.rounds = []
        while True:
            line = self.orders.readline()
            if not line:
                raise Finished
            order = json.loads(line)
            if "evaluate" in order:
                self._reply({"evaluation": self._evaluations(order["evaluate"])})
                continue
            self.wanted, self.began = order["rounds"], time.perf_counter()
            return

    def _evaluations(self, samples: Sequence[int]) -> list[float]:
        assert self.evaluate is not None
        self.evaluate(min(samples))  # the first one builds what later ones find
        seconds = []
        for count in samples:
            began = time.perf_counter()
            self.evaluate(count)
            self._synchronise()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _slice(self, seconds: float) -> Slice:
        rounds = [done for done in self.rounds if done is not None]
        sampled = sum(forward(self.cost, done.prompts, done.responses) for done in rounds)
        learnt = sum(
            forward(self.cost, *(x[done.learns] for x in (done.prompts, done.responses))) for done in rounds
        )
        return Slice(
            rounds=len(self.rounds),
            seconds=seconds,
            updates=sum(len(done.responses) for done in rounds),
            tokens=sum(int(done.responses.sum()) for done in rounds),
            responses=sum(done.responses.numel() for done in rounds),
            sampling_seconds=_total([done.sampling for done in rounds]),
            training_seconds=_total([done.training for done in rounds]),
            sampling_flops=sampled,
            training_flops=training(learnt, self.passes),
            peak_bytes=peak_bytes(self.device),
        )

    def _synchronise(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _reply(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self.replies, flush=True)


def _total(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) and known else None


def peak_bytes(device: str) -> int:
    """Return the most memory this process has held: resident on a CPU, allocated on an accelerator."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
