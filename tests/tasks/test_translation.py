"""The grammar by examples, demonstrations at the stated rates, and the grader on exact and spoilt translations."""

import pytest
import torch

from grpo_ablate.spec.schema import TranslationTask
from grpo_ablate.tasks.registry import make_task
from grpo_ablate.tasks.translation.demonstrations import Noise, demonstrations, noisy_words
from grpo_ablate.tasks.translation.grammar import FRENCH, SPANISH, Phrase, Sentence, english, sentence, translation
from grpo_ablate.tasks.translation.lexicon import OBJECTS, SUBJECTS
from grpo_ablate.tasks.translation.words import NUMBER, VOCABULARY, as_text, as_tokens

COUNT = 6000
NONE = Noise(0, 0, 0, 0, 0)
SETTINGS = TranslationTask(name="translation")


@pytest.fixture(scope="module")
def task():
    return make_task(SETTINGS)


def phrase(nouns, noun, article, adjective=None):
    return Phrase(next(entry for entry in nouns if entry.english == noun), article, adjective)


SMALL, BIG, FAMOUS, ELEGANT = 0, 2, 3, 6
WATCHES, FINDS = 0, 1
SAID = {
    Sentence(phrase(SUBJECTS, "cook", 0), WATCHES, None): (
        "the cook watches",
        "le cuisinier regarde",
        "el cocinero observa",
    ),
    Sentence(phrase(SUBJECTS, "dancer", 1, SMALL), FINDS, phrase(OBJECTS, "bicycle", 1, FAMOUS)): (
        "a small dancer finds a famous bicycle",
        "une petite danseuse trouve un vélo célèbre",
        "una pequeña bailarina encuentra una famosa bicicleta",
    ),
    Sentence(phrase(SUBJECTS, "neighbour", 0, ELEGANT), WATCHES, phrase(OBJECTS, "map", 1, BIG)): (
        "the elegant neighbour watches a big map",
        "la voisine élégante regarde une grande carte",
        "la vecina elegante observa un mapa grande",
    ),
    Sentence(phrase(SUBJECTS, "baker", 1, ELEGANT), FINDS, phrase(OBJECTS, "apple", 1)): (
        "an elegant baker finds an apple",
        "un boulanger élégant trouve une pomme",
        "un panadero elegante encuentra una manzana",
    ),
}


def forms(said, target, *wrong):
    return " ".join(slot.form for slot in translation(said, target, *wrong))


@pytest.mark.parametrize("said", SAID)
def test_sentences_agree_in_gender_and_order_in_both_languages(said):
    assert (" ".join(english(said)), forms(said, FRENCH), forms(said, SPANISH)) == SAID[said]


def test_a_wrong_gender_changes_article_and_adjective_and_a_wrong_order_the_side():
    said = list(SAID)[1]
    assert forms(said, FRENCH, [True, False]) == "un petit danseuse trouve un vélo célèbre"
    assert forms(said, FRENCH, [], [False, True]) == "une petite danseuse trouve un célèbre vélo"
    assert forms(said, SPANISH, [True, True], [True, False]) == (
        "un bailarina pequeño encuentra un famoso bicicleta"
    )


def test_spanish_goes_in_pieces_of_two_characters_and_french_in_words():
    assert as_tokens(["la", "vecina"], SPANISH) == ["la", "ve", "##ci", "##na"]
    assert as_tokens(["la", "voisine"], FRENCH) == ["la", "voisine"]
    for said, texts in SAID.items():
        for target in (FRENCH, SPANISH):
            tokens = as_tokens((slot.form for slot in translation(said, target)), target)
            assert as_text(tokens) == texts[1 + target] and all(token in NUMBER for token in tokens)


def share(hits, tries, expected):
    """Assert that a share of tries is ``expected`` within four standard errors."""
    assert abs(hits / tries - expected) < 4 * (expected * (1 - expected) / tries) ** 0.5, (hits, tries)


def drawn(count=COUNT):
    """Return sentences and uniforms for their noise."""
    uniforms = torch.rand(count, 42, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    return [(sentence(row[:10]), row[10:]) for row in uniforms]


def test_without_noise_a_demonstration_is_the_translation():
    for said, uniforms in drawn(500):
        for target in (FRENCH, SPANISH):
            assert noisy_words(said, target, uniforms, NONE) == forms(said, target).split()


def test_each_kind_of_noise_comes_at_its_rate():
    words = replaced = dropped = repeated = phrases = adjectives = gender = order = 0
    for said, uniforms in drawn():
        right = [slot.form for slot in translation(said, FRENCH)]
        words += len(right)
        found = noisy_words(said, FRENCH, uniforms, Noise(0, 0, 0.1, 0, 0))
        assert len(found) == len(right)
        replaced += sum(one != other for one, other in zip(found, right, strict=True))
        dropped += len(right) - len(noisy_words(said, FRENCH, uniforms, Noise(0, 0, 0, 0.08, 0)))
        repeated += len(noisy_words(said, FRENCH, uniforms, Noise(0, 0, 0, 0, 0.08))) - len(right)
        phrases += len(said.phrases)
        found = noisy_words(said, SPANISH, uniforms, Noise(0.3, 0, 0, 0, 0))
        articles = [slot for slot in translation(said, SPANISH) if slot.kind == "article"]
        here = [word for word in found if word in ("el", "la", "un", "una")]
        gender += sum(slot.form != word for slot, word in zip(articles, here, strict=True))
        adjectives += sum(part.adjective is not None for part in said.phrases)
        wrong = translation(said, FRENCH, [], [uniform < 0.4 for uniform in uniforms[2:4]])
        assert noisy_words(said, FRENCH, uniforms, Noise(0, 0.4, 0, 0, 0)) == [slot.form for slot in wrong]
        moved = [one.kind != other.kind for one, other in zip(wrong, translation(said, FRENCH), strict=True)]
        order += sum(moved) // 2
    share(replaced, words, 0.1)
    share(dropped, words, 0.08)
    share(repeated, words, 0.08)
    share(gender, phrases, 0.3)
    share(order, adjectives, 0.4)


def test_demonstrations_without_noise_earn_everything(task):
    for number in range(task.prompt_count, task.prompt_count + 64):
        tokens = torch.tensor([NUMBER[word] for word in task.prompts[number].reference] + [task.end])
        scores = task.score(
            torch.tensor([[number]]), tokens[None, None, None], torch.ones(1, 1, 1, len(tokens), dtype=torch.bool)
        )
        assert scores.reward.item() == 1 and scores.components["accuracy"].item() == 1


def test_demonstrations_hold_prompt_and_answer_and_are_a_function_of_their_key(task):
    first, again, longer, other = (demonstrations(n, key) for n, key in ((200, 5), (200, 5), (500, 5), (200, 6)))
    assert torch.equal(first.tokens, again.tokens) and not torch.equal(first.length, other.length)
    width = first.tokens.shape[1]
    assert torch.equal(longer.tokens[:200, :width], first.tokens)
    for row, start, length in zip(
        first.tokens.tolist(), first.prompt_length.tolist(), first.length.tolist(), strict=True
    ):
        words = [VOCABULARY[token] for token in row]
        assert words[0] in ("French:", "Spanish:") and words[start - 1] == "=" and words[length - 1] == "<end>"
        assert words[:length].count("<end>") == 1 and set(words[length:]) <= {"<pad>"}
    clean, noisy = demonstrations(2000, 0, NONE), demonstrations(2000, 0)
    assert torch.equal(clean.tokens[:, :5], noisy.tokens[:, :5])  # the same prompts
    share(int((noisy.tokens[:, 0] == NUMBER["French:"]).sum()), 2000, 0.5)


def test_lengths_are_near_those_of_the_recipe(task):
    """6.5 tokens in French and 18.7 in Spanish, end token included."""
    found = task.demonstrations(COUNT, 0)
    length = (found.length - found.prompt_length).double()
    french = found.tokens[:, 0] == NUMBER["French:"]
    held_out = [len(prompt.reference) + 1 for prompt in task.prompts[task.prompt_count :]]
    for target, expected in ((0, 6.5), (1, 18.7)):
        demonstrated = length[french if target == 0 else ~french].mean()
        references = torch.tensor(held_out[target::2]).double().mean()
        assert abs(demonstrated / expected - 1) < 0.06 and abs(references / expected - 1) < 0.06
    assert length.max() <= 40


def test_exactness_needs_the_reference_and_the_end_token(task):
    right = [NUMBER[word] for word in task.prompts[0].reference]
    rows = [[*right, task.end], right, [*right[1:], task.end], [*right, *right[-1:], task.end], [task.end], right]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [task.pad] * (width - len(row)) for row in rows])[None, None]
    token = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    scores = task.score(torch.tensor([[0]]), tokens, token[None, None])
    assert scores.components["accuracy"][0, 0].tolist() == [1, 0, 0, 0, 0, 0]
    assert scores.reward[0, 0, :2].tolist() == [1, 1] and scores.reward[0, 0, 4] == 0
    assert ((scores.reward[0, 0, 2:4] > 0.3) & (scores.reward[0, 0, 2:4] < 1)).all()
    answers = scores.answers[0, 0].tolist()
    assert answers[1] == answers[5] and len(set(answers)) == 5


def test_the_same_response_to_another_prompt_is_graded_by_its_own_reference(task):
    right = [NUMBER[word] for word in task.prompts[0].reference] + [task.end]
    tokens = torch.tensor(right).expand(1, 3, 2, -1)
    scores = task.score(torch.tensor([[0, 2, 4]]), tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert scores.components["accuracy"][0].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_groups_are_the_target_languages(task):
    words = [prompt.words[0] for prompt in task.prompts[task.prompt_count :]]
    assert list(task.groups) == ["french", "spanish"]
    for name, members in task.groups.items():
        assert [word == f"{name.capitalize()}:" for word in words] == members.tolist()


def test_prompts_are_their_words(task):
    tokens, length = task.prompt_tokens(torch.tensor([[0, 1], [2, 3]]))
    assert tokens.shape == (2, 2, 9) and length.shape == (2, 2)
    for number in range(4):
        row, size = tokens.flatten(0, 1)[number].tolist(), int(length.flatten()[number])
        assert " ".join(VOCABULARY[token] for token in row[:size]) == task.exhibit(number, [])["prompt"]
        assert set(row[size:]) <= {task.pad}
