"""Planned seeds and claims: written before training, never altered, and what was decided on results is marked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fabricated import write_record

from grpo_ablate.analysis.planned import (
    claims_changed_after_a_look,
    history,
    path_of,
    record_plan,
    seeds_added_after_a_look,
)
from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment, load_experiment

CLAIM = {
    "id": "no-scale",
    "statement": "The division matters.",
    "source": "a paper",
    "test": {"is": "better", "row": "mean-only", "than": "base"},
}


def changed(experiment: Experiment, **keys: object) -> Experiment:
    """The experiment file with other keys, loaded again."""
    content = yaml.safe_load(experiment.path.read_text()) | keys
    experiment.path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_experiment(experiment.path)


def train(experiment: Experiment, results: Path) -> None:
    for cell in cells([experiment]):
        write_record(results, cell)


def test_an_unchanged_plan_is_recorded_once(experiment: Experiment, results: Path) -> None:
    assert record_plan(experiment, results)
    written = path_of(results, "small").read_bytes()
    train(experiment, results)
    assert not record_plan(experiment, results)
    assert path_of(results, "small").read_bytes() == written
    assert [(entry.seeds, entry.looked) for entry in history("small", results)] == [(3, False)]
    assert seeds_added_after_a_look(experiment, results) == ""


def test_seeds_added_before_a_look_are_not_marked(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    more = changed(experiment, seeds=6)
    record_plan(more, results)
    train(more, results)
    assert seeds_added_after_a_look(more, results) == ""
    assert [entry.seeds for entry in history("small", results)] == [3, 6]


@pytest.mark.parametrize("recorded_again", [True, False])
@pytest.mark.parametrize("look", ["a run", "a table"])
def test_seeds_added_after_a_look_are_marked_and_stay_marked(
    experiment: Experiment, results: Path, look: str, recorded_again: bool
) -> None:
    record_plan(experiment, results)
    if look == "a run":
        write_record(results, cells([experiment])[0])
    else:
        (results / "tables").mkdir()
        (results / "tables" / "small.csv").write_text("")
    more = changed(experiment, seeds=6)
    if recorded_again:  # by the workflow, before it trains the rest
        record_plan(more, results)
        assert history("small", results)[0].seeds == 3, "the first entry is never altered"
    train(more, results)
    assert seeds_added_after_a_look(more, results) == "3 of 6 seeds were added after a look at results."
    fewer = changed(more, seeds=3)
    assert seeds_added_after_a_look(fewer, results) == ""


def test_claims_added_changed_or_dropped_after_a_look_are_named(experiment: Experiment, results: Path) -> None:
    other = CLAIM | {"id": "other"}
    planned = changed(experiment, claims=[CLAIM, other], margin=0.01)
    record_plan(planned, results)
    reworded = changed(planned, claims=[CLAIM | {"statement": "It does."}, other])
    assert claims_changed_after_a_look(reworded, results) == {}, "nothing was seen yet"
    train(planned, results)
    assert claims_changed_after_a_look(changed(reworded, claims=[CLAIM, other]), results) == {}
    worse = CLAIM | {"test": CLAIM["test"] | {"is": "worse"}}
    late = changed(planned, claims=[worse, CLAIM | {"id": "late"}])
    assert claims_changed_after_a_look(late, results) == {
        "no-scale": "changed", "late": "added", "other": "dropped",
    }  # fmt: skip
    record_plan(late, results)
    assert claims_changed_after_a_look(late, results)["late"] == "added"


def test_a_margin_widened_after_a_look_changes_the_claims_that_read_it(
    experiment: Experiment, results: Path
) -> None:
    planned = changed(experiment, claims=[CLAIM], margin=0.01)
    record_plan(planned, results)
    train(planned, results)
    assert claims_changed_after_a_look(changed(planned, margin=0.1), results) == {"no-scale": "changed"}
    own = changed(planned, margin=0.1, claims=[CLAIM | {"test": CLAIM["test"] | {"margin": 0.01}}])
    assert claims_changed_after_a_look(own, results) == {}


def test_a_plan_first_recorded_after_training_is_its_own_reference(experiment: Experiment, results: Path) -> None:
    train(experiment, results)
    assert seeds_added_after_a_look(replace(experiment, seeds=9), results) == ""
    record_plan(experiment, results)
    assert history("small", results)[0].looked
    assert seeds_added_after_a_look(experiment, results) == ""
    assert "6 of 9" in seeds_added_after_a_look(replace(experiment, seeds=9), results)


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
