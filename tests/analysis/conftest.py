"""A small experiment on disk with fabricated records: numbers of every kind, none of them trained."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import rows_only, write_record
from tidy_runs import ROWS, written

from grpo_ablate.runs.mlflow_store import create_store
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment

TESTBED = """
description: two prompts, for tests
seeds_per_job: 2
task:
  name: selection
  prompts:
    - source: "Good \\"morning\\", 100 %"
      target: French
      candidates: [{text: Bonjour, quality: 1}, {text: Au revoir, quality: 0}]
    - source: Good night
      target: Spanish
      candidates: [{text: Buenas noches, quality: 1}, {text: Hola, quality: 0.25}]
evaluation: {every: 1, samples: exact, last: 2}
sampling: {prompts: 2, group_size: 4, prompt_order: each-once}
advantage: {baseline: mean, scale: group-std, eps: 1e-8}
optimizer: {name: sgd, learning_rate: 0.3}
budget: {rollouts: 64}
"""
EXPERIMENT = """
question: Does it matter?
testbed: tiny
baseline: base
seeds: 3
rows:
  base: {}
  twin: {update: {clip_low: 0.1}}
  mean-only: {advantage: {scale: none}}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Rows base, twin (the same run as base) and mean-only on seeds 0 to 2, blocks of two; no controls."""
    (tmp_path / "experiments" / "testbeds").mkdir(parents=True)
    (tmp_path / "experiments" / "testbeds" / "tiny.yaml").write_text(textwrap.dedent(TESTBED))
    path = tmp_path / "experiments" / "small.yaml"
    path.write_text(textwrap.dedent(EXPERIMENT))
    return rows_only(path)


@pytest.fixture
def three_rows(tmp_path: Path) -> Experiment:
    """Rows base, other and third on seeds 0 to 7, for tidy tables of invented scores; no controls."""
    return replace(written(tmp_path, ROWS, TESTBED), controls=())


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that MLflow made, without experiments; making one takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    create_store(folder)
    return folder / "mlflow.db"


@pytest.fixture
def results(tmp_path: Path, made_store: Path) -> Path:
    """A results folder with an empty store in it."""
    (tmp_path / "results").mkdir()
    shutil.copy(made_store, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def recorded(experiment: Experiment, results: Path) -> Experiment:
    """The experiment with a record of every cell."""
    for cell in cells([experiment]):
        write_record(results, cell)
    return experiment
