"""How many of an experiment's runs a tidy table holds: what every table of an unfinished grid says."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from grpo_ablate.spec.cells import measured_runs

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.spec.resolve import Experiment


def missing_runs(experiment: Experiment, runs: pd.DataFrame) -> str:
    """Return a sentence where runs of the experiment are not in its tidy table, else nothing."""
    return partial_words(experiment, set(zip(runs["hash"].tolist(), runs["seed"].tolist(), strict=True)))


def partial_words(experiment: Experiment, found: Container[tuple[str, int]]) -> str:
    """Return a sentence where runs of the experiment, (hash, seed), are not among those found, else nothing."""
    wanted = {(row.hash, seed) for row, seed in measured_runs(experiment)}
    there = sum(run in found for run in wanted)
    return "" if there == len(wanted) else f"Partial: {there} of {len(wanted)} runs."
