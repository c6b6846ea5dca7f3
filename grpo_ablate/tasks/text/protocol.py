"""What a task in words offers: prompts by number, and verdicts on texts. Nothing here knows of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, str]  # a chat message: its role and its content
Prompt = str | list[Message]


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of one response."""

    values: dict[str, float]  # component -> value; the first is the task's reward
    answer: str | None = None  # what the response answers: equal for equal answers; None: nothing can be told


@dataclass(frozen=True)
class Fault:
    """A response on which the verifier gave no verdict, and why."""

    number: int  # of the prompt
    response: str
    reason: str


@dataclass(frozen=True)
class Judged:
    """Verdicts on N responses, in their order; NaN where there is none."""

    reward: list[float]
    components: dict[str, list[float]]
    answers: list[str | None]
    faults: list[Fault] = field(default_factory=list)


class TextTask(Protocol):
    """Numbered prompts and a scorer of texts; the held-out prompts are numbered after those that train."""

    name: str
    components: tuple[str, ...]  # the first is the reward
    prompt_count: int
    held_out_count: int
    stop: tuple[str, ...]  # texts that end a response, itself included in none
    groups: dict[str, list[bool]]  # name -> which held-out prompts belong to it; measured apart

    def prompt(self, number: int) -> Prompt:
        """Return a prompt as plain text or as chat messages."""
        ...

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        """Judge one response to each of the prompts ``numbers``."""
        ...

    def exhibit(self, number: int) -> dict[str, Any]:
        """Return what a reader may want to know of a prompt beside its text, as its right answer; JSON-ready."""
        ...
