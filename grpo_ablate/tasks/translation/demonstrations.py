"""Noisy translations to learn from: wrong genders and orders, and words replaced, dropped and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.rng import Purpose
from grpo_ablate.tasks.pools import BATCH, Pool, numbers, pool_of
from grpo_ablate.tasks.protocol import Demonstrations
from grpo_ablate.tasks.translation.grammar import (
    FORMS,
    SENTENCE_NUMBERS,
    Sentence,
    english,
    sentence,
    translation,
)
from grpo_ablate.tasks.translation.lexicon import TARGETS
from grpo_ablate.tasks.translation.prompts import prompt_words
from grpo_ablate.tasks.translation.words import END, NUMBER, PAD, as_tokens

MOST_WORDS = 7
NOISE_NUMBERS = 4 + 4 * MOST_WORDS  # uniforms that make one answer noisy


@dataclass(frozen=True)
class Noise:
    """How demonstrations differ from the translation."""

    wrong_gender: float = 0.3  # of the phrases: article and adjective in the other gender
    wrong_order: float = 0.4  # of the adjectives: on the other side of the noun
    replaced: float = 0.1  # of the words: another one of the same kind
    dropped: float = 0.08  # of the words
    repeated: float = 0.08  # of the words that are not dropped


def demonstrations(count: int, key: int, noise: Noise | None = None) -> Demonstrations:
    """Return ``count`` demonstrations on prompts of the warm-start pool, a function of ``key``."""
    prompts, answers = [], []
    for said, target, uniforms in _warm_start(count, key):
        prompts.append([NUMBER[word] for word in prompt_words(said, target)])
        words = noisy_words(said, target, uniforms, noise or Noise())
        answers.append([*(NUMBER[token] for token in as_tokens(words, target)), END])
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    width = max(len(row) for row in rows)
    return Demonstrations(
        torch.tensor([row + [PAD] * (width - len(row)) for row in rows]),
        torch.tensor([len(prompt) for prompt in prompts]),
        torch.tensor([len(row) for row in rows]),
    )


def _warm_start(count: int, key: int) -> list[tuple[Sentence, int, list[float]]]:
    """Return sentences of the warm-start pool, their target language, and uniforms for their noise."""
    found: list[tuple[Sentence, int, list[float]]] = []
    first, size = 0, min(BATCH, 64 + 2 * count)
    while len(found) < count:
        rows = torch.arange(first, first + size)
        drawn = _uniforms(rows, key, 1 + SENTENCE_NUMBERS, stream=0)
        kept = [(row, sentence(numbers[1:]), int(numbers[0] * len(TARGETS))) for row, numbers in enumerate(drawn)]
        kept = [entry for entry in kept if pool_of(" ".join(english(entry[1]))) is Pool.WARM_START]
        noise = _uniforms(rows[[row for row, _, _ in kept]], key, NOISE_NUMBERS, stream=1)
        found += [(said, target, some) for (_, said, target), some in zip(kept, noise, strict=True)]
        first += size
    return found[:count]


def _uniforms(rows: Tensor, key: int, width: int, stream: int) -> list[list[float]]:
    found: list[list[float]] = numbers(Purpose.DEMONSTRATION, rows, width, key=key, stream=stream).tolist()
    return found


def noisy_words(said: Sentence, target: int, uniforms: Sequence[float], noise: Noise) -> list[str]:
    """Return the words of a noisy translation, which 32 uniforms decide."""
    gender = [uniform < noise.wrong_gender for uniform in uniforms[:2]]
    order = [uniform < noise.wrong_order for uniform in uniforms[2:4]]
    words: list[str] = []
    for place, slot in enumerate(translation(said, target, gender, order)):
        replaced, chosen, dropped, repeated = uniforms[4 + 4 * place : 8 + 4 * place]
        form = slot.form
        if replaced < noise.replaced:
            others = [other for other in FORMS[target][slot.kind] if other != form]
            form = others[int(chosen * len(others))]
        if dropped >= noise.dropped:
            words += [form, form] if repeated < noise.repeated else [form]
    return words
