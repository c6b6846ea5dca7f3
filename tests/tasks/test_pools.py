"""Pools of prompts are disjoint whatever a testbed chooses, and draws from them are distinct and keyed."""

import itertools
from collections import Counter

import pytest
import torch
from arithmetic_by_hand import make
from pydantic import ValidationError

from grpo_ablate.errors import UserError
from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import ArithmeticTask, TranslationTask
from grpo_ablate.tasks.pools import BATCH, Pool, distinct, numbers, pool_of
from grpo_ablate.tasks.registry import make_task
from grpo_ablate.tasks.translation import prompts as translation
from grpo_ablate.tasks.translation.grammar import Phrase, Sentence, english
from grpo_ablate.tasks.translation.lexicon import ADJECTIVES, ARTICLES, OBJECTS, SUBJECTS, VERBS


def texts(task):
    """Return the texts of a task's training and held-out prompts."""
    found = [task.exhibit(number, [])["prompt"] for number in range(task.prompt_count + task.held_out_count)]
    return found[: task.prompt_count], found[task.prompt_count :]


def demonstrated(task, count=4000):
    found = task.demonstrations(count, 0)
    return {
        " ".join(task.vocabulary[token] for token in row[:length])
        for row, length in zip(found.tokens.tolist(), found.prompt_length.tolist(), strict=True)
    }


@pytest.fixture(scope="module")
def every():
    return make(), make(operands=[3, 7], train_prompts=3000, held_out=300), make(operands=[5], train_prompts=500)


def test_arithmetic_pools_are_disjoint_across_testbeds(every):
    train, held_out, start = set(), set(), set()
    for task in every:
        of_train, of_held_out = texts(task)
        assert len(set(of_train)) == task.prompt_count and len(set(of_held_out)) == task.held_out_count
        train |= set(of_train)
        held_out |= set(of_held_out)
        start |= demonstrated(task)
    assert not train & held_out and not train & start and not held_out & start


def test_numbers_of_operands_take_turns_and_name_the_groups(every):
    train, held_out = texts(every[1])
    assert [len(text.split()) // 2 for text in train[:6]] == [3, 7, 3, 7, 3, 7]
    groups = every[1].groups
    assert list(groups) == ["operands-3", "operands-7"] and [int(g.sum()) for g in groups.values()] == [150, 150]
    for number, text in enumerate(held_out):
        assert groups[f"operands-{len(text.split()) // 2}"][number]
    assert list(every[0].groups) == [f"operands-{kind}" for kind in range(3, 8)]
    assert sum(g.int() for g in every[0].groups.values()).tolist() == [1] * 256


def test_prompts_do_not_depend_on_how_many_are_asked_for():
    more, fewer = make(train_prompts=500, held_out=50), make(train_prompts=200, held_out=25)
    for some, all_ in zip(texts(fewer), texts(more), strict=True):
        assert all_[: len(some)] == some


def sources(prompts):
    return {prompt.split(" ", 1)[1] for prompt in prompts}


def test_translation_pools_share_no_source_sentence_in_either_language():
    task = make_task(TranslationTask(name="translation"))
    train, held_out = texts(task)
    start = sources(demonstrated(task))
    assert len(sources(train)) == 2048 and len(sources(held_out)) == 256
    assert not sources(train) & sources(held_out)
    assert not sources(train) & start and not sources(held_out) & start
    assert [text.split()[0] for text in held_out[:4]] == ["French:", "Spanish:"] * 2


def test_every_pool_of_translations_is_large():
    """All sentences that the grammar says, and the tenths of them that belong to each pool."""

    def phrases(nouns):
        kinds = itertools.product(nouns, range(len(ARTICLES)), (None, *range(len(ADJECTIVES))))
        return [Phrase(noun, article, adjective) for noun, article, adjective in kinds]

    said = itertools.product(phrases(SUBJECTS), range(len(VERBS)), (None, *phrases(OBJECTS)))
    found = {" ".join(english(Sentence(*parts))) for parts in said}
    assert len(found) == 2 * 7 * 8 * 7 * (1 + 2 * 7 * 8) == 88_592
    counts = Counter(pool_of(text) for text in found)
    for pool, tenths in ((Pool.HELD_OUT, 1), (Pool.TRAIN, 4), (Pool.WARM_START, 5)):
        share = tenths / 10
        assert abs(counts[pool] / len(found) - share) < 4 * (share * (1 - share) / len(found)) ** 0.5


@pytest.mark.parametrize(
    "settings, words",
    [
        (
            {"operands": [2], "held_out": 16},
            r"task\.train_prompts: 4096 needs 4096 different prompts of 2 operands, but there are",
        ),
        ({"operands": [2, 7], "train_prompts": 8, "held_out": 200}, r"task\.held_out: 200 needs 100 different"),
    ],
)
def test_a_pool_that_is_too_small_is_named_with_the_number_that_it_has(settings, words):
    with pytest.raises(UserError, match=words) as caught:
        make(**settings)
    most = int(str(caught.value).split("at most ")[1].split(",")[0])
    key = "held_out" if "held_out" in str(caught.value) else "train_prompts"
    make(**settings | {key: most})


@pytest.mark.slow
def test_there_are_as_many_sentences_as_a_testbed_may_ask_for():
    largest = TranslationTask(name="translation", train_prompts=32768, held_out=4096)
    found = translation.pools({Pool.TRAIN: largest.train_prompts, Pool.HELD_OUT: largest.held_out})
    assert [len(prompts) for prompts in found.values()] == [32768, 4096]
    for key, size in (("train_prompts", 32769), ("held_out", 4097)):
        with pytest.raises(ValidationError, match=key):
            TranslationTask(name="translation", **{key: size})


def test_numbers_are_a_function_of_key_and_row_alone():
    rows = torch.arange(2 * BATCH + 3)
    whole = numbers(Purpose.TASK_PROMPT, rows, 5, key=3, stream=2)
    some = torch.tensor([2 * BATCH + 1, 0, 7])
    assert torch.equal(numbers(Purpose.TASK_PROMPT, some, 5, key=3, stream=2), whole[some])
    assert torch.equal(numbers(Purpose.TASK_PROMPT, some, 3, key=3, stream=2), whole[some, :3])
    for other in ({"key": 4, "stream": 2}, {"key": 3, "stream": 1}):
        assert not torch.equal(numbers(Purpose.TASK_PROMPT, some, 5, **other), whole[some])


def test_distinct_takes_the_first_of_each_pool_and_ends_where_there_are_no_more():
    def words(rows):
        return [str(row % 40) for row in rows.tolist()]

    found = distinct(words, {Pool.TRAIN: 5, Pool.HELD_OUT: 1000})
    expected = [row for row in range(40) if pool_of(str(row)) is Pool.TRAIN][:5]
    assert found[Pool.TRAIN].tolist() == expected
    assert found[Pool.HELD_OUT].tolist() == [row for row in range(40) if pool_of(str(row)) is Pool.HELD_OUT]


@pytest.mark.parametrize("settings", [ArithmeticTask(name="arithmetic"), TranslationTask(name="translation")])
def test_the_vocabulary_of_a_task_has_no_word_twice(settings):
    task = make_task(settings)
    assert (
        len(set(task.vocabulary)) == len(task.vocabulary) == {"arithmetic": 49, "translation": 149}[settings.name]
    )
    assert all(word and not any(letter.isspace() for letter in word) for word in task.vocabulary)
    assert task.vocabulary[task.end] == "<end>" and task.vocabulary[task.pad] == "<pad>"
