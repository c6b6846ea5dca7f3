"""Every row at its own best learning rate: chosen on the tuning seeds alone, compared on the main seeds.

Scaling by a spread, leaving one out and the reductions also change the size of a step, so a comparison at one
learning rate compares step sizes as well. The best rate of a row is the one with the highest mean score over the
tuning seeds, failed runs at the worst; of equal ones the smallest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grpo_ablate.analysis.comparison import NAN, Rate

if TYPE_CHECKING:
    from grpo_ablate.analysis.scores import Scores
    from grpo_ablate.spec.resolve import Experiment, Row


def tried(experiment: Experiment, scores: Scores, row: str) -> tuple[Rate, ...]:
    """Return the mean score of a row at each learning rate, ascending, over the tuning seeds that have runs."""
    found = []
    for at_rate in _ascending(experiment, row):
        mean, failed = NAN, 0
        if scores.has_tuning(at_rate.id):
            measured = scores.of(at_rate, experiment.metric, tuning=True).final
            finite = measured[np.isfinite(measured)]
            mean = float(finite.mean()) if len(finite) else NAN
            failed = len(scores.failed(at_rate, tuning=True))
        found.append(Rate(at_rate.spec.optimizer.learning_rate, mean, failed))
    return tuple(found)


def best(experiment: Experiment, row: str, rates: tuple[Rate, ...]) -> Row | None:
    """Return the row at the best of ``rates``; None where none was measured."""
    known = [(rate.mean, place) for place, rate in enumerate(rates) if not np.isnan(rate.mean)]
    if not known:
        return None
    _, place = max(known, key=lambda pair: (pair[0], -pair[1]))
    return _ascending(experiment, row)[place]


def _ascending(experiment: Experiment, row: str) -> list[Row]:
    return sorted(experiment.tuned[row], key=lambda at_rate: at_rate.spec.optimizer.learning_rate)
