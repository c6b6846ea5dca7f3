"""What the loop asks of a task: prompts by number, and a score for each response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from grpo_ablate.algorithm.records import Steps


@dataclass(frozen=True)
class Scores:
    """Raw rewards of responses; NaN where the verifier returned nothing."""

    reward: Tensor  # float64 [M, B, G], the task's own total
    components: dict[str, Tensor]  # name -> float64 [M, B, G]
    steps: Steps | None = None


class Task(Protocol):
    """A pool of prompts and a verifier."""

    prompt_count: int

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Score responses ``tokens`` int64 [M, B, G, T] (scored where ``token``) to ``prompts`` [M, B]."""
        ...

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return the prompt and the response in words, as JSON-ready values."""
        ...
