"""SIGKILL of a training child, of Snakemake, and of both: the same command then finishes the same records."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from project import Project, build, command, environment

pytestmark = pytest.mark.slow

ROLLOUTS = 32 * 1000  # some seconds of training


def small(path: Path) -> Project:
    """Two rows of one block, nothing else: two trainers side by side."""
    project = build(path, ROLLOUTS)
    (project.path / "experiments/beta.yaml").unlink()
    project.edit("experiments/alpha.yaml", "seeds: 4", "seeds: 2")
    return project


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = small(tmp_path_factory.mktemp("whole") / "project")
    project.run("--cores", "2")
    return project


def start(project: Project) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("--cores", "2"),
        cwd=project.path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the moment to kill at never came"
        time.sleep(0.02)


def workers(snakemake: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that work for this Snakemake, youngest first."""
    return list(reversed(psutil.Process(snakemake.pid).children(recursive=True)))


def kill(snakemake: subprocess.Popen[bytes], victim: str) -> None:
    children = workers(snakemake)
    if victim in ("snakemake", "both"):
        snakemake.send_signal(signal.SIGKILL)
    if victim in ("child", "both"):
        for child in children[: 1 if victim == "child" else None]:
            if child.is_running():
                child.kill()
    snakemake.wait(timeout=120)


def moment(project: Project, name: str) -> None:
    results = project.path / "results"
    if name == "tables":
        wait_for(lambda: (results / "logs/collect/alpha.log").exists())
        return
    wait_for(lambda: any(results.glob("scratch/tiny/*/*/lock")))
    time.sleep({"first round": 0.0, "midway": 1.0}[name])


@pytest.mark.parametrize("when", ["first round", "midway", "tables"])
@pytest.mark.parametrize("victim", ["child", "snakemake", "both"])
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
    assert mlflow_states(project) == {"FINISHED": 4}


def test_records_do_not_depend_on_the_number_of_cores(uninterrupted: Project, tmp_path: Path) -> None:
    project = uninterrupted.cloned(tmp_path / "project")
    project.run("--cores", "1")
    assert project.records() == uninterrupted.records()
    assert len(project.records()) == 2 * 4


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
