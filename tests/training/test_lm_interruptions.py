"""Runs of a language model killed in every part of their work: the plain command then ends in the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from language_specs import sections, warm

from grpo_ablate.runs.record import read_record
from grpo_ablate.runs.record_files import CHECKED
from grpo_ablate.spec.cells import row_cells
from grpo_ablate.spec.resolve import load_experiment

pytestmark = pytest.mark.slow

# Dies by SIGKILL inside the call of a function, of which so many calls were allowed.
DEADLY = """
import importlib, os, signal, sys
owner, _, name = sys.argv[1].rpartition(".")
left = [int(sys.argv[2])]
try:
    owner = importlib.import_module(owner)
except ModuleNotFoundError:
    module, _, owner = owner.rpartition(".")
    owner = getattr(importlib.import_module(module), owner)
plain = getattr(owner, name)
def deadly(*arguments, **named):
    left[0] -= 1
    if left[0] < 0:
        if name == "save_file":  # a checkpoint half written
            plain(*arguments, **named)
            with open(arguments[1], "r+b") as file:
                file.truncate(1000)
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **named)
setattr(owner, name, deadly)
from grpo_ablate.runs import train, warmstart
for module in (train, warmstart):  # a checkpoint after every round and step
    body = getattr(module, "train" if module is train else "train_start")
    body.__kwdefaults__["checkpoint_seconds"] = 0.0
from grpo_ablate.cli import main
main(["train", "experiments/tiny.yaml:base"])
"""
SAMPLING = "grpo_ablate.policies.stacked.policy.Stacked.sample"
UPDATE = "grpo_ablate.policies.optimizer.StackedOptimizer.step"
CHECKPOINT = "grpo_ablate.runs.checkpoint.save_file"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with an experiment of one row: resampling, stale rounds, a KL penalty and a warm start a seed."""
    folder = tmp_path / "experiments"
    (folder / "testbeds").mkdir(parents=True)
    testbed = sections(
        policy=warm(per_seed=True),
        sampling={"dynamic": "resample", "max_resample": 2},
        update={"staleness": 1},
        kl={"beta": 0.05, "estimator": "exact", "refresh_reference": 2},
        budget={"rollouts": 160},
    )
    testbed |= {"description": "a tiny language model", "seeds_per_job": 2}
    (folder / "testbeds/small.yaml").write_text(yaml.safe_dump(testbed))
    experiment = {"question": "Does it?", "testbed": "small", "baseline": "base", "seeds": 2, "rows": {"base": {}}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(experiment))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plain(results: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpo_ablate", "train", "experiments/tiny.yaml:base", "--results", results],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def content(results: Path) -> dict[str, bytes]:
    experiment = load_experiment(Path("experiments/tiny.yaml"))
    (cell,) = row_cells(experiment, experiment.row("base"))
    read_record(results / cell.folder)  # verifies the checksums
    starts = [path for path in sorted((results / "warmstarts").rglob("*")) if path.is_file()]
    found = {str(path.relative_to(results)): path.read_bytes() for path in starts if path.name != "timing.json"}
    found = {name: text for name, text in found.items() if not name.endswith("provenance.json")}
    return found | {name: (results / cell.folder / name).read_bytes() for name in (*CHECKED, "run.json")}


def test_a_kill_in_any_part_of_the_work_is_mended_by_the_plain_command(project):
    plain("whole")
    expected = content(project / "whole")
    assert len(expected) > 10
    # The warm start takes 20 steps and saves as often; then come the rounds.
    moments = [(UPDATE, 3), (CHECKPOINT, 10), (SAMPLING, 3), (UPDATE, 20 + 7), (CHECKPOINT, 21)]
    for function, calls in moments:
        killed = subprocess.run(
            [sys.executable, "-c", DEADLY, function, str(calls)], env=os.environ, capture_output=True, text=True
        )
        assert killed.returncode == -9, killed.stderr
        plain("results")
        assert content(project / "results") == expected, function
        subprocess.run(["rm", "-r", "results"], check=True)


def test_a_run_killed_again_and_again_ends_in_the_same_bytes(project):
    plain("whole")
    for function, calls in [(UPDATE, 9), (UPDATE, 12), (SAMPLING, 1), (UPDATE, 5), (SAMPLING, 2), (CHECKPOINT, 1)]:
        killed = subprocess.run(
            [sys.executable, "-c", DEADLY, function, str(calls)], capture_output=True, text=True, check=False
        )
        assert killed.returncode == -9, (function, killed.stderr)
    plain("results")
    assert content(project / "results") == content(project / "whole")
