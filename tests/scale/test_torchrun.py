"""One pretrained model trained by two processes: the record of one process, signals, kills, leases."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from machine import fake_machine
from safetensors.torch import load_file
from tiny_model import save_tiny

from grpo_ablate.runs.record import read_record
from grpo_ablate.runs.record_files import CHECKED, read_timing
from grpo_ablate.spec.identity import canonical_json
from grpo_ablate.spec.schema import Spec

pytestmark = pytest.mark.slow
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "grpo_ablate"]


# The command with a checkpoint after every round, in the processes that it starts, too.
EAGER = """
import os, sys
if "RANK" not in os.environ:
    import grpo_ablate.parallel.launch as launch
    from torch.distributed.launcher import api
    plain = api.elastic_launch
    api.elastic_launch = lambda config, entry: lambda *rest: plain(config, entry)(
        "-c", os.environ["EAGER"], *rest[2:]
    )
else:
    import grpo_ablate.parallel.session as session
    together = session.train_together
    session.train_together = lambda *given, **named: together(*given, checkpoint_seconds=0, **named)
from grpo_ablate.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two layers over bytes."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny")


def cell(model: Path, results: Path, rounds: int = 4, engine: str = "transformers", **policy: Any) -> list[str]:
    """The arguments that train some rounds of six groups of four; random rewards, as the model knows no sums."""
    spec = Spec.model_validate(
        {
            "task": {"name": "addition", "train_prompts": 32, "held_out": 6},
            "policy": {"name": "huggingface", "model": str(model), "device": "cpu", **policy},
            "reward": {"transform": "random"},
            "sampling": {"prompts": 6, "group_size": 4, "max_tokens": 6, "engine": engine},
            "update": {"minibatches": 2},
            "evaluation": {"every": 2, "samples": 2},
            "optimizer": {"learning_rate": 0.1, "max_grad_norm": 1.0},
            "budget": {"rollouts": rounds * 24},
        }
    )
    asked = ["--testbed", "bench", "--seeds", "3-3", "--results", str(results)]
    return ["train", "--cell", canonical_json(spec), *asked]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done


def folder(results: Path) -> Path:
    (found,) = results.glob("runs/bench/*/seeds-3-3")
    return found


def content(results: Path) -> dict[str, bytes]:
    return {name: (folder(results) / name).read_bytes() for name in (*CHECKED, "run.json")}


@pytest.mark.parametrize("policy", [{}, {"lora": {"rank": 2, "alpha": 8.0}}], ids=["whole", "adapters"])
def test_the_record_of_two_processes_is_that_of_one(model: Path, tmp_path: Path, policy: dict) -> None:
    run("-m", "grpo_ablate", *cell(model, tmp_path / "one", **policy))
    said = run(*TORCHRUN, *cell(model, tmp_path / "two", **policy))
    assert "Traceback" not in said.stderr
    one, two = read_record(folder(tmp_path / "one")), read_record(folder(tmp_path / "two"))
    assert one.run["budget"] == two.run["budget"]
    assert one.metrics.column_names == two.metrics.column_names
    for name in one.metrics.column_names:
        first, second = one.metrics.column(name).to_pylist(), two.metrics.column(name).to_pylist()
        assert second == pytest.approx(first, abs=1e-6, rel=1e-6, nan_ok=True), name
    assert max(one.metrics.column("train/gradient_norm").to_pylist()[1:]) > 1e-3
    samples = [(folder(tmp_path / part) / "samples.jsonl").read_text().count("\n") for part in ("one", "two")]
    assert samples[0] == samples[1] > 0
    if policy:
        parameters = [load_file(folder(tmp_path / part) / "parameters.safetensors") for part in ("one", "two")]
        assert parameters[0].keys() == parameters[1].keys()
        for name, values in parameters[0].items():
            assert float((values - parameters[1][name]).abs().max()) < 1e-6, name


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_each_process_draws_its_share_by_a_vllm_of_its_own(model: Path, tmp_path: Path) -> None:
    run(*TORCHRUN, *cell(model, tmp_path / "two", rounds=2, engine="vllm"))
    record = read_record(folder(tmp_path / "two"))
    assert record.run["status"] == "finished" and record.run["budget"]["rollouts"] == [48]
    gaps = record.metrics.column("train/engine_gap_max").to_pylist()
    assert 0 < gaps[-1] < 1e-3
    assert record.metrics.column("train/gradient_norm").to_pylist()[-1] > 1e-3


def test_two_leased_devices_train_one_run_and_both_are_told(model: Path, tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 2)
    done = run("-m", "grpo_ablate", *cell(model, tmp_path / "results"), "--gpus", "2", **environment)
    assert "Traceback" not in done.stderr
    timing = read_timing(folder(tmp_path / "results"))
    assert timing["devices"] == ["Fake GPU", "Fake GPU"]
    assert timing["device_hours"] * 3600 == pytest.approx(2 * timing["seconds"])


def lock(results: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the run has begun."""
    end = time.monotonic() + 600
    while not any(results.glob("scratch/bench/*/*/checkpoint.safetensors")):
        assert time.monotonic() < end and process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGUSR1])
def test_a_signal_to_the_launcher_stops_all_processes_at_one_round_and_they_go_on_bit_by_bit(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    environment = fake_machine(tmp_path, 2)
    many = cell(model, tmp_path / "stopped", rounds=40)
    command = [sys.executable, "-c", EAGER, *many, "--gpus", "2"]
    first = subprocess.Popen(command, env=environment | {"EAGER": EAGER}, stderr=subprocess.PIPE, text=True)
    lock(tmp_path / "stopped", first)
    first.send_signal(number)
    _, said = first.communicate(timeout=600)
    assert first.returncode == 2
    assert said.count(f": {number.name}; the same command continues") == 1
    assert "Traceback" not in said
    assert not list((tmp_path / "stopped").glob("runs/bench/*/*/run.json"))
    run("-m", "grpo_ablate", *many, "--gpus", "2", **environment)
    run("-m", "grpo_ablate", *cell(model, tmp_path / "whole", rounds=40), "--gpus", "2", **environment)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_a_process_that_is_killed_ends_the_others_and_the_same_command_finishes(
    model: Path, tmp_path: Path
) -> None:
    environment = fake_machine(tmp_path, 2)
    many = cell(model, tmp_path / "killed", rounds=40)
    command = [sys.executable, "-c", EAGER, *many, "--gpus", "2"]
    first = subprocess.Popen(command, env=environment | {"EAGER": EAGER}, stderr=subprocess.PIPE, text=True)
    lock(tmp_path / "killed", first)
    workers = psutil.Process(first.pid).children()
    assert len(workers) == 2
    workers[1].kill()
    _, said = first.communicate(timeout=600)
    assert first.returncode not in (0, None)
    assert "Traceback" not in said
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    run("-m", "grpo_ablate", *many, "--gpus", "2", **environment)
    assert read_record(folder(tmp_path / "killed")).run["status"] == "finished"


def test_processes_stop_at_a_checkpoint_when_whoever_started_them_dies(model: Path, tmp_path: Path) -> None:
    environment = fake_machine(tmp_path, 2)
    many = [*cell(model, tmp_path / "orphaned", rounds=4000), "--gpus", "2", "--stop-with-parent"]
    with (tmp_path / "said").open("wb") as said:
        starts = "import subprocess, sys; subprocess.run(sys.argv[1:])"
        starter = subprocess.Popen(
            [sys.executable, "-c", starts, sys.executable, "-c", EAGER, *many],
            env=environment | {"EAGER": EAGER}, stderr=said, text=True,
        )  # fmt: skip
    lock(tmp_path / "orphaned", starter)
    (launcher,) = psutil.Process(starter.pid).children()
    starter.kill()
    starter.wait()
    launcher.wait(timeout=300)
    assert (tmp_path / "said").read_text().count(": SIGTERM; the same command continues") == 1
    assert not list((tmp_path / "orphaned").glob("runs/bench/*/*/run.json"))


def test_gpus_are_not_asked_for_beside_torchrun(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, *TORCHRUN, *cell(model, tmp_path / "results"), "--gpus", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "--gpus 2: torchrun says which GPU a process has; leave it out." in done.stderr
    assert not (tmp_path / "results").exists()
