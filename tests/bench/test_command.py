"""The command: a mistake is one sentence before anything runs; the report says what was measured."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_language import POLICY, TASK, small_spec

from grpo_ablate.bench import command
from grpo_ablate.bench.job import Job
from grpo_ablate.bench.measure import Side, measure
from grpo_ablate.bench.mlflow_cost import MlflowCost
from grpo_ablate.bench.pacer import Slice
from grpo_ablate.bench.report import Report, as_json, head, page
from grpo_ablate.bench.summary import Summary, spread
from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.spec.identity import canonical_json

TESTBED = {
    "description": "very small",
    "seeds_per_job": 2,
    "task": TASK,
    "policy": POLICY | {"warmstart": {"steps": 3, "demonstrations": 64, "batch": 8}},
    "evaluation": {"every": 2, "samples": 1, "final_samples": 2},
    "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 6},
    "update": {"inner_passes": 2, "minibatches": 2},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3},
    "budget": {"rollouts": 96},
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that writes a testbed into an empty project, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("experiments/testbeds").mkdir(parents=True)

    def write(name="tiny", **changes):
        stated = {key: value for key, value in (TESTBED | changes).items() if value is not None}
        Path(f"experiments/testbeds/{name}.yaml").write_text(json.dumps(stated))

    return write


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


CANDIDATES = [{"text": "a", "quality": 0}, {"text": "b", "quality": 1}]
ONE_PROMPT = {"prompts": [{"source": "s", "target": "t", "candidates": CANDIDATES}]}
MISTAKES = {
    "unknown": ({}, ["tinny"], "no testbed 'tinny' (experiments/testbeds/tinny.yaml); did you mean 'tiny'?"),
    "members": ({}, ["tiny", "--members", "1,x"], "--members 1,x: expected whole numbers between commas"),
    "rounds": ({}, ["tiny", "--rounds", "0"], "--rounds 0: expected at least 1."),
    "processes": ({}, ["tiny", "--processes", "-1"], "--processes -1: expected at least 1."),
    "against": ({}, ["tiny", "--against", "transformer"], "--against transformer: did you mean 'transformers'?"),
    "tabular": (
        {"task": ONE_PROMPT, "policy": None, "update": {}, "sampling": {"prompts": 1}, "evaluation": {}},
        ["tiny"],
        "bench measures language models (policy.name: stacked), this one is tabular.",
    ),
    "cold": ({"policy": POLICY}, ["tiny"], "bench wants a warm start, and policy.warmstart.steps is 0."),
    "kl": (
        {"kl": {"beta": 0.1}},
        ["tiny", "--against", "transformers"],
        "tiny: --against transformers: kl.beta is 0.1, and the loop to compare with knows 0.0 alone.",
    ),
    "surrogate": (
        {"update": {"surrogate": "cispo", "inner_passes": 2}},
        ["tiny", "--against", "transformers"],
        "update.surrogate is cispo, and the loop to compare with knows clip alone.",
    ),
    "uneven": (
        {"update": {"minibatches": 3}},
        ["tiny", "--against", "transformers"],
        "3 minibatches do not divide the 4 prompts of a round evenly.",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_runs(case, project, capsys):
    changes, arguments, sentence = MISTAKES[case]
    project(**changes)
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert sentence in err and err.count("\n") == 1
    assert not Path("results").exists()


def test_a_missing_package_is_a_sentence_that_says_what_to_install(project, capsys, monkeypatch):
    project()
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "trl" else object())
    code, _, err = run(capsys, "tiny", "--against", "transformers", "--against", "trl")
    assert code == 2
    assert err == (
        "grpo-ablate: error: --against trl: the package trl is not installed; pip install 'grpo-ablate[trl]'.\n"
    )


def test_a_side_that_fails_is_reported_with_what_it_said(tmp_path):
    spec = small_spec(policy=POLICY | {"warmstart": {"steps": 5}})
    job = Job("grpo-ablate", canonical_json(spec), str(tmp_path), 1, 0)
    with pytest.raises(UserError, match=r"the grpo-ablate side .* stopped \(exit code 1\): .*start.json"):
        measure([Side("grpo-ablate", 1, 1)], lambda side, process: job, processes=1, slices=1)


def side(name, **changes):
    found = Summary(
        side=name,
        models=32,
        models_per_process=16,
        updates_per_second=spread([1234.5, 1300.0, 1200.0]),
        updates_per_second_per_model=38.6,
        response_length=18.7,
        sampled_tokens_per_second=spread([1_234_567.0]),
        seconds_per_round={"sampling": 1.2, "training": 12.34, "rest": 0.1},
        gflops={"sampling": 14.8, "training": 24.6},
        share_of_peak={"sampling": 0.141, "training": 0.234},
        peak_bytes=3 << 30,
        start_up_seconds=12.3,
        evaluation_seconds={"2 samples": 3.2, "16 samples": 32.0},
        share_of_run={"sampling": 0.1, "training": 0.5, "rest": 0.0, "evaluation": 0.4},
        times={"transformers": spread([2.5, 2.6]), "trl": spread([4.1, 4.2])},
        work=((Slice(11, 1.5, 176, 1400, 22528),),),
    )
    return replace(found, **changes)


def test_the_report_fits_100_columns_and_its_json_holds_every_slice():
    plain = {"seconds_per_round": None, "gflops": None, "share_of_peak": None, "share_of_run": None, "times": {}}
    report = Report(
        "arithmetic", small_spec(), 88_512, "the testbed's warm start, results/warmstarts/0123abcd",
        2, 6, 11, "cpu", spread([104.2, 103.0]),
        (side("grpo-ablate"), side("transformers", times={}), side("trl", **plain)),
        MlflowCost(12, 514.0, 45.6, 1.7),
    )  # fmt: skip
    machine = {
        "processor": "A processor", "processors": 2,
        "versions": {"torch": "2.13.0+cpu", "transformers": "5.19.0", "trl": "1.16.0"},
    }  # fmt: skip
    text = head(machine) + "\n" + page(report)
    assert max(map(len, text.splitlines())) <= 100
    for shown in ("2.55 (2.50-2.60)", "4.15 (4.10-4.20)", "14 % of peak", "46 ms a run of 514 points", "3,072 MB"):
        assert shown in text
    found = json.loads(as_json([report], machine))
    (testbed,) = found["testbeds"]
    assert testbed["sides"][0]["updates_per_second"]["slices"] == [1234.5, 1300.0, 1200.0]
    assert testbed["sides"][0]["work"][0][0]["tokens"] == 1400
    assert testbed["spec"]["sampling"]["group_size"] == 4
    assert found["machine"]["versions"]["trl"] == "1.16.0"


@pytest.mark.slow
def test_the_whole_command_measures_every_side(project, capsys):
    project()
    trl = ["--against", "trl"] if find_spec("trl") else []
    code, out, _ = run(
        capsys, "tiny", "--members", "3", "--processes", "1", "--slices", "2", "--rounds", "2", "--json",
        "--against", "transformers", *trl,
    )  # fmt: skip
    assert code == 0
    (testbed,) = json.loads(out)["testbeds"]
    names = [(found["side"], found["models"]) for found in testbed["sides"]]
    assert names == [("grpo-ablate", 3), ("transformers", 1), *([("trl", 1)] if trl else [])]
    for found in testbed["sides"]:
        assert len(found["updates_per_second"]["slices"]) == 2
        assert min(found["updates_per_second"]["slices"]) > 0
        assert 1 <= found["response_length"] <= 6
    assert set(testbed["sides"][0]["times"]) == {name for name, _ in names[1:]}
    assert testbed["sides"][0]["evaluation_seconds"].keys() == {"1 samples", "2 samples"}
    assert testbed["mlflow"]["runs"] == 12 and testbed["mlflow"]["points_per_run"] > 50
    assert not Path("results").exists()  # nothing is written where the workflow keeps its results
