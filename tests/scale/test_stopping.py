"""Requests to stop are heard from a command's start to its end, and none is lost between two runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import fake_machine
from project import build
from training_specs import make_spec

from grpo_ablate.errors import UserError
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.spec.identity import canonical_json

# The command, which gets a signal as torch is imported, or as a record is published.
SIGNALLED = """
import os, signal, sys
number, moment = signal.Signals[sys.argv.pop(1)], sys.argv.pop(1)
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Watch())
if moment == "publish":
    import grpo_ablate.runs.train as training
    plain = training.publish
    def publish(*given):
        os.kill(os.getpid(), number)
        plain(*given)
    training.publish = publish
from grpo_ablate.cli import main
main(sys.argv[1:])
"""


def cell(results: Path, rounds: int = 3) -> list[str]:
    asked = ["--testbed", "bench", "--seeds", "0-1", "--results", str(results)]
    return ["train", "--cell", canonical_json(make_spec(rounds=rounds)), *asked]


def signalled(number: str, moment: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SIGNALLED, number, moment, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM", "SIGINT"])
def test_a_signal_while_torch_is_imported_stops_before_the_first_round(tmp_path: Path, number: str) -> None:
    done = signalled(number, "torch", *cell(tmp_path / "results"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"grpo-ablate: error: stopped before seeds 0-1: {number}; the same command goes on from there.\n"
    )
    assert not (tmp_path / "results").exists()


def test_a_signal_while_a_record_is_published_lets_it_be_and_stops_before_the_next_block(tmp_path: Path) -> None:
    project = build(tmp_path / "project")
    row = "experiments/alpha.yaml:group-std"
    done = signalled("SIGUSR1", "publish", "train", row, cwd=project.path)
    assert done.returncode == 2, done.stderr
    assert "stopped before seeds 2-3: SIGUSR1; the same command goes on from there." in done.stderr
    assert len(list(project.path.glob("results/runs/*/*/*/run.json"))) == 1
    done = subprocess.run(
        [sys.executable, "-m", "grpo_ablate", "train", row], cwd=project.path, capture_output=True
    )
    assert done.returncode == 0
    assert len(list(project.path.glob("results/runs/*/*/*/run.json"))) == 2


def test_a_signal_while_the_last_record_is_published_changes_nothing(tmp_path: Path) -> None:
    done = signalled("SIGTERM", "publish", *cell(tmp_path / "results"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "results").glob("runs/bench/*/*/run.json"))) == 1


def test_a_signal_to_a_job_that_waits_for_a_gpu_is_a_sentence(tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 1)
    holder = "from grpo_ablate.runs.devices import leased; import sys\nwith leased(1):\n"
    holder += "    print('holding', flush=True); sys.stdin.readline()\n"
    first = subprocess.Popen(
        [sys.executable, "-c", holder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "holding\n"
    command = [sys.executable, "-m", "grpo_ablate", *cell(tmp_path / "results"), "--gpus", "1"]
    second = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert second.stderr.readline().startswith("waiting for 1 of 1 GPUs")
    second.send_signal(signal.SIGUSR1)
    _, said = second.communicate(timeout=60)
    first.communicate("\n")
    assert (second.returncode, said) == (
        2,
        "grpo-ablate: error: stopped while waiting for a free GPU: SIGUSR1.\n",
    )


def test_signals_that_come_together_are_one_request_and_nothing_is_lost(tmp_path: Path) -> None:
    many = cell(tmp_path / "results", 4000)
    process = subprocess.Popen([sys.executable, "-m", "grpo_ablate", *many], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("results/scratch/bench/*/*/lock")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)  # so that all are there before it looks
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "the same command continues" in said
    assert "Traceback" not in said


def test_what_was_asked_for_inside_is_known_outside() -> None:
    with stop_requests(False) as outer:
        with stop_requests(False) as inner:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert inner.pending() == "SIGUSR1"
        assert outer.pending() == "SIGUSR1"
        with stop_requests(False) as later:
            assert later.pending() == "SIGUSR1"
        with pytest.raises(UserError, match=r"^stopped before seeds 0-1: SIGUSR1; the same command goes on"):
            outer.heed("seeds 0-1")
    with stop_requests(False) as fresh:
        assert fresh.pending() is None
        fresh.heed("seeds 0-1")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, which it does not in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_of_a_kind_acts_as_ever_unless_it_comes_by_several_ways(interruptible: None) -> None:
    with pytest.raises(KeyboardInterrupt), stop_requests(False):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    with stop_requests(False, once=True) as request:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert request.pending() == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_death_of_the_parent_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    request, free = StopRequest(with_parent=True), StopRequest()
    assert request.pending() is None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert request.pending() == "the process that started it ended"
    assert free.pending() is None
