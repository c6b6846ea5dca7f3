"""SIGKILL of a training child, of Snakemake, and of both: the same command then finishes the same records."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
from killing import kill, start, wait_for
from project import Project, build

pytestmark = pytest.mark.slow

ROLLOUTS = 32 * 1000  # some seconds of training


def small(path: Path) -> Project:
    """Two rows and two controls of one block, nothing else: two trainers side by side."""
    project = build(path, ROLLOUTS)
    (project.path / "experiments/beta.yaml").unlink()
    project.edit("experiments/alpha.yaml", "seeds: 4", "seeds: 2")
    return project


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = small(tmp_path_factory.mktemp("whole") / "project")
    project.run("--cores", "2")
    return project


def moment(project: Project, name: str) -> None:
    results = project.path / "results"
    if name == "tables":
        wait_for(lambda: (results / "logs/collect/alpha.log").exists())
        return
    wait_for(lambda: any(results.glob("scratch/tiny/*/*/lock")))
    time.sleep({"first round": 0.0, "midway": 1.0}[name])


@pytest.mark.parametrize(
    ("victim", "when"),
    [
        ("child", "first round"),
        ("child", "tables"),
        ("snakemake", "midway"),
        ("both", "midway"),
        ("both", "tables"),
    ],
)
def test_a_killed_workflow_is_finished_by_the_same_command(
    uninterrupted: Project, tmp_path: Path, victim: str, when: str
) -> None:
    project = uninterrupted.cloned(tmp_path / "project")
    snakemake = start(project)
    try:
        moment(project, when)
        kill(snakemake, victim)
    finally:
        if snakemake.poll() is None:
            snakemake.kill()
    assert snakemake.returncode != 0

    project.run("--cores", "2")
    assert project.records() == uninterrupted.records()
    assert project.planned() == Counter()
    assert mlflow_states(project) == {"FINISHED": 8}


def test_records_do_not_depend_on_the_number_of_cores(uninterrupted: Project, tmp_path: Path) -> None:
    project = uninterrupted.cloned(tmp_path / "project")
    project.run("--cores", "1")
    assert project.records() == uninterrupted.records()
    assert len(project.records()) == 4 * 4


def test_a_second_workflow_in_the_folder_is_refused_and_harms_nothing(
    uninterrupted: Project, tmp_path: Path
) -> None:
    project = uninterrupted.cloned(tmp_path / "project")
    first = start(project)
    try:
        moment(project, "first round")
        second = project.run("--cores", "2", check=False)
        assert second.returncode != 0
        assert f"another workflow is running in this folder (process {first.pid})" in second.stderr
        assert "Traceback" not in second.stderr
        assert project.planned()["collect"] == 1  # a dry run only looks, and may
        assert first.wait(timeout=120) == 0
    finally:
        if first.poll() is None:
            first.kill()
    assert project.records() == uninterrupted.records()


def test_a_finished_run_deleted_is_published_again_bit_by_bit(uninterrupted: Project, tmp_path: Path) -> None:
    project = uninterrupted.copied(tmp_path / "project")
    shutil.rmtree(next((project.path / "results/runs/tiny").iterdir()))
    project.run("--cores", "2")
    assert project.records() == uninterrupted.records()


def mlflow_states(project: Project) -> dict[str, int]:
    with sqlite3.connect(project.path / "results/mlflow.db") as store:
        active = "SELECT status, count(*) FROM runs WHERE lifecycle_stage = 'active' GROUP BY status"
        return dict(store.execute(active).fetchall())
