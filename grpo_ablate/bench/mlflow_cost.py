"""What MLflow costs: milliseconds to write a run of a testbed's size, through the workflow's own writer."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from grpo_ablate.bench.summary import evaluations_of
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import from_canonical, replace
from grpo_ablate.spec.resolve import Experiment, load_experiment
from grpo_ablate.spec.schema import Spec, StackedPolicy

SEEDS = 4


@dataclass(frozen=True)
class MlflowCost:
    """One call of the writer on a fresh SQLite store."""

    runs: int
    points_per_run: float  # metric points
    milliseconds_per_run: float
    store_seconds: float  # to create the database, once


def mlflow_cost(whole: Spec, testbed: str, folder: Path) -> MlflowCost:
    """Train a few small runs with as many evaluations as ``whole`` makes in ``folder``, and log them there."""
    import torch

    from grpo_ablate.runs.mlflow_lines import encode, record_lines, timestamps
    from grpo_ablate.runs.mlflow_store import create_store
    from grpo_ablate.runs.mlflow_writer import log_experiment
    from grpo_ablate.runs.record import read_cell
    from grpo_ablate.runs.train import train

    experiment = _experiment(whole, testbed, folder)
    results = folder / "results"
    blocks = cells([experiment])
    for cell in blocks:
        scratch = results / cell.folder.replace("runs/", "scratch/", 1)
        train(from_canonical(cell.spec_json), range(SEEDS), results / cell.folder, scratch, testbed=testbed)
    torch.set_flush_denormal(False)  # which training sets, and numpy warns of
    points = sum(
        len(encode(lines, timestamps(0, lines["seconds"])))
        for cell in blocks
        for lines in record_lines(read_cell(results, cell)).values()
    )
    began = time.perf_counter()
    create_store(results, None, [testbed])
    created = time.perf_counter()
    written = log_experiment(experiment, results).written
    logged = time.perf_counter()
    return MlflowCost(written, points / written, 1e3 * (logged - created) / written, created - began)


def _experiment(whole: Spec, testbed: str, folder: Path) -> Experiment:
    """Return an experiment whose runs have as many lines as those of ``whole``, and little work in each."""
    lines = sum(evaluations_of(whole).values())
    assert isinstance(whole.policy, StackedPolicy)
    cold = whole.policy.warmstart.model_copy(update={"steps": 0})
    small = replace(
        whole,
        {
            "task": {"held_out": 8},
            "policy": {"warmstart": cold},
            "evaluation": {"every": 1, "samples": 1, "final_samples": "same"},
            "sampling": {"prompts": 2, "group_size": 2, "max_tokens": 4},
            "update": {"inner_passes": 1, "minibatches": 1},
            "budget": {"rollouts": 4 * (lines - 1)},
        },
    )
    stated = small.model_dump(mode="json", exclude_defaults=True)
    testbeds = folder / "experiments" / "testbeds"
    testbeds.mkdir(parents=True)
    stated |= {"description": "as many lines as a run of the testbed", "seeds_per_job": SEEDS}
    (testbeds / f"{testbed}.yaml").write_text(json.dumps(stated))
    question = {"question": "what does a run cost?", "testbed": testbed, "baseline": "a", "seeds": SEEDS}
    path = testbeds.parent / "bench.yaml"
    path.write_text(json.dumps({**question, "rows": {"a": {}}}))
    return load_experiment(path)
