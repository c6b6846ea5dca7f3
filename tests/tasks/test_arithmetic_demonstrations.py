"""Demonstrations of the arithmetic task: right without noise, wrong at the stated rates with it."""

import pytest
import torch
from arithmetic_by_hand import grade, make, running_totals

from grpo_ablate.tasks.arithmetic.demonstrations import Noise, demonstrations
from grpo_ablate.tasks.arithmetic.words import VOCABULARY
from grpo_ablate.tasks.pools import Pool, pool_of

COUNT = 6000


def in_words(found):
    """Return each demonstration as (prompt text, answer's words)."""
    pairs = []
    for row, start, length in zip(
        found.tokens.tolist(), found.prompt_length.tolist(), found.length.tolist(), strict=True
    ):
        words = [VOCABULARY[token] for token in row[:length]]
        pairs.append((" ".join(words[:start]), words[start:]))
    return pairs


@pytest.fixture(scope="module")
def noisy():
    return in_words(demonstrations(COUNT, 0))


def share(hits, tries, expected):
    """Assert that a share of tries is ``expected`` within four standard errors."""
    assert abs(hits / tries - expected) < 4 * (expected * (1 - expected) / tries) ** 0.5, (hits, tries)


def test_without_noise_every_demonstration_is_right_in_every_step():
    for prompt, words in in_words(demonstrations(500, 0, Noise(0, 0, 0, 0))):
        reward, _, steps = grade(prompt, words)
        assert reward == 1 and steps == [(2 * n + 1, 1.0) for n in range(len(running_totals(prompt)))]
        assert len(words) == 2 * len(steps) + 1


def test_demonstrations_without_noise_earn_everything_from_the_task_itself():
    """The task's own prompts, answered in the way of the demonstrations."""
    task = make(train_prompts=32, held_out=16)
    number = {word: token for token, word in enumerate(VOCABULARY)}
    for prompt in range(48):
        totals = running_totals(task.exhibit(prompt, [])["prompt"])
        words = [word for label, total in totals.items() for word in (label, str(total))] + ["<end>"]
        tokens = torch.tensor([number[word] for word in words])[None, None, None]
        scores = task.score(torch.tensor([[prompt]]), tokens, torch.ones_like(tokens, dtype=torch.bool))
        assert scores.reward.item() == 1 and scores.steps.score[scores.steps.present].tolist() == [1.0] * len(
            totals
        )


def test_steps_are_skipped_and_answers_filled_at_the_stated_rates(noisy):
    skipped = asked = fillers = filled = steps = 0
    for prompt, words in noisy:
        labels = list(running_totals(prompt))
        written = [word for word in words if word in labels]
        assert written == sorted(written) and written[-1] == labels[-1]  # in order, the last never skipped
        asked += len(labels) - 1
        skipped += len(labels) - len(written)
        dots = words.count(".")
        fillers += dots
        filled += dots > 0
        steps += len(written)
        assert words[-1] == "<end>" and len(words) == 2 * len(written) + dots + 1
        assert all(words[place + 1] in labels for place, word in enumerate(words) if word == ".")
    share(skipped, asked, 0.35)
    assert abs(fillers / steps - 0.25) < 0.01 and 0.3 < filled / COUNT < 0.5


def test_steps_go_wrong_at_the_stated_rate_and_stay_wrong(noisy):
    wrong = tries = 0
    for prompt, words in in_words(demonstrations(COUNT, 1, Noise(skipped=0, filled=0))):
        error = 0
        for (label, total), shown in zip(running_totals(prompt).items(), words[1::2], strict=True):
            before, error = error, int(shown) - total
            if 3 <= total <= 17 and abs(before) <= 1:  # no bound of 0..20 interferes
                tries += 1
                wrong += error != before
                assert abs(error - before) <= 2, (label, prompt, words)
    share(wrong, tries, 0.12)
    # The final step is right where all of two to six steps were, and a little more often as errors cancel.
    right = sum(grade(prompt, words)[0] for prompt, words in noisy) / COUNT
    assert 0.61 - 0.03 < right < 0.61 + 0.08


def test_lengths_are_those_of_the_recipe(noisy):
    length = torch.tensor([len(words) for _, words in noisy]).double()
    # (1 + .65 (n - 1)) steps of 2 tokens and a quarter of a filler each, n = 2..6, and the end: 7.64
    assert abs(length.mean() - (2.25 * (1 + 0.65 * 3) + 1)) < 4 * length.std() / COUNT**0.5
    assert abs(length.mean() - 7.6) < 0.2 and abs(length.std() / length.mean() - 0.39) < 0.02
    assert length.max() <= 24


def test_demonstrations_are_a_function_of_their_key_and_longer_lists_begin_alike():
    first, again, longer, other = (demonstrations(n, key) for n, key in ((300, 5), (300, 5), (700, 5), (300, 6)))
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.length, again.length)
    assert in_words(longer)[:300] == in_words(first) != in_words(other)


def test_demonstrations_are_on_prompts_of_their_own_pool_with_three_to_seven_operands(noisy):
    assert {pool_of(prompt) for prompt, _ in noisy} == {Pool.WARM_START}
    kinds = [len(running_totals(prompt)) + 1 for prompt, _ in noisy]
    assert set(kinds) == {3, 4, 5, 6, 7}
    for kind in range(3, 8):
        share(kinds.count(kind), COUNT, 0.2)
    task = make(operands=[3], train_prompts=16, held_out=8)
    assert set(task.demonstrations(2000, 0).prompt_length.tolist()) == {6, 8, 10, 12, 14}
