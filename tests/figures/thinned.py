"""The shipped exact experiments over a few of their points, their tables, and invented propositions."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pandas as pd
from invented import ROOT

from grpo_ablate.exact.tabulate import write_table
from grpo_ablate.spec.exact_files import ExactExperiment, load_exact_experiments

# What the paper's text tells of: proposition, case, quantity, value.
FINDINGS = (
    ("group-mean", "mean only, G = 2", "largest |E update - 0.5 gradient|", 2e-16),
    ("population-limit", "two prompts, logits w1 and w1 + w2, w = (-1, 1/2)", "their cosine", 0.9995),
    ("process", "token tree, sequence-sum, G = 2", "cosine of process and outcome updates", 0.96),
    *(
        ("dynamics", f"{row}, G = {size}, from p = 0.01, learning rate 1", "updates to p >= 0.9", updates)
        for row, size, updates in (
            ("group-std", 2, 62.0), ("group-std", 8, 26.0), ("leave-one-out", 8, 62.0), ("mean only", 8, 71.0),
        )
    ),
    *(
        (
            "dynamics",
            f"{row}, G = 8 beside G = 2, from exact KL with beta = 0.1, p = pi_ref = 0.01, to 1000 rollouts",
            "G = 8 overtakes at rollout", rollouts,
        )
        for row, rollouts in (("group-std", 296.0), ("mean only", 608.0))
    ),
)  # fmt: skip


@cache
def experiments() -> dict[str, ExactExperiment]:
    """Return every shipped exact experiment by name, over at most nine values of whatever it varies."""
    found = {}
    for experiment in load_exact_experiments(ROOT / "experiments"):
        vary = {key: _few(values) for key, values in experiment.vary.items()}
        iterate = experiment.iterate and experiment.iterate.model_copy(update={"steps": 24})
        found[experiment.name] = dataclasses.replace(experiment, vary=vary, iterate=iterate)
    return found


def _few(values: tuple[float | str, ...]) -> tuple[float | str, ...]:
    """Keep the ends, the middle, what lies on the way, and 0.1 and 1 where they are varied."""
    if len(values) <= 12:
        return values
    kept = {0, len(values) - 1, *range(0, len(values), len(values) // 6)}
    return tuple(value for index, value in enumerate(values) if index in kept or value in (0.1, 0.5, 1.0))


def findings() -> pd.DataFrame:
    """Return a table of propositions that holds what the text tells of and little else."""
    return pd.DataFrame(
        [
            {
                "proposition": name,
                "title": name.replace("-", " ").capitalize(),
                "case": case,
                "quantity": quantity,
                "value": repr(value),
                "relation": "equals",
                "difference": 1e-15 * number,
                "tolerance": 1e-12,
                "verdict": "holds",
            }
            for number, (name, case, quantity, value) in enumerate(FINDINGS, 1)
        ]
    )


def write(results: Path) -> None:
    """Write the tables of every exact experiment, enumerated, and the invented propositions."""
    for experiment in experiments().values():
        write_table(experiment, results)
    findings().to_csv(results / "tables" / "propositions.csv", index=False)
