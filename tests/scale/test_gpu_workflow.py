"""Jobs that ask for GPUs, from the testbed's key to the record: bounded, leased, told in timing.json."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from machine import fake_machine, run_files
from project import Project, build
from training_specs import make_spec

from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.runs.devices import VISIBLE
from grpo_ablate.runs.record_files import read_timing
from grpo_ablate.runs.train import train
from grpo_ablate.spec.identity import canonical_json
from grpo_ablate.spec.resolve import load_testbed

TESTBED = yaml.safe_load(Path("experiments/testbeds/selection.yaml").read_text())

# Trains, and writes what CUDA would have seen at the moment when torch was imported.
WATCHED = """
import os, sys
from pathlib import Path
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            Path(sys.argv[1]).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Watch())
from grpo_ablate.cli import main
main(sys.argv[2:])
"""


def cell(rounds: int = 3) -> list[str]:
    asked = ["--testbed", "bench", "--seeds", "0-1", "--results", "results"]
    return ["train", "--cell", canonical_json(make_spec(rounds=rounds)), *asked]


def timing(folder: Path) -> dict:
    (run,) = folder.glob("results/runs/bench/*/seeds-0-1")
    return read_timing(run)


def test_the_devices_are_chosen_before_torch_is_imported_and_told_in_the_record(tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 2)
    command = [sys.executable, "-c", WATCHED, "seen.txt", *cell(), "--gpus", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen.txt").read_text() == "0"
    found = timing(tmp_path)
    assert found["devices"] == ["Fake GPU"]
    assert found["device_hours"] * 3600 == pytest.approx(found["seconds"])
    assert found["peak_device_memory_bytes"] == 0  # torch has put nothing on it


def test_a_run_without_gpus_says_so_and_leaves_the_environment_alone(tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 2) | {VISIBLE: "1"}
    command = [sys.executable, "-c", WATCHED, "seen.txt", *cell()]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "seen.txt").read_text() == "1"
    found = timing(tmp_path)
    assert (found["devices"], found["device_hours"], found["peak_device_memory_bytes"]) == ([], 0.0, 0)


def test_device_hours_are_those_of_all_sessions_of_an_interrupted_run(tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 1)
    command = [sys.executable, "-m", "grpo_ablate", *cell(600), "--gpus", "1"]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("results/scratch/bench/*/*/lock")):
        assert time.monotonic() < end and first.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    first.send_signal(signal.SIGUSR1)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 2 and ": SIGUSR1; the same command continues" in said
    assert "Traceback" not in said
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    found = timing(tmp_path)
    assert found["device_hours"] * 3600 == pytest.approx(found["seconds"])
    sessions = json.loads(next(tmp_path.glob("results/runs/bench/*/*/provenance.json")).read_text())
    assert len(sessions["interrupted"]) == 1


def test_a_record_from_before_devices_were_noted_is_read(tmp_path: Path) -> None:
    train(make_spec(rounds=3), range(2), tmp_path / "run", tmp_path / "scratch", testbed="bench")
    path = tmp_path / "run/timing.json"
    told = json.loads(path.read_text())
    old = {key: value for key, value in told.items() if "device" not in key}
    assert len(told) - len(old) == 3
    path.write_text(json.dumps(old))
    assert read_timing(tmp_path / "run") == old


def test_a_negative_number_of_gpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*cell()[:-1], str(tmp_path / "results"), "--gpus", "-1"])
    assert ended.value.code == 2
    assert "--gpus -1: expected a number of GPUs, 0 for none." in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_only_a_pretrained_model_is_trained_by_several_gpus(tmp_path: Path) -> None:
    path = tmp_path / "testbed.yaml"
    path.write_text(yaml.safe_dump(TESTBED | {"gpus": 2}))
    with pytest.raises(UserError, match=r"testbed\.yaml: gpus is 2, but only a pretrained model"):
        load_testbed(path)
    path.write_text(yaml.safe_dump(TESTBED | {"gpus": 1}))
    assert load_testbed(path)[0].gpus == 1


def test_a_run_of_another_policy_on_several_gpus_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*cell()[:-1], str(tmp_path / "results"), "--gpus", "2"])
    assert "policy.name is tabular, but only a pretrained model (huggingface)" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_run_of_another_policy_under_torchrun_is_refused(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "grpo_ablate"]
    done = subprocess.run([sys.executable, *launcher, *cell()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "policy.name is tabular, but only a pretrained model (huggingface)" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def leasing(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project one of whose testbeds asks for a GPU."""
    project = build(tmp_path_factory.mktemp("leasing") / "project", rollouts=32 * 200)
    testbed = project.path / "experiments/testbeds/tiny.yaml"
    testbed.write_text(testbed.read_text() + "gpus: 1\n")
    project.edit("experiments/alpha.yaml", "seeds: 4", "seeds: 2")
    return project


@pytest.mark.slow
def test_the_workflow_bounds_its_gpu_jobs_and_they_lease_what_they_train_on(
    leasing: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = leasing.cloned(tmp_path / "project")
    for name, value in fake_machine(tmp_path, 4).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(VISIBLE, raising=False)
    project.run("--cores", "4", *run_files(project), "--resources", "gpus=1")
    spans = []
    for run in sorted(project.path.glob("results/runs/tiny/*/*")):
        found = read_timing(run)
        assert found["devices"] == ["Fake GPU"]
        began = datetime.fromisoformat(json.loads((run / "provenance.json").read_text())["started"]).timestamp()
        spans.append((began, began + found["seconds"]))
    spans.sort()
    assert len(spans) == 4
    assert all(first[1] <= second[0] + 0.05 for first, second in itertools.pairwise(spans))
    for run in project.path.glob("results/runs/kept/*/*"):
        assert read_timing(run)["devices"] == []
