"""An experiment whose runs begin from a warm start, with records and a start that nobody trained."""

from __future__ import annotations

import hashlib
import json
import textwrap
from pathlib import Path

from fabricated import write_record

from grpo_ablate.runs.record_files import sealed
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment, load_experiment
from grpo_ablate.spec.warmstart import Start, starts

TESTBED = """
description: arithmetic, for tests
seeds_per_job: 2
task: {name: arithmetic}
policy: {name: stacked, warmstart: {steps: 10}}
evaluation: {every: 5, samples: 2, last: 2}
sampling: {prompts: 2, group_size: 4, max_tokens: 8}
advantage: {baseline: mean, scale: group-std}
optimizer: {name: adamw, learning_rate: 1e-3}
budget: {rollouts: 40}
"""
EXPERIMENT = """
question: Does it matter?
testbed: warm
baseline: base
seeds: 2
rows:
  base: {}
  other: {advantage: {scale: none}}
"""


def warm_experiment(folder: Path) -> Experiment:
    """Write the experiment below a project's folder."""
    (folder / "experiments/testbeds").mkdir(parents=True, exist_ok=True)
    (folder / "experiments/testbeds/warm.yaml").write_text(textwrap.dedent(TESTBED))
    path = folder / "experiments/tiny-model.yaml"
    path.write_text(textwrap.dedent(EXPERIMENT))
    return load_experiment(path)


def write_warm(experiment: Experiment, results: Path, parameters: bytes = b"parameters") -> Start:
    """Write the warm start of the experiment, and a record of every cell that began from it."""
    [start] = starts(cells([experiment]))
    folder = results / start.folder
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model/config.json").write_text("{}")
    (folder / "parameters.safetensors").write_bytes(parameters)
    digest = hashlib.sha256(parameters).hexdigest()
    content = {
        "schema_version": 1, "hash": start.hash, "spec": json.loads(start.spec_json), "seeds": None, "digest": "0",
        "sha256": digest, "evaluation": {"reward": [0.5]}, "loss": [[1, [2.0]]],
    }  # fmt: skip
    (folder / "start.json").write_text(json.dumps(sealed(content)))
    for cell in cells([experiment]):
        run = write_record(results, cell) / "run.json"
        told = json.loads(run.read_text()) | {"start": {"hash": start.hash, "sha256": digest}}
        run.write_text(json.dumps(sealed(told)))
    return start
