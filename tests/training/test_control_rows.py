"""Controls and rows at a learning rate are addressed like rows: every experiment trains them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from grpo_ablate.cli import main
from grpo_ablate.runs.record_files import read_run
from grpo_ablate.spec.cells import row_cells, trained_cells, tuning_cells
from grpo_ablate.spec.resolve import Experiment, load_experiment
from grpo_ablate.spec.warmstart import starts

SELECTION = """
description: one prompt
seeds_per_job: 2
task:
  name: selection
  prompts: [{source: a, target: b, candidates: [{text: c, quality: 1}, {text: d, quality: 0}]}]
evaluation: {every: 1, samples: exact}
sampling: {prompts: 1, group_size: 4}
optimizer: {name: sgd, learning_rate: 0.3}
budget: {rollouts: 8}
"""
TONGUE = """
description: a tiny language model
seeds_per_job: 2
task: {name: arithmetic, held_out: 8, train_prompts: 16}
policy:
  {name: stacked, hidden: 32, layers: 1, heads: 1, kv_heads: 1, intermediate: 32,
   warmstart: {steps: 2, demonstrations: 16, batch: 8}}
evaluation: {every: 1, samples: 1}
sampling: {prompts: 2, group_size: 2, max_tokens: 8}
optimizer: {name: adamw, learning_rate: 1e-3}
budget: {rollouts: 4}
"""
EXPERIMENT = """
question: Does it matter?
testbed: tiny
baseline: base
seeds: 2
rows: {base: {}}
tune: {learning_rate: [0.1, 0.2]}
"""
CONTROLS = ("control.a-a", "control.random-reward")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    return written(tmp_path, monkeypatch, SELECTION)


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, testbed: str) -> Experiment:
    (folder / "experiments/testbeds").mkdir(parents=True)
    (folder / "experiments/testbeds/tiny.yaml").write_text(textwrap.dedent(testbed))
    (folder / "experiments/small.yaml").write_text(textwrap.dedent(EXPERIMENT))
    monkeypatch.chdir(folder)
    return load_experiment(Path("experiments/small.yaml"))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_trained_shown_and_explained_by_its_name(
    experiment: Experiment, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    address = f"experiments/small.yaml:{name}"
    assert run("train", address) == 0
    row = next(row for row in experiment.controls if row.id == name)
    assert row.hash != experiment.row("base").hash
    (cell,) = row_cells(experiment, row)
    assert read_run(Path("results", cell.folder))["hash"] == row.hash
    capsys.readouterr()
    assert run("status", "--json") == 0
    states = {cell["row"]: cell["state"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert states[name] == "done" and states["base"] == "missing"
    assert run("samples", address) == 0
    assert "reward" in capsys.readouterr().out
    assert run("train", address, "--dump-round", "1", "--dump", "round.json") == 0
    capsys.readouterr()
    assert run("explain", "round.json", "--row", address, "--json") == 0
    assert "advantages" in json.loads(capsys.readouterr().out)


def test_a_row_at_a_learning_rate_is_trained_on_its_tuning_seeds_as_well(experiment: Experiment) -> None:
    assert run("train", "experiments/small.yaml:base@0.2") == 0
    row = experiment.trained_row("base@0.2")
    cells = trained_cells(experiment, row)
    assert cells == [*row_cells(experiment, row), *tuning_cells(experiment, row)]
    assert [cell.first_seed for cell in cells] == [0, 2]
    assert all(read_run(Path("results", cell.folder))["seeds"] == cell.seeds for cell in cells)


def test_a_misspelt_control_is_offered_the_nearest(
    experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "experiments/small.yaml:control.aa") == 2
    assert "no row 'control.aa'; did you mean 'control.a-a'?" in capsys.readouterr().err
    assert not Path("results").exists()


def test_the_warm_start_of_a_control_is_that_of_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = written(tmp_path, monkeypatch, TONGUE)
    (start,) = starts(row_cells(experiment, experiment.row("base")))
    assert run("warmstart", "experiments/small.yaml:control.a-a") == 0
    assert Path("results", start.folder, "start.json").exists()
