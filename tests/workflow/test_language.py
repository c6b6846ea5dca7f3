"""A language model's experiment in the workflow: the warm start as a rule, what reruns, kills, cores."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from killing import kill, start, wait_for
from project import Project

from grpo_ablate.runs.record_files import sealed

pytestmark = pytest.mark.slow

NOTHING: Counter[str] = Counter()
AFTER = {"log": 1, "collect": 1, "compare": 1, "draw-gamma": 1, "paper": 1}
EVERYTHING = Counter({"warmstart": 1, "train": 4, **AFTER})  # two rows, two controls


def warm_start(project: Project) -> Path:
    """The folder of the project's only warm start."""
    (folder,) = (project.path / "results/warmstarts").iterdir()
    return folder


def details(project: Project) -> set[tuple[str, str]]:
    return {(cell["state"], cell["detail"]) for cell in project.status()["cells"]}


def test_a_finished_project_has_nothing_to_do_whatever_the_dates_say(language: Project) -> None:
    for path in warm_start(language).iterdir():
        path.touch()
    assert language.planned() == NOTHING


def test_a_clone_with_results_copied_in_does_nothing(finished_language: Project, tmp_path: Path) -> None:
    clone = finished_language.cloned(tmp_path / "clone")
    assert clone.planned()["warmstart"] == 1
    shutil.copytree(
        finished_language.path / "results",
        clone.path / "results",
        copy_function=shutil.copyfile,
        dirs_exist_ok=True,
    )
    shutil.copyfile(finished_language.path / "paper/paper.pdf", clone.path / "paper/paper.pdf")
    assert clone.planned() == NOTHING


def test_another_recipe_trains_another_start_and_every_run_from_it(language: Project) -> None:
    language.edit("experiments/testbeds/tongue.yaml", "steps: 20", "steps: 21")
    assert language.planned() == EVERYTHING


def test_a_start_of_its_own_for_each_seed_is_a_start_for_each_block(language: Project) -> None:
    language.edit("experiments/testbeds/tongue.yaml", "steps: 20", "per_seed: true, steps: 20")
    language.edit("experiments/gamma.yaml", "seeds: 2", "seeds: 4")
    assert language.planned() == Counter({"warmstart": 2, "train": 8, **AFTER})


def test_more_seeds_share_the_start(language: Project) -> None:
    language.edit("experiments/gamma.yaml", "seeds: 2", "seeds: 4")
    assert language.planned() == Counter({"train": 4, **AFTER})


def test_another_number_of_prompts_keeps_the_start(language: Project) -> None:
    language.edit("experiments/testbeds/tongue.yaml", "train_prompts: 32", "train_prompts: 33")
    assert language.planned() == Counter({"train": 4, **AFTER})


def test_a_warm_start_function_edited_retrains_the_start_and_its_runs(language: Project) -> None:
    language.edit("grpo_ablate/runs/warmstart.py", "loss.sum().backward()", "loss.sum().mul(1).backward()")
    assert language.planned() == EVERYTHING
    assert details(language) == {("stale", "will be trained again")}
    language.run("--cores", "2")
    assert language.planned() == NOTHING
    assert details(language) == {("done", "")}


def test_a_docstring_of_the_warm_start_edited_changes_nothing(language: Project) -> None:
    language.edit("grpo_ablate/runs/warmstart.py", '"""Write the checkpoint."""', '"""Keep where it stands."""')
    assert language.planned() == NOTHING


def test_a_start_deleted_is_made_again_only_for_a_run_that_is_missing(language: Project) -> None:
    before = language.records()
    shutil.rmtree(warm_start(language))
    assert language.planned() == NOTHING
    shutil.rmtree(next((language.path / "results/runs/tongue").iterdir()))
    assert language.planned() == EVERYTHING  # the three others are published again, without training
    language.run("--cores", "2")
    assert language.records() == before
    assert language.planned() == NOTHING


def test_a_run_from_another_start_is_stale_and_trained_again(language: Project) -> None:
    path = warm_start(language) / "start.json"
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | {"sha256": "0" * 64})))
    assert details(language) == {("stale", "from another warm start, will be trained again")}
    assert language.planned() == Counter({"train": 4, **AFTER})
    done = language.run("--cores", "2", check=False)  # and what it would begin from is not what start.json says
    assert "parameters.safetensors: differs from the checksum in start.json; remove" in done.stderr + done.stdout


def test_a_damaged_start_is_trained_again(language: Project) -> None:
    before = language.records()
    (warm_start(language) / "start.json").write_text("{")
    assert language.planned() == EVERYTHING  # the runs are published again, without training
    language.run("--cores", "2")
    assert language.records() == before
    assert language.planned() == NOTHING


def test_records_do_not_depend_on_the_number_of_cores(finished_language: Project, tmp_path: Path) -> None:
    project = finished_language.cloned(tmp_path / "project")
    project.run("--cores", "1", "gamma")
    assert project.records() == finished_language.records()
    assert len(project.records()) == 4 * 4 + 2 + 5


@pytest.mark.parametrize(("part", "victim"), [("warmstarts", "both"), ("tongue", "child")])
def test_a_killed_workflow_is_finished_by_the_same_command(
    finished_language: Project, tmp_path: Path, part: str, victim: str
) -> None:
    project = finished_language.cloned(tmp_path / "project")
    snakemake = start(project)
    try:
        wait_for(lambda: any((project.path / "results/scratch" / part).rglob("lock")), 120)
        kill(snakemake, victim)
    finally:
        if snakemake.poll() is None:
            snakemake.kill()
    project.run("--cores", "2", "gamma")
    assert project.records() == finished_language.records()
    assert project.planned("gamma") == NOTHING
