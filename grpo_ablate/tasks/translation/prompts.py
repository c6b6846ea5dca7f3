"""Prompts as ``French: the small cook watches a hat =``, and the pools they come from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grpo_ablate.rng import Purpose
from grpo_ablate.tasks.pools import Pool, distinct, numbers
from grpo_ablate.tasks.translation.grammar import SENTENCE_NUMBERS, Sentence, english, sentence, translation
from grpo_ablate.tasks.translation.lexicon import TARGETS
from grpo_ablate.tasks.translation.words import EQUALS, VOCABULARY, as_tokens


@dataclass(frozen=True)
class Prompt:
    """What to translate into which language."""

    said: Sentence
    target: int

    @property
    def words(self) -> list[str]:
        """The tokens of the prompt, in words."""
        return prompt_words(self.said, self.target)

    @property
    def reference(self) -> list[str]:
        """The tokens of the translation, in words, without the end."""
        return as_tokens((slot.form for slot in translation(self.said, self.target)), self.target)


def prompt_words(said: Sentence, target: int) -> list[str]:
    """Return the tokens of a prompt, in words."""
    return [f"{TARGETS[target]}:", *english(said), VOCABULARY[EQUALS]]


def pools(wanted: dict[Pool, int]) -> dict[Pool, list[Prompt]]:
    """Return prompts of each pool, no source sentence twice, the two target languages taking turns.

    The pool follows from the source sentence alone: no held-out sentence trains in the other language. There are
    enough sentences for the largest sizes that a spec may ask for.
    """
    found = distinct(lambda rows: [" ".join(english(said)) for said in _propose(rows)], wanted)
    return {
        pool: [Prompt(said, turn % len(TARGETS)) for turn, said in enumerate(_propose(rows))]
        for pool, rows in found.items()
    }


def _propose(rows: Tensor) -> list[Sentence]:
    """Return the proposals ``rows`` int64 [N]; the same for every run."""
    drawn: list[list[float]] = numbers(Purpose.TASK_PROMPT, rows, SENTENCE_NUMBERS).tolist()
    return [sentence(uniforms) for uniforms in drawn]
