"""Texts in training, from rollout to record: missing verdicts, components, filters, own functions and models."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import write_lines
from tiny_model import CHAT, byte_tokenizer, save_tiny
from torch import Tensor

from grpo_ablate.algorithm import objective
from grpo_ablate.algorithm.draws import RewardNumbers
from grpo_ablate.algorithm.records import Prepared
from grpo_ablate.algorithm.rollout import Rollout, draw_groups
from grpo_ablate.algorithm.sampling import accepted
from grpo_ablate.metrics import divide
from grpo_ablate.policies.protocol import Draw, Samples
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.runs.samples import format_samples
from grpo_ablate.runs.train import make_loop, train
from grpo_ablate.spec.schema import JsonlTask, Spec
from grpo_ablate.tasks.text.jsonl import Jsonl
from grpo_ablate.tasks.text.protocol import Fault, Judged
from grpo_ablate.tasks.text.tokenized import Tokenized


class Graded:
    """A text task in which a response says its own accuracy and format, as ``1 0``, or ``? 0`` for no verdict."""

    name, components, stop = "graded", ("accuracy", "format"), ()
    prompt_count, held_out_count = 2, 1
    groups: dict[str, list[bool]] = {}

    def prompt(self, number: int) -> str:
        return f"{number}:"

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        accuracy = [math.nan if response[0] == "?" else float(response[0]) for response in responses]
        faults = [
            Fault(number, response, "no verdict")
            for number, response, value in zip(numbers, responses, accuracy, strict=True)
            if math.isnan(value)
        ]
        format = [float(response[2]) for response in responses]
        return Judged(accuracy, {"accuracy": accuracy, "format": format}, list(responses), faults)

    def exhibit(self, number: int) -> dict[str, Any]:
        return {}


class Script:
    """A policy that answers what it is told to."""

    def __init__(self, *groups: list[str]):
        rows = [[byte_tokenizer()(text)["input_ids"] for text in group] for group in groups]
        self.tokens = torch.tensor([rows])

    def sample(self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool) -> Samples:
        token = torch.ones_like(self.tokens, dtype=torch.bool)
        zeros = torch.zeros(self.tokens.shape)
        return Samples(self.tokens, token, token[..., 0] & False, zeros, zeros, None, None)


def spec(**sections: Any) -> Spec:
    plain: dict[str, Any] = {
        "task": {"name": "addition", "form": "chat", "format": "boxed"},
        "policy": {"name": "huggingface", "model": "unused", "device": "cpu"},
        "evaluation": {"samples": 2},
        "sampling": {"prompts": 2, "group_size": 3, "max_tokens": 3},
        "advantage": {"scale": "none"},
        "budget": {"rollouts": 6},
    }
    return Spec.model_validate(plain | sections)


def generated(settings: Spec, *groups: list[str]) -> tuple[Rollout, Prepared]:
    """Return one round of scripted answers as the loop has it before its first step."""
    task = Tokenized(Graded(), byte_tokenizer())
    prompts, wanted = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
    policy: Any = Script(*groups)
    batch = draw_groups(policy, task, settings, prompts, wanted, Draw(Purpose.RESPONSE, 0))
    kept = replace(batch, present=batch.present & accepted(batch, settings.sampling)[..., None])
    size = len(groups[0])
    numbers = RewardNumbers(settings.reward, Keys(torch.tensor([0])), 2, size, 2)
    prepared = objective.prepare(kept, settings, numbers(0, prompts))
    training = torch.ones(1, dtype=torch.bool)
    return Rollout(kept, batch, training, ~training), prepared


def measured(settings: Spec, round: Rollout, prepared: Prepared) -> dict[str, float]:
    found = divide(objective.round_metrics(round.batch, prepared, round.generated, settings))
    return {name: value.item() for name, value in found.items()}


def test_a_missing_verdict_is_counted_and_leaves_its_siblings_alone() -> None:
    """[1, 0, None]: +-.5 for the two, 0 for the third."""
    settings = spec()
    round, prepared = generated(settings, ["1 1", "0 1", "? 0"], ["? 1", "? 0", "1 1"])
    assert prepared.advantages[0, :, :, 0].tolist() == [[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]
    assert (prepared.weights[0, 0, :, 0] > 0).tolist() == [True, True, False]
    found = measured(settings, round, prepared)
    assert found["train/reward_missing"] == 3 / 6
    assert found["train/reward_raw"] == found["train/component_accuracy"] == 2 / 3
    assert found["train/component_format"] == 4 / 6


def test_components_are_weighted_and_a_part_that_is_missing_makes_the_whole_missing() -> None:
    settings = spec(reward={"components": {"accuracy": 1.0, "format": 0.5}})
    _, prepared = generated(settings, ["1 1", "0 1", "1 0"], ["? 1", "0 0", "1 1"])
    assert prepared.shaped[0, 0].tolist() == [1.5, 0.5, 1.0]
    assert prepared.shaped[0, 1].isnan().tolist() == [True, False, False]
    assert prepared.advantages[0, :, :, 0].tolist() == [[0.5, -0.5, 0.0], [0.0, -0.75, 0.75]]
    alone = spec(reward={"components": {"format": 2.0}})
    _, prepared = generated(alone, ["1 1", "0 1", "1 0"], ["? 1", "0 0", "1 1"])
    assert prepared.shaped[0].tolist() == [[2, 2, 0], [2, 0, 2]]


@pytest.mark.parametrize(
    ("filter_on", "kept"),
    [("accuracy", [True, False]), ("format", [False, True]), ("reward", [True, False])],
)
def test_dynamic_sampling_filters_on_the_component_it_names(filter_on: str, kept: list[bool]) -> None:
    weights = {"components": {"accuracy": 1.0, "format": 0.5}}
    law = {"prompts": 2, "group_size": 3, "max_tokens": 3, "dynamic": "drop", "filter_on": filter_on}
    settings = spec(reward=weights, sampling=law)
    round, prepared = generated(settings, ["1 1", "0 1", "? 1"], ["1 1", "1 0", "1 0"])
    assert round.batch.present[0].all(-1).tolist() == kept
    assert (prepared.advantages[0] != 0).any(-1).any(-1).tolist() == kept
    found = measured(settings, round, prepared)
    assert found["train/component_format"] == 4 / 6 and found["train/component_accuracy"] == 4 / 5


VERIFIER = '''
import time

def judge(response, answer, row):
    """Right by the first letter; some responses are too much for it."""
    if response[:1] < "@":
        raise ValueError("what is " + response[:1])
    if response[:1] < "H":
        return None
    return response[:1] < answer
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A working directory with a tiny model, questions and a verifier; return the sections of a spec on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    save_tiny(tmp_path / "model", tokenizer=byte_tokenizer(chat_template=CHAT))
    write_lines(Path("data.jsonl"), [{"question": f"{n}?", "answer": "k"} for n in range(12)])
    name = f"letters_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(VERIFIER)
    return {
        "task": {"name": "jsonl", "path": "data.jsonl", "verifier": f"{name}:judge", "held_out_share": 0.3},
        "policy": {"name": "huggingface", "model": "model", "device": "cpu"},
        "sampling": {"prompts": 3, "group_size": 4, "max_tokens": 6},
        "optimizer": {"learning_rate": 0.05},
        "budget": {"rollouts": 48},
    }


def record(settings: Spec, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, and return the columns of the record's metrics and its samples."""
    import pyarrow.parquet as pq

    train(settings, range(1), folder / "record", folder / "scratch", testbed="small")
    samples = [json.loads(line) for line in (folder / "record/samples.jsonl").read_text().splitlines()]
    return pq.read_table(folder / "record/metrics.parquet").to_pydict(), samples


def test_a_run_counts_and_keeps_what_its_verifier_failed_on(
    project: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics, samples = record(spec(**project), tmp_path)
    faults = [sample for sample in samples if "fault" in sample]
    assert faults and all(sample["reward"] is None and sample["tokens"] == [] for sample in faults)
    for sample in faults:
        first = sample["response"][:1]
        assert sample["fault"] == (f"ValueError: what is {first}" if first < "@" else "returned None")
        assert sample["prompt"].endswith("?") and sample["answer"] == "k"
    said = capfd.readouterr().err
    assert said.count("the verifier gave no verdict on") == 1 and faults[0]["fault"] in said
    trained = [row for row in range(len(metrics["round"])) if metrics["round"][row] > 0]
    assert all(0 < metrics["train/reward_missing"][row] < 1 for row in trained)
    assert all(metrics["train/component_accuracy"][row] == metrics["train/reward_raw"][row] for row in trained)
    assert all(0 <= value <= 1 for value in metrics["eval/reward"])
    assert all(0 <= value <= 1 for value in metrics["eval/reward_missing"])
    assert f"fault: {faults[0]['fault']}" in format_samples(samples, 200)


def test_a_runs_metrics_are_those_of_its_responses_counted_one_by_one(
    project: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under resampling: only drawn responses are judged, and every mean is over those with a verdict."""
    shown: list[tuple[bool, list[tuple[int, str]]]] = []
    judge = Jsonl.judge

    def spy(self: Jsonl, numbers: list[int], responses: list[str]) -> Judged:
        shown.append((numbers[0] < self.prompt_count, list(zip(numbers, responses, strict=True))))
        return judge(self, numbers, responses)

    def verdict(response: str) -> float | None:
        return None if response[:1] < "H" else float(response[:1] < "k")

    monkeypatch.setattr(Jsonl, "judge", spy)
    weights = {"components": {"score": 1.0, "accuracy": 0.5}}
    law = {**project["sampling"], "prompts": 4, "group_size": 3, "dynamic": "resample"}
    told = {**project, "reward": weights, "sampling": law, "evaluation": {"samples": 3}}
    metrics, samples = record(spec(**told), tmp_path)
    rounds: list[list[tuple[int, str]]] = [[]]
    measured: list[list[tuple[int, str]]] = []
    for trains, pairs in shown:
        if trains:
            rounds[-1] += pairs
        elif len(pairs) > len({number for number, _ in pairs}):  # not the greedy answers
            measured.append(pairs)
            rounds.append([])
    assert len(measured) == len(metrics["round"]) > 2 and rounds.pop() == []
    kept = sum("fault" in sample for sample in samples)
    assert kept == min(100, sum(verdict(text) is None for _, pairs in shown for _, text in pairs)) > 0
    assert sum(map(len, rounds)) == metrics["rollouts"][-1]
    for row, (drawn, asked) in enumerate(zip(rounds, measured, strict=True)):
        by_prompt: dict[int, list[float]] = {}
        for number, text in asked:
            by_prompt.setdefault(number, []).extend([] if (one := verdict(text)) is None else [one])
        means = [sum(known) / len(known) for known in by_prompt.values() if known]
        missing = 1 - sum(map(len, by_prompt.values())) / len(asked)
        assert metrics["eval/reward_missing"][row] == pytest.approx(missing, rel=1e-12)
        assert metrics["eval/component_accuracy"][row] == pytest.approx(sum(means) / len(means), rel=1e-12)
        if row == 0:
            continue
        verdicts = [verdict(text) for _, text in drawn]
        known = [one for one in verdicts if one is not None]
        share = sum(known) / len(known)
        expected = {"reward_missing": 1 - len(known) / len(drawn), "reward_raw": 1.5 * share}
        expected |= {"component_score": share, "component_accuracy": share}
        groups = [set(verdicts[place : place + 3]) - {None} for place in range(0, len(drawn), 3)]
        expected["groups_accepted"] = sum(len(group) == 2 for group in groups) / len(groups)
        for name, value in expected.items():
            assert metrics[f"train/{name}"][row] == pytest.approx(value, rel=1e-12), name


def test_the_same_spec_and_seed_give_the_same_record(project: dict[str, Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        record(spec(**project), tmp_path / name)
    for file in ("metrics.parquet", "samples.jsonl", "parameters.safetensors"):
        one, two = ((tmp_path / name / "record" / file).read_bytes() for name in ("one", "two"))
        assert one == two


def test_a_run_with_a_refreshed_reward_model_resumes_bit_by_bit(project: dict[str, Any], tmp_path: Path) -> None:
    from test_reward_model import folder

    folder(tmp_path / "judge")
    reward = {
        "source": "model",
        "model": "judge",
        "refresh_model": 2,
        "refresh_steps": 3,
        "refresh_learning_rate": 1e-2,
    }
    settings = spec(**project, reward=reward)
    whole = make_loop(settings, range(1))
    whole.start()
    lines = [whole.advance() for _ in range(4)]
    first = make_loop(settings, range(1))
    first.start()
    first.advance()
    first.advance()
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    resumed = make_loop(settings, range(1))
    resumed.load(state)
    resumed.advance()
    last = resumed.advance()
    one, two = whole.state(), resumed.state()
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value.nan_to_num(-7), two[name].nan_to_num(-7)), name
    assert lines[3] is not None and last is not None
    for name, value in lines[3].values.items():
        assert torch.equal(value.nan_to_num(-7), last.values[name].nan_to_num(-7)), name
    unchanged = make_loop(spec(**project, reward={**reward, "refresh_model": 0}), range(1))
    unchanged.start()
    other = [unchanged.advance() for _ in range(4)]
    assert lines[1] is not None and other[1] is not None and other[3] is not None
    model = "train/component_model"
    assert torch.equal(lines[1].values[model], other[1].values[model])  # before the first refresh
    assert not torch.equal(lines[3].values[model], other[3].values[model])


def test_an_own_advantage_function_trains_a_pretrained_model(project: dict[str, Any], tmp_path: Path) -> None:
    """The mean-only function and the mean-only switch are the same run."""
    name = f"centred_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(
        "def centred(rewards, present):\n    return rewards - rewards.nanmean(-1, keepdim=True)\n"
    )
    own = record(spec(**project, advantage={"function": f"{name}:centred"}), tmp_path / "own")[0]
    switch = record(spec(**project), tmp_path / "switch")[0]
    for name in ("train/reward_raw", "train/gradient_norm", "eval/reward"):
        torch.testing.assert_close(
            torch.tensor(own[name]), torch.tensor(switch[name]), rtol=1e-9, atol=0, equal_nan=True
        )


def test_the_worked_verifier_grades_by_its_formula(tmp_path: Path) -> None:
    """1 / (1 + words / 20) for a right answer, or with what the row says in place of 20; by hand."""
    rows = [{"question": f"capital {n}?", "answer": "Paris", **({"words": 2} if n % 2 else {})} for n in range(30)]
    path = write_lines(tmp_path / "data.jsonl", rows)
    settings = {"name": "jsonl", "path": str(path), "verifier": "examples.own_functions:few_words"}
    task = Jsonl(JsonlTask.model_validate(settings))
    numbers = [next(n for n in range(30) if "words" in task.questions[n].row)] * 3
    numbers += [next(n for n in range(30) if "words" not in task.questions[n].row)]
    judged = task.judge(numbers, ["paris", "It is Paris, Sir.", "Lyon", "Paris"])
    assert judged.reward == [1 / 1.5, 1 / 3, 0.0, 1 / 1.05]
    assert judged.components["accuracy"] == [0.0] * 4
