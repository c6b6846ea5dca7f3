"""What the loop asks of a task: prompts by number, and a score for each response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from grpo_ablate.algorithm.records import Steps


@dataclass(frozen=True)
class Scores:
    """Raw rewards of responses; NaN where the verifier returned nothing."""

    reward: Tensor  # float64 [M, B, G], the task's own total
    components: dict[str, Tensor]  # name -> float64 [M, B, G]
    steps: Steps | None = None
    answers: Tensor | None = None  # int64 [M, B, G], equal where two responses give the same answer


@dataclass(frozen=True)
class Demonstrations:
    """Prompts followed by noisy answers, for a warm start; padded on the right."""

    tokens: Tensor  # int64 [N, L], prompt and answer, end token included
    prompt_length: Tensor  # int64 [N]
    length: Tensor  # int64 [N], prompt and answer together


class Task(Protocol):
    """A pool of prompts and a verifier.

    Prompts have numbers: those below ``prompt_count`` train; a language task numbers its held-out ones after them.
    """

    prompt_count: int

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Score responses ``tokens`` int64 [M, B, G, T] (scored where ``token``) to ``prompts`` [M, B]."""
        ...

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return the prompt and the response in words, as JSON-ready values."""
        ...


@runtime_checkable
class Refreshed(Protocol):
    """A task whose scorer learns while a run trains."""

    def refresh(self, round: int) -> None:
        """Train the scorer on what it has scored since the last call; ``round`` rounds are finished."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return everything that refreshes change, by name."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        ...


class LanguageTask(Task, Protocol):
    """A task whose prompts and responses are token sequences over one small vocabulary."""

    vocabulary: tuple[str, ...]  # the text of each token id
    end: int  # the token that ends a response
    pad: int  # fills what is no token; may be the end token
    held_out_count: int
    groups: dict[str, Tensor]  # name -> bool [held-out prompts]: measured apart, as languages or sizes

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens int64 [..., P] of ``prompts`` int64 [...], padded on the right, and lengths [...]."""
        ...

    def demonstrations(self, count: int, key: int) -> Demonstrations:
        """Return ``count`` noisy demonstrations, a function of ``key``, on prompts of neither other pool."""
        ...
