"""Builds throwaway projects and asks Snakemake what it would do in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TARGETS = {"all", "grid", "quick", "smoke", "alpha", "beta", "gamma", "total", "job"}  # not jobs of their own

# alpha: two rows of two blocks on a testbed that reruns; beta: two rows of one block on one that keeps.
ALPHA = """
question: Does dividing by the spread matter?
testbed: tiny
baseline: group-std
seeds: 4
rows:
  group-std: {}
  clipped: {update: {clip_low: 0.1, clip_high: 0.3, inner_passes: 2}}
figures: [curves]
"""
BETA = """
question: And the baseline?
testbed: kept
baseline: mean
seeds: 2
rows:
  mean: {}
  none: {advantage: {baseline: none, scale: none}}
figures: [curves]
"""
# A language model of some thousand parameters: two rows and two controls of one block, and a warm start.
GAMMA = """
question: Does a mean over sequences matter?
testbed: tongue
baseline: sequence-mean
seeds: 2
rows:
  sequence-mean: {}
  token-mean: {update: {reduction: token-mean}}
figures: [curves]
"""
TONGUE = """
description: a tiny language model
seeds_per_job: 2
task: {name: arithmetic, held_out: 16, train_prompts: 32}
policy:
  {name: stacked, hidden: 32, layers: 1, heads: 1, kv_heads: 1, intermediate: 32,
   warmstart: {steps: 20, demonstrations: 64, batch: 16}}
evaluation: {every: 2, samples: 2}
sampling: {prompts: 4, group_size: 4, max_tokens: 12}
update: {inner_passes: 2, minibatches: 2}
optimizer: {name: adamw, learning_rate: 1e-3, max_grad_norm: 1}
budget: {rollouts: 64}
"""
# The wiring of the paper, without its words: those tell of experiments that take longer than these.
PAPER = """
from pathlib import Path


def inputs(experiments):
    return [f"figures/{experiment.name}-curves.pdf" for experiment in experiments]


WHOLE, QUICK = ("paper", ""), ("paper-quick", "-quick")


def build(results, folder, edition):
    name, suffix = edition
    for file in (f"paper/numbers{suffix}.json", f"figures/overview{suffix}.pdf", f"figures/overview{suffix}.png"):
        (results / file).parent.mkdir(parents=True, exist_ok=True)
        (results / file).write_text("{}")
    (folder / f"{name}.pdf").write_bytes(b"%PDF")
"""


@dataclass(frozen=True)
class Project:
    """A folder with a Snakefile, the package, experiments and profiles, as a clone has them."""

    path: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the folder."""
        done = subprocess.run(
            command(*arguments), cwd=self.path, env=environment(), capture_output=True, text=True, timeout=300
        )
        if check and done.returncode:
            raise AssertionError(f"snakemake {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}")
        return done

    def planned(self, *arguments: str) -> Counter[str]:
        """What ``snakemake -n`` says would run: rule -> jobs, without the targets themselves."""
        said = self.run("-n", *arguments)
        text = said.stdout + said.stderr
        table = text.rpartition("Job stats:")[2]
        jobs = {name: int(count) for name, count in re.findall(r"^([\w-]+) +(\d+)$", table, re.MULTILINE)}
        assert jobs or "Nothing to be done" in text, text
        return Counter(
            {
                name: n
                for name, n in jobs.items()
                if name not in {"total", "job", "alpha", "beta", "gamma", *TARGETS}
            }
        )

    def status(self) -> dict:
        """What ``grpo-ablate status --json`` says."""
        done = subprocess.run(
            [sys.executable, "-m", "grpo_ablate", "status", "--json"],
            cwd=self.path, env=environment(), capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return json.loads(done.stdout)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that must occur once."""
        path = self.path / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new))

    def experiment(self, name: str) -> dict:
        """The experiment file as data, to be changed and handed to `write`."""
        return yaml.safe_load((self.path / "experiments" / f"{name}.yaml").read_text())

    def write(self, name: str, content: dict) -> None:
        """Write an experiment file."""
        (self.path / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def copied(self, to: Path) -> Project:
        """A copy with results, dates and Snakemake's memory."""
        shutil.copytree(self.path, to, symlinks=True)
        return Project(to)

    def cloned(self, to: Path) -> Project:
        """What a clone has: the tracked files, newly written."""
        for name in ("Snakefile", "grpo_ablate", "experiments", "profiles", "paper"):
            source = self.path / name
            ignored = shutil.ignore_patterns("__pycache__", "paper.pdf")
            if source.is_dir():
                shutil.copytree(source, to / name, copy_function=shutil.copyfile, ignore=ignored)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, to / name)
        return Project(to)

    def records(self) -> dict[str, bytes]:
        """The bytes of everything in run records and warm starts that must not depend on how they came about."""
        results = self.path / "results"
        return {
            str(path.relative_to(results)): path.read_bytes()
            for folder in ("runs", "warmstarts")
            for path in sorted((results / folder).rglob("*"))
            if path.is_file() and path.name not in ("timing.json", "provenance.json")
        }


def build(path: Path, rollouts: int = 96) -> Project:
    """Write a project with the experiments above; ``rollouts`` is the budget of a seed, 32 a round."""
    Project(ROOT).cloned(path)
    shutil.rmtree(path / "experiments")
    testbed = yaml.safe_load((ROOT / "experiments/testbeds/selection.yaml").read_text())
    testbed |= {"seeds_per_job": 2, "budget": {"rollouts": rollouts}}
    (path / "experiments/testbeds").mkdir(parents=True)
    (path / "experiments/alpha.yaml").write_text(ALPHA)
    (path / "experiments/beta.yaml").write_text(BETA)
    for name, changes in {"tiny": {}, "kept": {"stale": "keep", "evaluation": {"every": 1}}}.items():
        (path / f"experiments/testbeds/{name}.yaml").write_text(yaml.safe_dump(testbed | changes))
    (path / "grpo_ablate/analysis/paper.py").write_text(PAPER)
    return Project(path)


def build_language(path: Path) -> Project:
    """Write a project with a language model's experiment alone."""
    project = build(path)
    for file in (path / "experiments").rglob("*.yaml"):
        file.unlink()
    (path / "experiments/testbeds/tongue.yaml").write_text(TONGUE)
    (path / "experiments/gamma.yaml").write_text(GAMMA)
    return project


def command(*arguments: str) -> list[str]:
    """The command line of Snakemake in this environment."""
    return [str(Path(sys.executable).parent / "snakemake"), *arguments]


def environment() -> dict[str, str]:
    """This environment, with bytecode caches, and without an outer run's paths."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "MLFLOW_TRACKING_URI")
    return {name: value for name, value in os.environ.items() if name not in dropped}
