"""The vocabulary: English and French words, Spanish pieces of two characters, and a few marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_ablate.tasks.translation.grammar import FORMS, FRENCH, SPANISH
from grpo_ablate.tasks.translation.lexicon import ADJECTIVES, ARTICLES, OBJECTS, SUBJECTS, TARGETS, VERBS

PIECE = 2  # characters of a Spanish token
CONTINUES = "##"  # marks a piece that continues a word


def pieces(word: str) -> list[str]:
    """Return a word in pieces of two characters.

    >>> pieces("vecina")
    ['ve', '##ci', '##na']
    """
    cut = [word[start : start + PIECE] for start in range(0, len(word), PIECE)]
    return [cut[0], *(CONTINUES + piece for piece in cut[1:])]


def as_tokens(words: Iterable[str], target: int) -> list[str]:
    """Return the tokens of a translation: a word each in French, pieces in Spanish."""
    return [piece for word in words for piece in (pieces(word) if target == SPANISH else (word,))]


def as_text(tokens: Sequence[str]) -> str:
    """Return tokens as words.

    >>> as_text(["la", "ve", "##ci", "##na"])
    'la vecina'
    """
    return " ".join(tokens).replace(" " + CONTINUES, "").removeprefix(CONTINUES)


def _vocabulary() -> tuple[str, ...]:
    source = [word.english for word in (*ARTICLES, *SUBJECTS, *OBJECTS, *ADJECTIVES, *VERBS)]
    french = [form for forms in FORMS[FRENCH].values() for form in forms]
    spanish = [piece for forms in FORMS[SPANISH].values() for form in forms for piece in pieces(form)]
    marks = ["<pad>", "<end>", "=", *(f"{target}:" for target in TARGETS)]
    return tuple(dict.fromkeys([*marks, *source, "an", *french, *spanish]))


VOCABULARY = _vocabulary()
NUMBER = {text: number for number, text in enumerate(VOCABULARY)}
PAD, END, EQUALS = range(3)
