"""Sentences: article, adjective or none, noun, verb, and the same again or no object; source and translation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_ablate.tasks.translation.lexicon import (
    ADJECTIVES,
    ARTICLES,
    OBJECTS,
    SUBJECTS,
    TARGETS,
    VERBS,
    Adjective,
    Noun,
    Word,
)

FRENCH, SPANISH = range(len(TARGETS))
PHRASE_NUMBERS = 4
SENTENCE_NUMBERS = 2 + 2 * PHRASE_NUMBERS  # uniforms that draw one sentence
WITH_ADJECTIVE = 0.5
WITH_OBJECT = 0.75


@dataclass(frozen=True)
class Phrase:
    """A noun with its article and at most one adjective; numbers of the lexicon's entries."""

    noun: Noun
    article: int
    adjective: int | None


@dataclass(frozen=True)
class Sentence:
    """What is said, in no language yet."""

    subject: Phrase
    verb: int
    object: Phrase | None

    @property
    def phrases(self) -> tuple[Phrase, ...]:
        """The subject, and the object where there is one."""
        return (self.subject,) if self.object is None else (self.subject, self.object)


@dataclass(frozen=True)
class Slot:
    """A word of a translation and the kind of word it is."""

    kind: str  # article, noun, adjective or verb
    form: str


def sentence(uniforms: Sequence[float]) -> Sentence:
    """Return the sentence that ten uniforms draw."""
    verb, with_object = uniforms[:2]
    subject = _phrase(SUBJECTS, uniforms[2 : 2 + PHRASE_NUMBERS])
    thing = _phrase(OBJECTS, uniforms[2 + PHRASE_NUMBERS :]) if with_object < WITH_OBJECT else None
    return Sentence(subject, int(verb * len(VERBS)), thing)


def _phrase(nouns: Sequence[Noun], uniforms: Sequence[float]) -> Phrase:
    noun, article, with_adjective, adjective = uniforms
    return Phrase(
        nouns[int(noun * len(nouns))],
        int(article * len(ARTICLES)),
        int(adjective * len(ADJECTIVES)) if with_adjective < WITH_ADJECTIVE else None,
    )


def english(said: Sentence) -> list[str]:
    """Return the words of the source sentence."""
    first, *second = (_english(phrase) for phrase in said.phrases)
    return [*first, VERBS[said.verb].english, *(second[0] if second else ())]


def _english(phrase: Phrase) -> list[str]:
    words = [] if phrase.adjective is None else [ADJECTIVES[phrase.adjective].english]
    words.append(phrase.noun.english)
    article = ARTICLES[phrase.article].english
    return ["an" if article == "a" and words[0][0] in "aeiou" else article, *words]


def translation(
    said: Sentence, target: int, wrong_gender: Sequence[bool] = (), wrong_order: Sequence[bool] = ()
) -> list[Slot]:
    """Return the words of the translation into ``target``.

    ``wrong_gender`` and ``wrong_order`` say of each phrase whether article and adjective take the other gender,
    and whether the adjective stands on the other side of the noun.
    """
    gender, order = (*wrong_gender, False, False), (*wrong_order, False, False)
    first, *second = (
        _translation(phrase, target, gender[place], order[place]) for place, phrase in enumerate(said.phrases)
    )
    verb = VERBS[said.verb]
    return [*first, Slot("verb", (verb.french, verb.spanish)[target][0]), *(second[0] if second else ())]


def _translation(phrase: Phrase, target: int, wrong_gender: bool, wrong_order: bool) -> list[Slot]:
    feminine = phrase.noun.feminine[target] != wrong_gender
    article = ARTICLES[phrase.article]
    words = [Slot("noun", (phrase.noun.french, phrase.noun.spanish)[target])]
    if phrase.adjective is not None:
        adjective = ADJECTIVES[phrase.adjective]
        form = Slot("adjective", (adjective.french, adjective.spanish)[target][feminine])
        words.insert(0 if adjective.before[target] != wrong_order else 1, form)
    return [Slot("article", (article.french, article.spanish)[target][feminine]), *words]


def _forms(target: int) -> dict[str, tuple[str, ...]]:
    """Return the forms of each kind of word, each once."""

    def once(words: Iterable[Word | Adjective]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(form for word in words for form in (word.french, word.spanish)[target]))

    return {
        "article": once(ARTICLES),
        "noun": tuple((noun.french, noun.spanish)[target] for noun in SUBJECTS + OBJECTS),
        "adjective": once(ADJECTIVES),
        "verb": once(VERBS),
    }


FORMS = tuple(_forms(target) for target in range(len(TARGETS)))  # by target and kind
