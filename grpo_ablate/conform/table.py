"""The tidy table of an experiment trained by two trainers: a line per row, trainer, seed and block of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import CONFORM, Experiment, Row

if TYPE_CHECKING:
    from torch import Tensor

OURS, TRL = "grpo-ablate", "trl"
REWARD = "train/reward_raw"


def write_table(experiment: Experiment, results: Path, say: Callable[[str], None]) -> list[Path]:
    """Train every row with both trainers; write ``tables/<name>-runs.{parquet,csv}`` and return their paths.

    Columns: experiment, row, trainer, seed, round, updates, rollouts, and ``train/reward_raw``, the mean over the
    rollouts of the ``evaluation.every`` rounds that end there. A warm start that is not there is trained first.

    Raises:
        UserError: trl is not installed or cannot train a row, or something cannot be written.
    """
    from importlib.util import find_spec

    if not experiment.path.name.startswith(CONFORM):
        raise UserError(f"{experiment.path}: expected an experiment of two trainers, experiments/{CONFORM}*.yaml.")
    if find_spec("trl") is None:
        raise UserError(f"{experiment.path}: the package trl is not installed; pip install 'grpo-ablate[trl]'.")
    import io

    import pandas as pd

    from grpo_ablate.conform.curves import trl_arguments

    for row in experiment.rows:
        trl_arguments(row.effective, _where(experiment, row))
    table = pd.DataFrame([line for row in experiment.rows for line in _lines(experiment, row, results, say)])
    stem, binary = results / "tables" / f"{experiment.name}-runs", io.BytesIO()
    table.to_parquet(binary, index=False, compression="zstd")
    written = {".parquet": binary.getvalue(), ".csv": table.to_csv(index=False, lineterminator="\n").encode()}
    for suffix, content in written.items():
        write_whole(stem.with_name(f"{stem.name}{suffix}"), content)
    return [stem.with_name(f"{stem.name}{suffix}") for suffix in written]


def _where(experiment: Experiment, row: Row) -> str:
    return f"{experiment.path}: row '{row.id}'"


def _lines(
    experiment: Experiment, row: Row, results: Path, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    from grpo_ablate.conform.curves import ours, theirs
    from grpo_ablate.runs.numerics import settle
    from grpo_ablate.runs.start_files import found_start
    from grpo_ablate.runs.warmstart import train_start
    from grpo_ablate.spec.warmstart import start_of

    spec, seeds = row.effective, range(experiment.seeds)
    start = start_of(spec, 0, seeds[-1])
    assert start is not None  # the settings were checked
    if found_start(results, start) is None:
        say(f"{experiment.name}: the warm start")
        train_start(start, results)
    settle(spec)
    say(f"{experiment.name}: {row.id}, {OURS}")
    curves = {OURS: list(ours(spec, seeds, results))}
    curves[TRL] = []
    for seed in seeds:
        say(f"{experiment.name}: {row.id}, {TRL}, seed {seed}")
        curves[TRL].append(theirs(spec, seed, results, _where(experiment, row)))
    for trainer, found in curves.items():
        for seed, rewards in zip(seeds, found, strict=True):
            for end, reward in _blocks(rewards, spec.evaluation.every):
                yield {
                    "experiment": experiment.name,
                    "row": row.id,
                    "trainer": trainer,
                    "seed": seed,
                    "round": end,
                    "updates": end * spec.steps_per_round,
                    "rollouts": end * spec.rollouts_per_round,
                    REWARD: reward,
                }


def _blocks(rewards: Tensor, every: int) -> Iterator[tuple[int, float]]:
    """Yield the rounds finished and the mean reward of each block of rounds; the last may be shorter."""
    for begin in range(0, len(rewards), every):
        block = rewards[begin : begin + every]
        yield begin + len(block), block.mean().item()
