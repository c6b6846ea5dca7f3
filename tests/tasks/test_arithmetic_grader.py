"""The verifier and the step scores, against plain Python on texts and by hand."""

import random
import re

import pytest
import torch
from arithmetic_by_hand import grade, make, responses, running_totals, steps_of

from grpo_ablate.algorithm import objective
from grpo_ablate.algorithm.records import Batch, RewardDraws
from grpo_ablate.spec.schema import Switches

TASK = make(train_prompts=64, held_out=32)


def prompt_text(number):
    return TASK.exhibit(number, [])["prompt"]


def random_answer(rng, prompt, vocabulary):
    """A string that is often nearly right: true steps, false ones, repeats, and any word of the vocabulary."""
    totals = running_totals(prompt)
    words = []
    for _ in range(rng.randrange(9)):
        kind = rng.randrange(5)
        if kind < 3:
            label = rng.choice(list(totals))
            words += [label, str(totals[label] if rng.random() < 0.7 else rng.randrange(21))]
        elif kind == 3:
            words.append(rng.choice([".", *"bcdefg", str(rng.randrange(21))]))
        else:
            words.append(rng.choice(vocabulary))
    words = [word for word in words if word != "<end>"]
    return words + ["<end>"] * (rng.random() < 0.7)


def test_the_grader_agrees_with_plain_python_on_random_token_strings():
    rng = random.Random(0)
    numbers = torch.arange(96)
    texts = [random_answer(rng, prompt_text(n), TASK.vocabulary) for n in range(96) for _ in range(40)]
    tokens, token = responses(TASK, texts, groups=96)
    tokens = torch.where(token, tokens, torch.arange(tokens.numel()).view_as(tokens) % 49)  # anything may follow
    scores = TASK.score(numbers[None], tokens, token)
    rewards, kinds = [], set()
    for place, words in enumerate(texts):
        prompt, sample = divmod(place, 40)
        reward, answer, steps = grade(prompt_text(prompt), words)
        assert scores.reward[0, prompt, sample] == reward
        assert scores.answers[0, prompt, sample] == (-1 if answer is None else answer)
        assert steps_of(scores, 0, prompt, sample) == steps
        rewards.append(reward)
        kinds |= {score for _, score in steps}
    assert 0.05 < sum(rewards) / len(rewards) < 0.95 and kinds == {-1.0, 1.0}
    assert torch.equal(scores.components["accuracy"], scores.reward)


def test_step_scores_of_a_hand_worked_answer():
    number = next(n for n in range(64) if len(running_totals(prompt_text(n))) == 3)
    totals = running_totals(prompt_text(number))
    b, c, d = (str(totals[label]) for label in "bcd")
    wrong = str((totals["c"] + 1) % 21)
    cases = {
        f"b {b} c {c} d {d} <end>": (1, [(1, 1), (3, 1), (5, 1)]),
        f". b {b} . d {d} <end>": (1, [(2, 1), (5, 1)]),  # skipped and filled
        f"b {b} c {wrong} d {d} <end>": (1, [(1, 1), (3, -1), (5, 1)]),  # one step wrong, answer right
        f"b {b} b {b} d {d} <end>": (1, [(1, 1), (3, -1), (5, 1)]),  # no step pays twice
        f"c {c} b {b} d {d} <end>": (1, [(1, 1), (3, -1), (5, 1)]),  # nor does going back
        f"b {b} g {d} <end>": (1, [(1, 1), (3, -1)]),  # a label that the prompt does not have
        f"b b {b} c . {c} {d} <end>": (1, [(2, 1)]),  # a label without a total is no step
        f"{d} <end>": (1, []),
        f"d {d}": (0, [(1, 1)]),  # no end token
        f"d {d} . <end>": (0, [(1, 1)]),  # the answer does not come last
        "<end>": (0, []),
        "b": (0, []),
    }
    tokens, token = responses(TASK, [text.split() for text in cases])
    scores = TASK.score(torch.tensor([[number]]), tokens, token)
    for sample, (text, (reward, steps)) in enumerate(cases.items()):
        assert scores.reward[0, 0, sample] == reward, text
        assert steps_of(scores, 0, 0, sample) == steps, text
        assert grade(prompt_text(number), text.split())[::2] == (reward, steps), text


def test_responses_with_the_same_final_answer_are_the_same_answer():
    tokens, token = responses(TASK, [x.split() for x in ("b 7 <end>", ". 7 <end>", "8 <end>", "7", ". <end>")])
    answers = TASK.score(torch.tensor([[0]]), tokens, token).answers[0, 0].tolist()
    assert answers[0] == answers[1] != answers[2] and answers[3] == answers[4] not in answers[:3]


@pytest.mark.parametrize("width", (1, 2, 3))
def test_the_shortest_responses_are_graded(width):
    tokens = torch.full((2, 3, 4, width), TASK.end)
    scores = TASK.score(torch.zeros(2, 3, dtype=torch.int64), tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert not scores.reward.any() and not scores.steps.present.any() and (scores.answers == -1).all()


def test_process_supervision_of_graded_steps_gives_the_worked_example():
    """Scores (1, -1) and (1), pooled: .7071, -1.4142, .7071; a token gets the sum over the steps still to come."""
    totals = running_totals(prompt_text(1))
    wrong = (totals["c"] + 1) % 21
    texts = [f"b {totals['b']} c {wrong}".split(), f". b {totals['b']}".split()]
    tokens, token = responses(TASK, texts)
    prompts = torch.tensor([[1]])
    scores = TASK.score(prompts, tokens, token)
    nothing = torch.zeros(tokens.shape)
    batch = Batch(
        prompts=prompts,
        tokens=tokens,
        token=token,
        present=torch.ones(1, 1, 2, dtype=torch.bool),
        truncated=torch.ones(1, 1, 2, dtype=torch.bool),
        reward=scores.reward,
        components=scores.components,
        sampler_logprobs=nothing,
        old_logprobs=nothing,
        steps=scores.steps,
    )
    draws = RewardDraws(*(torch.zeros(1, 1, 2, dtype=torch.float64) for _ in range(3)))
    switches = Switches.model_validate({"advantage": {"supervision": "process"}, "sampling": {"max_tokens": 4}})
    advantages = objective.prepare(batch, switches, draws).advantages[0, 0]
    half = 2**-0.5
    expected = torch.tensor([[-half, -half, -2 * half, -2 * half], [half, half, half, 0]], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected, atol=1e-12, rtol=0)


def test_prompts_read_as_the_task_grades_them():
    pattern = re.compile(r"\d+( [b-g] [+-][1-9])+ =")
    for number in range(96):
        text = prompt_text(number)
        assert pattern.fullmatch(text) and all(0 <= total <= 20 for total in running_totals(text).values())
        tokens, length = TASK.prompt_tokens(torch.tensor(number))
        assert " ".join(TASK.vocabulary[token] for token in tokens[:length].tolist()) == text
        assert (tokens[length:] == TASK.pad).all()
        assert TASK.exhibit(number, [])["answer"] == str(list(running_totals(text).values())[-1])
