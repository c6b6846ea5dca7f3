"""The words of the three languages, and what their grammars must know of them.

Subjects are people and objects are things, so that Spanish needs no personal ``a``; French words that can follow
an article begin with a consonant, so that nothing is elided.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = ("French", "Spanish")


@dataclass(frozen=True)
class Noun:
    """A noun; the two target languages may give it different genders."""

    english: str
    french: str
    spanish: str
    feminine: tuple[bool, bool]  # in French, in Spanish


@dataclass(frozen=True)
class Adjective:
    """An adjective with its masculine and feminine forms, and whether it stands before the noun."""

    english: str
    french: tuple[str, str]
    spanish: tuple[str, str]
    before: tuple[bool, bool]  # in French, in Spanish


@dataclass(frozen=True)
class Word:
    """A word of one form, as a verb in the third person, or an article with a form per gender."""

    english: str
    french: tuple[str, str]
    spanish: tuple[str, str]


ARTICLES = (
    Word("the", ("le", "la"), ("el", "la")),
    Word("a", ("un", "une"), ("un", "una")),
)
SUBJECTS = (
    Noun("cook", "cuisinier", "cocinero", (False, False)),
    Noun("baker", "boulanger", "panadero", (False, False)),
    Noun("dancer", "danseuse", "bailarina", (True, True)),
    Noun("teacher", "maîtresse", "maestra", (True, True)),
    Noun("singer", "chanteuse", "cantante", (True, True)),
    Noun("gardener", "jardinier", "jardinero", (False, False)),
    Noun("neighbour", "voisine", "vecina", (True, True)),
)
OBJECTS = (
    Noun("apple", "pomme", "manzana", (True, True)),
    Noun("window", "fenêtre", "ventana", (True, True)),
    Noun("hat", "chapeau", "sombrero", (False, False)),
    Noun("library", "bibliothèque", "biblioteca", (True, True)),
    Noun("bicycle", "vélo", "bicicleta", (False, True)),
    Noun("castle", "château", "castillo", (False, False)),
    Noun("map", "carte", "mapa", (True, False)),
)
ADJECTIVES = (
    Adjective("small", ("petit", "petite"), ("pequeño", "pequeña"), (True, True)),
    Adjective("beautiful", ("joli", "jolie"), ("hermoso", "hermosa"), (True, True)),
    Adjective("big", ("grand", "grande"), ("grande", "grande"), (True, False)),
    Adjective("famous", ("célèbre", "célèbre"), ("famoso", "famosa"), (False, True)),
    Adjective("strange", ("étrange", "étrange"), ("extraño", "extraña"), (False, False)),
    Adjective("mysterious", ("mystérieux", "mystérieuse"), ("misterioso", "misteriosa"), (False, False)),
    Adjective("elegant", ("élégant", "élégante"), ("elegante", "elegante"), (False, False)),
)
VERBS = (
    Word("watches", ("regarde", "regarde"), ("observa", "observa")),
    Word("finds", ("trouve", "trouve"), ("encuentra", "encuentra")),
    Word("prefers", ("préfère", "préfère"), ("prefiere", "prefiere")),
    Word("describes", ("décrit", "décrit"), ("describe", "describe")),
    Word("photographs", ("photographie", "photographie"), ("fotografía", "fotografía")),
    Word("protects", ("protège", "protège"), ("protege", "protege")),
    Word("draws", ("dessine", "dessine"), ("dibuja", "dibuja")),
)
