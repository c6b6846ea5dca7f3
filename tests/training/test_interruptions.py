"""Runs in processes of their own that are stopped, killed, orphaned or doubled: the record comes out the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_specs import DEMANDING, demanding, make_spec

from grpo_ablate.runs.record import read_record
from grpo_ablate.runs.record_files import CHECKED
from grpo_ablate.runs.train import train
from grpo_ablate.spec.identity import canonical_json

ROUNDS = 1500  # some two seconds
SEEDS = range(2)

CHILD = """
import sys
from pathlib import Path
from grpo_ablate.errors import UserError
from grpo_ablate.runs.train import train
from grpo_ablate.spec.identity import from_canonical
folder, spec = Path(sys.argv[1]), from_canonical(sys.argv[2])
print("ready", flush=True)
try:
    train(spec, range(2), folder / "run", folder / "scratch", testbed="bench",
          checkpoint_seconds=float(sys.argv[3]), stop_with_parent=sys.argv[4] == "True")
except UserError as error:
    sys.exit(f"error: {error}")
"""


def command(folder, spec, every=0.0, with_parent=False):
    return [sys.executable, "-c", CHILD, str(folder), canonical_json(spec), str(every), str(with_parent)]


def start(folder, spec, every=0.0):
    child = subprocess.Popen(
        command(folder, spec, every), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def record(folder):
    read_record(folder / "run")  # verifies the checksums
    return {name: (folder / "run" / name).read_bytes() for name in (*CHECKED, "run.json")}


def uninterrupted(folder, spec):
    train(spec, SEEDS, folder / "run", folder / "scratch", testbed="bench")
    return record(folder)


def wait_for(path: Path, child=None, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end and (child is None or child.poll() is None), f"{path} never came"
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_at_a_checkpoint_with_a_sentence_and_the_rerun_ends_bitwise_equal(tmp_path, number):
    spec = make_spec(rounds=400, evaluation={"every": 50})
    child = start(tmp_path / "a", spec, every=1000)
    wait_for(tmp_path / "a" / "scratch" / "lock", child)
    time.sleep(0.15)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert errors.startswith("error: stopped after round ") and f": {number.name}; the same command" in errors
    assert not (tmp_path / "a" / "run").exists()
    assert uninterrupted(tmp_path / "a", spec) == uninterrupted(tmp_path / "b", spec)
    sessions = read_record(tmp_path / "a" / "run").provenance
    assert len(sessions["interrupted"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "resample", "staleness", "minibatches"])
def test_a_run_killed_again_and_again_ends_bitwise_equal(tmp_path, name):
    spec = demanding(name, evaluation={"every": 100} | DEMANDING[name].get("evaluation", {}), rounds=ROUNDS // 5)
    expected = uninterrupted(tmp_path / "whole", spec)
    for delay in (0.0, 0.1):
        child = start(tmp_path / "killed", spec)
        wait_for(tmp_path / "killed" / "scratch" / "checkpoint.safetensors", child)
        time.sleep(delay)
        child.kill()
        child.wait()
    child = start(tmp_path / "killed", spec)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert record(tmp_path / "killed") == expected


class Killed(BaseException):
    """Ends the work where it stands, as a kill does: nothing in the package handles it."""


def test_a_kill_at_any_moment_of_publishing_is_mended_by_the_rerun(tmp_path, monkeypatch):
    spec, plain = make_spec(rounds=3), Path.replace
    expected = uninterrupted(tmp_path / "whole", spec)
    for moment in range(7):  # the checkpoint, then six files
        left = [moment]

        def deadly(self, target, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return plain(self, target)

        folder = tmp_path / str(moment)
        monkeypatch.setattr(Path, "replace", deadly)
        with pytest.raises(Killed):
            uninterrupted(folder, spec)
        monkeypatch.setattr(Path, "replace", plain)
        assert not (folder / "run" / "run.json").exists()
        assert uninterrupted(folder, spec) == expected


@pytest.mark.slow
def test_an_orphan_stops_at_a_checkpoint_and_its_successor_finishes(tmp_path):
    spec = make_spec(rounds=ROUNDS, evaluation={"every": 500})
    log = tmp_path / "log"
    parent = subprocess.Popen(
        ["sh", "-c", f'{sys.executable} -c "$CHILD" "$FOLDER" "$SPEC" 1000 True 2> "$LOG" > /dev/null; true'],
        env=os.environ
        | {"CHILD": CHILD, "FOLDER": str(tmp_path / "a"), "SPEC": canonical_json(spec), "LOG": str(log)},
    )
    wait_for(tmp_path / "a" / "scratch" / "lock", parent)
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    wait_for(tmp_path / "a" / "scratch" / "checkpoint.safetensors")
    assert uninterrupted(tmp_path / "a", spec) == uninterrupted(tmp_path / "b", spec)
    assert "the process that started it ended" in log.read_text()


@pytest.mark.slow
def test_two_processes_of_one_run_take_turns_and_leave_one_sound_record(tmp_path):
    spec = make_spec(rounds=2 * ROUNDS, evaluation={"every": 500})
    arguments = command(tmp_path / "a", spec, every=0.2)
    children = [
        subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    errors = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], errors
    assert any("waiting for process" in text for text in errors)
    assert record(tmp_path / "a") == uninterrupted(tmp_path / "b", spec)


def test_the_command_trains_a_cell_as_the_workflow_asks_for_it(tmp_path):
    spec = make_spec(rounds=3)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grpo_ablate", "train", "--cell", canonical_json(spec),
         "--testbed", "bench", "--seeds", "4-5", "--results", str(tmp_path), "--stop-with-parent"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("runs/bench/*/seeds-4-5/run.json")
    assert json.loads(run.read_text())["seeds"] == [4, 5]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "torch" in imported
    assert imported.isdisjoint({"pandas", "mlflow", "scipy", "seaborn", "matplotlib", "snakemake", "typst"})
    told = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert told == []  # nothing to say in less than a second
