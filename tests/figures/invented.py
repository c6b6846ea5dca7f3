"""Tables shaped like the real ones, with invented learning curves; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import compared
import numpy as np
import pandas as pd

from grpo_ablate.analysis.published import read
from grpo_ablate.spec.resolve import Experiment, load_experiment

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("selection", "selection-group-size", "selection-kl")
START = 0.5125


def experiment(name: str) -> Experiment:
    """Return one of the experiments that the project ships."""
    return load_experiment(ROOT / "experiments" / f"{name}.yaml")


def targets(shown: Experiment) -> dict[str, float]:
    """Return where each row ends: at the published value where there is one, else somewhere of its own."""
    ends = {row.id: 0.6 + 0.38 * ((7 * index) % 19) / 19 for index, row in enumerate(shown.rows)}
    if shown.published is not None:
        ends |= {line.row: line.value for line in read(shown.published) if line.statement == "final"}
    return ends


def runs(shown: Experiment, seeds: int = 4, evaluations: int = 6) -> pd.DataFrame:
    """Return a tidy table: every seed rises from the same start to near its row's end."""
    ends = targets(shown)
    parts = []
    for row in shown.rows:
        steps = np.linspace(0, row.spec.rounds, evaluations).round().astype(int)
        seed, step = (grid.ravel() for grid in np.meshgrid(np.arange(seeds), steps, indexing="ij"))
        progress = 1 - np.exp(-8 * step / step.max())
        quality = START + (ends[row.id] - START) * progress / progress.max()
        quality = quality + 0.0005 * np.sin(3.0 * seed + 1) * progress
        parts.append(
            pd.DataFrame(
                {
                    "experiment": shown.name,
                    "row": row.id,
                    "testbed": shown.testbed.name,
                    "hash": row.hash,
                    "seed": seed,
                    "round": step,
                    "updates": step * row.spec.steps_per_round,
                    "rollouts": step * row.spec.rollouts_per_round,
                    "tokens": step * row.spec.rollouts_per_round,
                    "seconds": 0.001 * step,
                    "stale": False,
                    "eval/kl": progress * (1 + 0.01 * seed),
                    "eval/reward": quality,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def write(results: Path, *names: str, seeds: int = 4, evaluations: int = 6) -> None:
    """Write the tidy tables and comparisons of the named experiments below a results folder."""
    (results / "tables").mkdir(parents=True, exist_ok=True)
    for name in names:
        table = runs(experiment(name), seeds, evaluations)
        table.to_parquet(results / "tables" / f"{name}-runs.parquet")
        compared.write(results, experiment(name), table)
