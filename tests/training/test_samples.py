"""The responses that a record keeps, and how `samples` prints them: numbers under the tokens they belong to."""

import json
import re
from dataclasses import replace

import pytest
import torch
from training_specs import make_loop, make_spec

from grpo_ablate.algorithm import objective
from grpo_ablate.algorithm.records import Batch, RewardDraws
from grpo_ablate.runs.exhibit import exhibit
from grpo_ablate.runs.samples import format_samples
from grpo_ablate.spec.schema import ArithmeticTask, Switches, TranslationTask
from grpo_ablate.tasks.registry import make_task

ARITHMETIC = make_task(ArithmeticTask(name="arithmetic", train_prompts=32, held_out=8))
TRANSLATION = make_task(TranslationTask(name="translation", train_prompts=32, held_out=8))


def graded(task, answers, groups, supervision="outcome"):
    """Return a round of two equal members, the answers given as words, in groups of equal size."""
    number = {word: token for token, word in enumerate(task.vocabulary)}
    rows = [[number[word] for word in words.split()] for words in answers]
    width, size = max(map(len, rows)) + 2, len(rows) // groups
    tokens = torch.tensor([row + [5] * (width - len(row)) for row in rows])
    token = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    shape = (2, groups, size, width)
    tokens, token = (values.reshape(1, groups, size, width).expand(shape) for values in (tokens, token))
    prompts = torch.arange(groups).expand(2, -1)
    scores = task.score(prompts, tokens, token)
    batch = Batch(
        prompts=prompts,
        tokens=tokens,
        token=token,
        present=torch.ones(shape[:3], dtype=torch.bool),
        truncated=torch.zeros(shape[:3], dtype=torch.bool),
        reward=scores.reward,
        components=scores.components,
        sampler_logprobs=torch.zeros(shape),
        old_logprobs=torch.zeros(shape),
        steps=scores.steps,
    )
    draws = RewardDraws(
        *(torch.zeros(shape[:3], dtype=torch.float64) for _ in range(2)), torch.zeros(2, groups, 2)
    )
    switches = {"advantage": {"supervision": supervision}, "sampling": {"max_tokens": width}}
    return batch, objective.prepare(batch, Switches.model_validate(switches), draws)


def arithmetic_round():
    totals = ARITHMETIC.running[0]
    b, last = int(totals[1]), int(ARITHMETIC.answers[0])
    end = "bcdefg"[int((totals >= 0).sum()) - 2]
    return graded(ARITHMETIC, [f"b {b} {end} {last} <end>", f". b {(b + 1) % 21} <end>"], 1, "process")


def test_rows_hold_tokens_rewards_advantages_and_steps_of_the_member():
    batch, prepared = arithmetic_round()
    rows = exhibit(batch, prepared, ARITHMETIC, 1, 7, 3)
    assert json.loads(json.dumps(rows)) == rows and len(rows) == 2
    for sample, row in enumerate(rows):
        token = batch.token[1, 0, sample]
        assert row["seed"] == 7 and row["round"] == 3
        assert " ".join(row["tokens"]) == row["response"] and len(row["tokens"]) == int(token.sum())
        assert row["reward"] == float(batch.reward[1, 0, sample])
        assert row["advantages"] == pytest.approx(prepared.advantages[1, 0, sample][token].tolist(), abs=5e-7)
        assert {"prompt", "answer"} <= row.keys()
    assert rows[0]["reward"] == 1 and rows[0]["steps"] == [[1, 1.0], [3, 1.0]]
    assert rows[1]["reward"] == 0 and rows[1]["steps"] == [[2, -1.0]]
    assert rows[0]["advantages"][0] > 0 > rows[1]["advantages"][0]


def test_twenty_responses_are_four_of_each_of_five_prompts():
    batch, prepared = graded(ARITHMETIC, ["b 1 <end>"] * 64, 8)
    rows = exhibit(batch, prepared, ARITHMETIC, 0, 0, 1)
    prompts = [ARITHMETIC.exhibit(number, [])["prompt"] for number in range(5)]
    assert [row["prompt"] for row in rows] == [prompt for prompt in prompts for _ in range(4)]
    few = replace(batch, present=batch.present & (torch.arange(8) == 6)[:, None])
    assert [row["prompt"] for row in exhibit(few, prepared, ARITHMETIC, 0, 0, 1)] == [
        ARITHMETIC.exhibit(6, [])["prompt"]
    ] * 8  # one group was accepted: all that there is
    assert exhibit(replace(few, present=few.present & False), prepared, ARITHMETIC, 0, 0, 1) == []


def test_a_missing_reward_is_none():
    batch, prepared = arithmetic_round()
    missing = replace(batch, reward=torch.full_like(batch.reward, torch.nan))
    assert [row["reward"] for row in exhibit(missing, prepared, ARITHMETIC, 0, 0, 1)] == [None, None]
    assert "reward missing" in format_samples(exhibit(missing, prepared, ARITHMETIC, 0, 0, 1), 80)


def columns(line, start):
    """Return the cells of a table's line with the column at which each ends."""
    return {match.end(): match.group() for match in re.finditer(r"\S+", line[start:])}


def test_advantages_and_step_scores_stand_under_their_tokens():
    batch, prepared = arithmetic_round()
    lines = format_samples(exhibit(batch, prepared, ARITHMETIC, 0, 7, 3), 100).splitlines()
    assert lines[0] == "seed 7, round 3"
    assert lines[2].endswith(f"=  [answer: {int(ARITHMETIC.answers[0])}]")
    at = next(place for place, line in enumerate(lines) if line.startswith("    token"))
    start = len("    step score")
    tokens, advantages, steps = (columns(line, start) for line in lines[at : at + 3])
    assert tokens.keys() == advantages.keys() and steps.keys() < tokens.keys()
    assert [tokens[place] for place in steps] == [
        str(int(ARITHMETIC.running[0][1])),
        str(int(ARITHMETIC.answers[0])),
    ]
    assert list(steps.values()) == ["+1", "+1"]
    shown = [float(text) for text in advantages.values()]
    token = batch.token[0, 0, 0]
    assert shown == pytest.approx(prepared.advantages[0, 0, 0][token].tolist(), abs=5e-4)


@pytest.mark.parametrize("width", (30, 41, 60, 200))
def test_a_long_response_is_wrapped_and_nothing_is_lost(width):
    words = "el co ##ci ##ne ##ro ob ##se ##rv ##a la ma ##nz ##an ##a gr ##an ##de <end>"
    batch, prepared = graded(TRANSLATION, [words, "el <end>"], 1)
    rows = exhibit(batch, prepared, TRANSLATION, 0, 0, 1)
    assert rows[0]["response"] == "el cocinero observa la manzana grande <end>"
    lines = format_samples(rows[:1], width).splitlines()
    assert all(len(line) <= width for line in lines)
    tables = [line for line in lines if line.startswith("    token")]
    assert (len(tables) > 1) == (width < 200)
    assert " ".join(line.removeprefix("    token") for line in tables).split() == words.split()
    for line in tables:
        below = lines[lines.index(line) + 1]
        assert below.startswith("    advantage") and columns(line, 13).keys() == columns(below, 13).keys()
    assert f"reference: {TRANSLATION.references[0]}" in " ".join(" ".join(lines).split())


def test_a_response_of_one_token_is_shown_once_with_its_advantage():
    loop, seen = make_loop(make_spec(rounds=1), range(3)), []
    loop.start()
    loop.advance(seen.append)
    rows = exhibit(seen[0].batch, seen[0].prepared, loop.task, 2, 5, 1)
    assert len(rows) == 16 and all(row["tokens"] == [row["response"]] for row in rows)
    assert all(len(row["advantages"]) == 1 and "steps" not in row for row in rows)
    text = format_samples(rows[:1], 80).splitlines()
    assert text[2] == f"{rows[0]['prompt']}  [target: French]"
    assert text[3] == f"  reward {rows[0]['reward']:.3f}"
    assert text[4].split() == ["token", rows[0]["response"]]
    assert text[5].split() == ["advantage", f"{rows[0]['advantages'][0]:+.3f}"] and len(text[4]) == len(text[5])


def test_rounds_of_a_seed_stand_apart():
    batch, prepared = arithmetic_round()
    rows = [row for number in (1, 20, 40) for row in exhibit(batch, prepared, ARITHMETIC, 0, 0, number)]
    headings = [line for line in format_samples(rows, 80).splitlines() if line.startswith("seed")]
    assert headings == ["seed 0, round 1", "seed 0, round 20", "seed 0, round 40"]
