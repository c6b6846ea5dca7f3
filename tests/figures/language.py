"""Invented tables of the language-model experiments: many metrics, eight seeds, evaluated every five rounds."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import compared
import numpy as np
import pandas as pd
from invented import ROOT

from grpo_ablate.spec.resolve import Experiment, load_experiments

START = {"arithmetic": 0.43, "translation": 0.60}
SEED_SD = {"arithmetic": 0.015, "translation": 0.008}
GROUPS = {"arithmetic": tuple(f"operands-{count}" for count in range(3, 8)), "translation": ("french", "spanish")}
COLLAPSED = ("no baseline", "no clipping")  # labels of rows that fall far below the others
RIGHT_ONLY = ("train/length_right", "train/length_wrong", "train/groups_constant_predicted")


@cache
def experiments() -> dict[str, Experiment]:
    """Return every experiment that the project ships on a language model, by name."""
    found = load_experiments(ROOT / "experiments")
    return {e.name: e for e in found if e.rows[0].spec.task.name in START}


def runs(shown: Experiment, seeds: int | None = None) -> pd.DataFrame:
    """Return a tidy table: every row ends at a place of its own, by its hash, so that twins coincide."""
    rows = [*shown.rows, *shown.controls]
    return pd.concat([_row(shown, row, seeds or shown.seeds) for row in rows], ignore_index=True)


def _row(shown: Experiment, row, seeds: int) -> pd.DataFrame:
    task, spec = row.spec.task.name, row.spec
    random = np.random.default_rng(zlib.crc32(row.hash.encode()))
    end = START[task] + 0.19 + random.normal(0, 0.02)
    if spec.reward.transform in ("random", "constant"):
        end = START[task]
    elif row.label in COLLAPSED:
        end = START[task] - 0.25
    steps = np.unique([*range(0, spec.rounds + 1, spec.evaluation.every), spec.rounds])
    parts = []
    for seed in range(seeds):
        progress = 1 - np.exp(-3 * steps / steps.max())
        noise = random.normal(0, SEED_SD[task]) * progress + random.normal(0, 0.008, len(steps))
        reward = np.clip(START[task] + (end - START[task]) * progress / progress.max() + noise, 0, 1)
        trained = steps > 0
        size, length = spec.sampling.group_size, 7.5 + random.normal(0, 0.5) * progress

        def during(values: np.ndarray, trained: np.ndarray = trained) -> np.ndarray:
            return np.where(trained, values, np.nan)

        constant = reward**size + (1 - reward) ** size
        clipped = 0.06 * np.exp(-steps / 30) + random.normal(0, 0.003, len(steps))
        line = {
            "experiment": shown.name, "row": row.id, "testbed": shown.testbed.name, "hash": row.hash,
            "seed": seed, "round": steps, "updates": steps * spec.steps_per_round,
            "rollouts": steps * spec.rollouts_per_round,
            "tokens": (np.diff(steps, prepend=0) * spec.rollouts_per_round * length).cumsum().round().astype(int),
            "seconds": 0.4 * steps * spec.update.inner_passes, "stale": False,
            "eval/reward": reward, "eval/accuracy": reward, "eval/greedy_accuracy": np.clip(reward + 0.2, 0, 1),
            "eval/entropy": 0.9 - 0.3 * progress + random.normal(0, 0.01, len(steps)),
            "eval/kl": progress * (0.3 + 0.1 * random.random()) * (0.5 + spec.update.inner_passes / 4),
            "eval/length": length, "eval/truncated": 0.04 * (1 - progress),
            "eval/distinct_answers": 8 - 3 * progress,
            "train/entropy": during(0.9 - 0.3 * progress),
            "train/clip_fraction_high": during(clipped), "train/clip_fraction_low": during(clipped / 2),
            "train/length_right": during(length - 0.5), "train/length_wrong": during(length + 1),
            "train/truncated": during(0.05 * (1 - progress)),
            "train/groups_all_wrong": during((1 - reward) ** size + 0.05),
            "train/groups_all_right": during(reward**size), "train/groups_constant_other": during(0 * reward),
            "train/groups_constant_predicted": during(constant),
            "train/kl_reference_exact": during(0.05 * progress),
        }  # fmt: skip
        for index, group in enumerate(GROUPS[task]):
            line[f"eval/reward_{group}"] = np.clip(reward + 0.1 - 0.06 * index, 0, 1)
            line[f"eval/length_{group}"] = length + 2.0 * index
        if task == "translation":  # a continuous reward: no right and wrong, nothing to predict
            line = {name: values for name, values in line.items() if name not in RIGHT_ONLY}
        parts.append(pd.DataFrame(line))
    return pd.concat(parts, ignore_index=True)


def write(results: Path, *names: str, seeds: int | None = None) -> None:
    """Write the tidy tables and comparisons of the named experiments below a results folder."""
    (results / "tables").mkdir(parents=True, exist_ok=True)
    for name in names:
        table = runs(experiments()[name], seeds)
        table.to_parquet(results / "tables" / f"{name}-runs.parquet")
        compared.write(results, experiments()[name], table)
