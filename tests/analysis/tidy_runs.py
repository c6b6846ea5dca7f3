"""Tidy tables of runs that nobody trained: every row's score on every seed is what a test says."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpo_ablate.spec.resolve import Experiment, load_experiment

START = 0.4  # what the untrained policy earns
ROLLOUTS = 64
ROWS = """
question: Does it matter?
testbed: tiny
baseline: base
seeds: 8
rows:
  base: {}
  other: {advantage: {scale: none}}
  third: {advantage: {ddof: 1}}
"""
NUMBERS = np.random.default_rng(0)
BASE = (0.5 + NUMBERS.normal(0, 0.01, 8)).round(4).tolist()  # scores of eight seeds
NOISE = NUMBERS.normal(0, 0.01, 8)
NOISE -= NOISE.mean()  # so that a stated amount is the mean difference


def written(folder: Path, text: str, testbed: str) -> Experiment:
    """Load an experiment called ``small`` on a testbed called ``tiny``."""
    (folder / "experiments" / "testbeds").mkdir(parents=True, exist_ok=True)
    (folder / "experiments" / "testbeds" / "tiny.yaml").write_text(textwrap.dedent(testbed))
    path = folder / "experiments" / "small.yaml"
    path.write_text(textwrap.dedent(text))
    return load_experiment(path)


def above(amount: float) -> list[float]:
    """Scores whose mean is that much above that of ``BASE``."""
    return (np.array(BASE) + NOISE + amount).tolist()


def lines(
    row: str,
    scores: Sequence[float],
    *,
    role: str = "row",
    first_seed: int = 0,
    parameters: str = "",
    rollouts: float = ROLLOUTS,
    more: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Return three evaluations a seed: the start, and twice the seed's score (the tiny testbed averages two)."""
    found = []
    for place, score in enumerate(scores):
        for number in range(3):
            found.append(
                {
                    "experiment": "small", "row": row, "role": role, "testbed": "tiny", "hash": row,
                    "seed": first_seed + place, "round": 4 * number, "updates": 4 * number,
                    "rollouts": rollouts * number / 2, "tokens": rollouts * number / 2, "seconds": 0.5 * number,
                    "stale": False, "diverged": False, "parameters": parameters or f"of {row}",
                    "eval/reward": score if number else START,
                    **{name: values[place] for name, values in (more or {}).items()},
                }
            )  # fmt: skip
    return found


def table(*rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Join the lines of several rows."""
    return pd.DataFrame([line for row in rows for line in row])


def with_claims(experiment: Experiment, *claims: Mapping[str, Any], **changes: Any) -> Experiment:
    """Return the experiment with claims given by the keys of their test."""
    from grpo_ablate.spec.files import Claim

    stated = tuple(
        Claim.model_validate(
            {"id": f"claim-{place}", "statement": "It holds", "source": "nobody", "test": dict(test)}
        )
        for place, test in enumerate(claims)
    )
    return replace(experiment, claims=stated, **changes)
