"""The history of plans: written before training, never altered, and an edit of it is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fabricated import changed, train, write_record

from grpo_ablate.analysis.planned import history, path_of, record_plan
from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment, load_experiment


def test_an_unchanged_plan_is_recorded_once(experiment: Experiment, results: Path) -> None:
    assert record_plan(experiment, results)
    written = path_of(results, "small").read_bytes()
    train(experiment, results)
    assert not record_plan(experiment, results)
    assert path_of(results, "small").read_bytes() == written
    assert [(entry.seeds, entry.looked) for entry in history("small", results)] == [(3, False)]


def test_a_plan_changed_before_a_look_is_another_entry_without_one(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    more = changed(experiment, seeds=6)
    record_plan(more, results)
    train(more, results)
    assert [entry.seeds for entry in history("small", results)] == [3, 6]


def test_a_row_or_a_term_that_changes_is_another_plan(experiment: Experiment, results: Path) -> None:
    for keys in ({}, {"baseline": "mean-only"}, {"metric": "eval/kl"}, {"margin": 0.1}, {"held": "tokens"}):
        assert record_plan(changed(experiment, **keys), results)
    rows = yaml.safe_load(experiment.path.read_text())["rows"] | {"mean-only": {"advantage": {"ddof": 1}}}
    assert record_plan(changed(experiment, rows=rows), results)
    renamed = changed(experiment, question="And otherwise?", figures=["curves"])
    assert not record_plan(renamed, results)
    last = history("small", results)[-1]
    assert last.rows["mean-only"] == renamed.row("mean-only").hash
    assert last.terms == {
        "baseline": "mean-only", "metric": "eval/kl", "margin": 0.1, "held quantity": "tokens",
        "learning rates": [],
    }  # fmt: skip


@pytest.mark.parametrize("which", ["rows as they are", "rows as they were"])
def test_runs_of_rows_as_they_were_planned_are_a_look_as_well(
    experiment: Experiment, results: Path, which: str
) -> None:
    record_plan(experiment, results)
    write_record(results, cells([experiment])[0])
    testbed = experiment.testbed.path
    if which == "rows as they were":  # no run of the new rows exists
        testbed.write_text(testbed.read_text().replace("rollouts: 64", "rollouts: 128"))
    else:
        changed(experiment, seeds=6)
    record_plan(load_experiment(experiment.path), results)
    assert [entry.looked for entry in history("small", results)] == [False, True]


def test_an_edited_entry_is_named(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    record_plan(changed(experiment, seeds=6), results)
    path = path_of(results, "small")
    text = path.read_text()
    for old, new, entry in (('"seeds": 3', '"seeds": 6', 1), ('"looked": false', '"looked": true', 1)):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=rf"small\.json: entry {entry} differs from the checksum in it"):
            history("small", results)


def test_an_entry_without_a_checksum_is_refused(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    path = path_of(results, "small")
    (entry,) = json.loads(path.read_text())
    del entry["checksum"]
    path.write_text(json.dumps([entry]))
    with pytest.raises(UserError, match=r"small\.json: entry 1 differs from the checksum in it"):
        record_plan(experiment, results)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"seeds": 3}]', '[{"seeds": "3", "claims": {}, "x": 1}]'])
def test_a_damaged_history_is_a_sentence(experiment: Experiment, results: Path, content: str) -> None:
    path = path_of(results, "small")
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UserError, match=r"planned/small\.json: is not a history of plans"):
        record_plan(experiment, results)
    assert path.read_text() == content


def test_training_a_row_by_hand_records_the_plan_first(experiment: Experiment, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpo_ablate", "train", "experiments/small.yaml:base", "--results", "r"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "r" / "planned" / "small.json").read_text())
    assert [(entry["seeds"], entry["looked"]) for entry in entries] == [(3, False)]


def test_plans_are_read_without_the_libraries_of_training() -> None:
    code = (
        "import sys, grpo_ablate.analysis.planned; "
        "print(sorted({'torch', 'pandas', 'pyarrow', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
