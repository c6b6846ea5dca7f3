"""The workflow on a real SLURM cluster of one node: the smoke grid, records as here, preempted jobs that go on."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster import cluster, jobs, missing
from killing import kill
from machine import fake_machine, run_files
from project import GAMMA, TONGUE, Project, build, command
from project import environment as environment_of

from grpo_ablate.runs.record_files import read_timing

NO_PLUGIN = importlib.util.find_spec("snakemake_executor_plugin_slurm") is None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a cluster can be started"),
    pytest.mark.skipif(NO_PLUGIN, reason="snakemake-executor-plugin-slurm is not installed"),
]
PROFILE = [
    "--workflow-profile", "profiles/slurm", "--slurm-status-command", "squeue",
    "--slurm-init-seconds-before-status-checks", "3", "--slurm-no-account",
    "--default-resources", "mem_mb=500", "runtime=60", "slurm_extra='--signal=USR1@120'",
]  # fmt: skip


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment of the cluster's clients."""
    if missing():
        pytest.skip(missing())
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path is short
    try:
        with cluster(folder, gpus=2) as environment:
            yield environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def environment(slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same, of this process, too."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm[name])
    return slurm


def through_slurm(project: Project, *arguments: str) -> str:
    """Run Snakemake under the profile; return what it says."""
    done = subprocess.run(
        command(*arguments, *PROFILE), cwd=project.path, env=environment_of(), capture_output=True, text=True,
        timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def with_language(path: Path, rollouts: int = 96) -> Project:
    """The throwaway project with its two tabular testbeds and the language model's."""
    project = build(path, rollouts)
    (path / "experiments/testbeds/tongue.yaml").write_text(TONGUE)
    (path / "experiments/gamma.yaml").write_text(GAMMA)
    return project


def test_the_smoke_grid_runs_through_slurm(environment: dict[str, str], tmp_path: Path) -> None:
    project = with_language(tmp_path / "project")
    said = through_slurm(project, "smoke")
    assert said.count("has been submitted with SLURM jobid") == 3, said
    tables = project.path / "results/smoke/tables"
    assert sorted(path.name for path in tables.glob("*-comparison.csv")) == [
        f"{name}-comparison.csv" for name in ("alpha", "beta", "gamma")
    ]
    assert project.planned("smoke") == {}


def test_records_from_slurm_are_those_from_here_and_a_gpu_is_asked_for_where_a_testbed_says_so(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = build(tmp_path / "project")
    (project.path / "experiments/beta.yaml").unlink()
    project.edit("experiments/alpha.yaml", "seeds: 4", "seeds: 2")
    here = project.cloned(tmp_path / "here")
    here.run("--cores", "2", *run_files(here))
    testbed = project.path / "experiments/testbeds/tiny.yaml"
    testbed.write_text(testbed.read_text() + "gpus: 1\n")
    for name, value in fake_machine(tmp_path, 2).items():
        monkeypatch.setenv(name, value)
    through_slurm(project, *run_files(project))
    assert project.records() == here.records()
    runs = sorted(project.path.glob("results/runs/tiny/*/*"))
    assert len(runs) == 4
    assert [read_timing(run)["devices"] for run in runs] == [["Fake GPU"]] * 4


def test_a_job_that_is_warned_stops_at_a_checkpoint_is_submitted_again_and_goes_on_from_its_checkpoint(
    environment: dict[str, str], tmp_path: Path
) -> None:
    project = build(tmp_path / "project", rollouts=32 * 1000)  # some seconds of training
    target = run_files(project)[0]
    here = project.cloned(tmp_path / "here")
    here.run("--cores", "2", target)
    said, lock = (
        tmp_path / "said",
        project.path / target.replace("/runs/", "/scratch/").replace("run.json", "lock"),
    )
    with said.open("wb") as file:
        snakemake = subprocess.Popen(
            command(target, *PROFILE), cwd=project.path, env=environment_of(), stdout=file, stderr=file
        )
    try:
        end = time.monotonic() + 300
        while not (lock.exists() and lock.read_text()):
            assert time.monotonic() < end and snakemake.poll() is None, said.read_text()
            time.sleep(0.05)
        trainer = psutil.Process(int(lock.read_text()))
        trainer.suspend()  # so that SLURM has all the time that it needs
        for number in jobs(environment):
            subprocess.run(["scancel", "--signal=USR1", number], env=environment, check=True)
        time.sleep(3)  # what else is in the job has had the signal, too
        trainer.resume()
        assert snakemake.wait(timeout=600) == 0, said.read_text()
    finally:
        if snakemake.poll() is None:
            kill(snakemake, "both")
    assert ": SIGUSR1; the same command continues" in said.read_text()  # the trainer's log, which Snakemake shows
    assert project.records() == here.records()
