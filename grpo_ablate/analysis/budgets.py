"""Rows are compared at equal cost, or not at all: which quantity is held, and how far off still counts as equal.

``held: rollouts`` and ``updates``: less than one round's worth, since a budget is spent in whole rounds, and rows
that resample, or whose groups are larger, end with different remainders. ``tokens`` and ``seconds`` depend on
what the policy says and on what else the machine does: within ``RELATIVE`` of the baseline. Failed runs stop
early and are left out of the account (not of the scores), and so is a row whose every run failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row

RELATIVE = {"tokens": 0.05, "seconds": 0.25}


def tolerance(held: str, row: Row, baseline: Row, spent: float) -> float:
    """Return by how much a row may differ from a baseline that ``spent`` so much of the held quantity."""
    if held == "rollouts":
        return max(row.spec.rollouts_per_round, baseline.spec.rollouts_per_round)
    if held == "updates":
        return max(row.spec.steps_per_round, baseline.spec.steps_per_round)
    return RELATIVE[held] * spent


def check_budgets(experiment: Experiment, spent: Mapping[str, Mapping[str, float]]) -> None:
    """Raise UserError where a row of ``spent`` (row -> quantity -> mean a seed) cost other than the baseline did.

    The sentence names file, row and quantity, and what to do.
    """
    held, baseline = experiment.held, experiment.row(experiment.baseline)
    if baseline.id not in spent:
        return
    reference = spent[baseline.id][held]
    for row in experiment.rows:
        if row.id not in spent:
            continue
        own = spent[row.id][held]
        allowed = tolerance(held, row, baseline, reference)
        exact = held in ("rollouts", "updates")
        if abs(own - reference) >= allowed if exact else abs(own - reference) > allowed:
            others = ", ".join(name for name in ("rollouts", "tokens", "updates", "seconds") if name != held)
            raise UserError(
                f"{experiment.path}: row '{row.id}' spent {own:,.6g} {held} a seed, the baseline '{baseline.id}' "
                f"{reference:,.6g}: they are not compared at unequal cost; give them one budget, or name another "
                f"quantity to hold as 'held' ({others})."
            )
