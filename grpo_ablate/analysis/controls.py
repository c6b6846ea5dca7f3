"""Controls: what must come out as known, judged before any claim of an experiment.

Of every experiment's own runs: the baseline again under other random numbers (A/A) is not distinguishable from it,
and training on a random reward does not improve the policy. Both are judged at ``LEVEL``: at .05 a sound harness
would fail one time in twenty for ever. `exact_controls` holds those that are no matter of chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grpo_ablate.analysis.claims import difference
from grpo_ablate.analysis.comparison import NAN, ControlResult, Difference
from grpo_ablate.analysis.statistics import mean_of, one_sided
from grpo_ablate.analysis.words import estimate, p_value

if TYPE_CHECKING:
    from grpo_ablate.analysis.scores import Scores
    from grpo_ablate.spec.resolve import Experiment, Row

LEVEL = 0.001
A_A = "control.a-a"  # the other control of an experiment is the random reward


def judge_controls(experiment: Experiment, scores: Scores) -> tuple[tuple[ControlResult, ...], Difference | None]:
    """Return the controls of an experiment's own runs, and the noise floor: the A/A control minus the baseline."""
    found, floor = [], None
    for row in experiment.controls:
        if not scores.has(row.id) or not scores.has(experiment.baseline):
            found.append(ControlResult(row.id, row.label, None, "not trained yet", NAN, LEVEL))
        elif row.id == A_A:
            control, floor = _same_row_twice(experiment, row, scores)
            found.append(control)
        else:
            found.append(_random_reward(experiment, row, scores))
    return tuple(found), floor


def _same_row_twice(experiment: Experiment, row: Row, scores: Scores) -> tuple[ControlResult, Difference]:
    again, once = (scores.of(one, experiment.metric) for one in (row, experiment.row(experiment.baseline)))
    seeds, own, other = again.paired(once)
    gap = difference(seeds, own, other, max(1, len(experiment.claims)))
    if len(own) < 2:
        return ControlResult(row.id, row.label, None, "one seed tells nothing of chance", NAN, LEVEL), gap
    p = mean_of(gap.values).p
    words = f"differs by {estimate(gap.mean, gap.low, gap.high, signed=True)}, p {p_value(p)}"
    return ControlResult(row.id, row.label, p >= LEVEL, words, p, LEVEL), gap


def _random_reward(experiment: Experiment, row: Row, scores: Scores) -> ControlResult:
    runs = scores.of(row, experiment.metric)
    if not scores.sound(row):
        return ControlResult(row.id, row.label, None, "every run failed", NAN, LEVEL)
    gain = runs.final - runs.first
    gain = gain[~np.isnan(gain)]  # a metric that the untrained policy has no number for tells nothing
    if len(gain) < 2:
        return ControlResult(row.id, row.label, None, "no gain could be measured on two seeds", NAN, LEVEL)
    p, found = one_sided(gain), mean_of(gain)
    words = (
        f"{estimate(found.mean, found.low, found.high, signed=True)} over the untrained policy, "
        f"p of an improvement {p_value(p)}"
    )
    return ControlResult(row.id, row.label, p >= LEVEL, words, p, LEVEL)
