"""Records of runs that nobody trained: lines of every kind, published as the trainer publishes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml

from grpo_ablate.runs.mlflow_lines import INTEGERS
from grpo_ablate.runs.record import publish
from grpo_ablate.spec.cells import Cell, cells
from grpo_ablate.spec.resolve import Experiment, load_experiment


def columns(seeds: list[int], salt: int) -> dict[str, Any]:
    """Lines of each kind: five evaluations, two of them at the same step; NaN, infinities, constants, gaps."""
    made: dict[str, list[Any]] = {}
    for seed in seeds:
        numbers = np.random.default_rng([seed, salt])
        lines = {
            "seed": [seed] * 5,
            "round": [0, 1, 2, 3, 4],
            "updates": [0, 1, 1, 2, 3],
            "rollouts": [0, 8, 16, 24, 40],
            "tokens": [0, 8, 16, 24, 40],
            "eval/reward": [0.5125, *numbers.random(4)],
            "eval/hurt": [np.nan, np.inf, -np.inf, -0.0, 1e-300],
            "train/noisy": [np.nan, *numbers.normal(size=4)],
            "train/constant": [np.nan, 1.0, 1.0, 1.0, 1.0],
            "train/steps": [np.nan, 0.25, 0.25, 0.75, 0.25],
            "train/broken": [np.nan, 1.0, np.nan, np.nan, np.nan],
            "train/gap": [np.nan, 2.0, np.nan, 2.0, 2.0],
            "train/infinite": [np.nan, np.inf, np.inf, np.inf, -np.inf],
            "train/never": [np.nan] * 5,
        }
        for name, values in lines.items():
            made.setdefault(name, []).extend(values)
    return made


def _table(made: dict[str, Any]) -> pa.Table:
    types = {name: np.int64 if name in ("seed", *INTEGERS) else np.float64 for name in made}
    return pa.table({name: np.array(values, dtype=types[name]) for name, values in made.items()})


def write_record(
    results: Path,
    cell: Cell,
    *,
    salt: int = 0,
    diverged: dict[str, int] | None = None,
    curve: list[list[float]] | None = None,
    started: str = "2099-01-02T03:04:05.678+00:00",  # after any plan that a test records
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Publish a record of the cell as the trainer would; ``change`` may alter the columns first."""
    seeds = list(range(cell.first_seed, cell.last_seed + 1))
    table = columns(seeds, salt + int(cell.hash[:6], 16))
    if change is not None:
        change(table)
    folder = results / cell.folder
    run = {
        "schema_version": 1,
        "hash": cell.hash,
        "spec": json.loads(cell.spec_json),
        "testbed": cell.testbed,
        "seeds": seeds,
        "status": "diverged" if diverged else "finished",
        "diverged": diverged or {},
        "digest": "0123456789abcdef",
        "budget": {
            name: [dict(zip(table["seed"], table[name], strict=True))[seed] for seed in seeds]
            for name in ("rollouts", "tokens", "updates")
        },
    }
    timing = {
        "seconds": 0.8,
        "parts": {"update": 0.5},
        "curve": curve or [[number, 0.1 * number + 0.004] for number in range(5)],
        "peak_memory_bytes": 1 << 20,
        "updates": 3 * len(seeds),
        "machine": "a-machine",
    }
    made_by = {
        "commit": "c0ffee", "dirty": False, "versions": {"torch": "2"}, "processor": "A processor", "threads": 1,
    }  # fmt: skip
    samples = [
        {"seed": seed, "round": 4, "prompt": "Good morning", "response": f"Bonjour {seed}", "reward": 1.0}
        | {"tokens": [f"Bonjour {seed}"], "advantages": [0.5]}
        for seed in seeds
    ]
    parameters = {"logits": torch.zeros(1)}
    apart = {"timing": timing, "provenance": {**made_by, "started": started, "interrupted": []}}
    publish(folder, results / "aside", _table(table), samples, parameters, run, apart)
    return folder


def train(experiment: Experiment, results: Path, started: str | None = None) -> None:
    """Publish a record of every cell of an experiment."""
    for cell in cells([experiment]):
        write_record(results, cell, **({} if started is None else {"started": started}))


def changed(experiment: Experiment, **keys: object) -> Experiment:
    """The experiment file with other keys, loaded again."""
    content = yaml.safe_load(experiment.path.read_text()) | keys
    experiment.path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_experiment(experiment.path)


def rows_only(path: Path) -> Experiment:
    """Load an experiment without its controls, so that runs are counted easily."""
    return replace(load_experiment(path), controls=())


def client(results: Path, uri: str | None = None) -> Any:
    """MLflow's own client of a store, to look at what is in it."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri or f"sqlite:///{results / 'mlflow.db'}")
