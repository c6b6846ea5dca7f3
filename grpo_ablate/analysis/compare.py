"""From the tidy table to what is known of an experiment: see `comparison` for the records it returns.

In this order: budgets are checked, controls are judged, rows are compared with the baseline on paired seeds,
claims are judged. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grpo_ablate.analysis.budgets import check_budgets
from grpo_ablate.analysis.claims import ALPHA, difference, judge
from grpo_ablate.analysis.comparison import (
    NAN,
    ClaimResult,
    Comparison,
    ControlResult,
    Difference,
    Failure,
    RowResult,
    Spent,
    TunedRow,
)
from grpo_ablate.analysis.controls import judge_controls
from grpo_ablate.analysis.crossed import effects
from grpo_ablate.analysis.notes import AFTER, AS_PLANNED, Changes
from grpo_ablate.analysis.scores import Scored, Scores
from grpo_ablate.analysis.sign_flip_bound import seeds_needed
from grpo_ablate.analysis.statistics import equivalence, mean_of
from grpo_ablate.analysis.tuning import best, tried
from grpo_ablate.analysis.words import number
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.spec.resolve import Experiment, Row


def compare(
    experiment: Experiment,
    runs: pd.DataFrame,
    exact_controls: Sequence[ControlResult] = (),
    changes: Changes = AS_PLANNED,
    partial: str = "",
) -> Comparison:
    """Return what the runs of a tidy table (see `collect.tidy`) say of an experiment.

    ``exact_controls`` are those of `exact_controls`, ``changes`` what was decided after a look at results;
    ``partial`` says how many runs there are where some are missing.

    Raises:
        UserError: the table has no runs of the baseline or no such metric, or a row cost more or less than the
            baseline.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and counted as such
        return _compared(experiment, runs, exact_controls, changes, partial)


def _compared(
    experiment: Experiment,
    runs: pd.DataFrame,
    exact_controls: Sequence[ControlResult],
    changes: Changes,
    partial: str,
) -> Comparison:
    scores = Scores(experiment, runs)
    if not scores.has(experiment.baseline):
        raise UserError(f"{experiment.path}: the baseline '{experiment.baseline}' has no runs to compare with.")
    if experiment.metric not in runs:
        raise UserError(f"{experiment.path}: metric: the runs have no metric '{experiment.metric}'.")
    present = [row for row in experiment.rows if scores.has(row.id)]
    check_budgets(experiment, {row.id: scores.spent(row) for row in present if scores.sound(row)})
    controls, noise = judge_controls(experiment, scores)
    late = dict(changes.claims)
    claims = tuple(
        replace(claim, decided=f"{late[claim.id]} {AFTER}") if claim.id in late else claim
        for claim in judge(experiment, scores)
    )
    family = len(experiment.claims)
    baseline = experiment.row(experiment.baseline)
    return Comparison(
        experiment=experiment.name,
        question=experiment.question,
        testbed=experiment.testbed.name,
        baseline=experiment.baseline,
        metric=experiment.metric,
        seeds=experiment.seeds,
        margin=NAN if experiment.margin is None else experiment.margin,
        alpha=ALPHA,
        family=family,
        sign_flip_needs=seeds_needed(family, ALPHA),
        held=experiment.held,
        floor=scores.floor(experiment.metric),
        controls=(*controls, *exact_controls),
        noise_floor=noise,
        rows=tuple(_row(experiment, scores, row, baseline, claims) for row in present),
        claims=claims,
        effects=effects(experiment, scores),
        tuned=_tuned(experiment, scores),
        failures=tuple(
            Failure(row.id, seed, reason)
            for row in (*present, *(control for control in experiment.controls if scores.has(control.id)))
            for seed, reason in scores.failed(row).items()
        ),
        notes=tuple(changes.sentences),
        partial=partial,
    )


def _row(
    experiment: Experiment, scores: Scores, row: Row, baseline: Row, claims: Sequence[ClaimResult]
) -> RowResult:
    own, other = scores.of(row, experiment.metric), scores.of(baseline, experiment.metric)
    finite = own.final[np.isfinite(own.final)]
    mean = mean_of(finite)
    family = max(1, len(experiment.claims))
    gap = area_gap = None
    if row.id != baseline.id:
        gap = difference(*own.paired(other), family)
        area_gap = difference(*own.paired(other, "area"), family)
    about = [claim for claim in claims if row.id in (claim.row, claim.than)]
    pair = {row.id, baseline.id}
    to_baseline = [
        claim for claim in about if {claim.row, claim.than} == pair and claim.metric == experiment.metric
    ]
    p = next((claim.p for claim in to_baseline if claim.kind in ("better", "worse")), NAN)
    identical = tuple(
        one.id
        for one in experiment.rows
        if one.hash != row.hash and scores.has(one.id) and scores.identical(row.id, one.id)
    )
    known = own.area[np.isfinite(own.area)]
    first = next(one for one in experiment.rows if one.hash == row.hash) if row in experiment.rows else row
    return RowResult(
        row=row.id,
        label=row.label,
        seeds=tuple(own.seeds.tolist()),
        scores=tuple(own.final.tolist()),
        n=mean.n,
        mean=mean.mean,
        sd=mean.sd,
        low=mean.low,
        high=mean.high,
        area=float(known.mean()) if len(known) else NAN,
        failed=tuple(scores.failed(row)),
        difference=gap,
        area_difference=area_gap,
        claims=tuple(claim.id for claim in about),
        p=p,
        verdict=_words(experiment, row, baseline, own, gap, to_baseline, identical),
        spent=Spent(**scores.spent(row)),
        stale=scores.stale(row),
        twin_of=None if first.id == row.id else first.id,
        identical_to=identical,
        learning_rate=row.spec.optimizer.learning_rate,
    )


def _words(
    experiment: Experiment,
    row: Row,
    baseline: Row,
    own: Scored,
    gap: Difference | None,
    claims: Sequence[ClaimResult],
    identical: Sequence[str],
) -> str:
    """Say how a row stands to the baseline: as the claims on the two say, else by the uncorrected interval."""
    if own.unmeasured.all():
        return "not measured"
    if gap is None:
        return "baseline"
    if row.hash == baseline.hash:
        return "twin of the baseline: the same run"
    if baseline.id in identical:
        return "bit-identical to the baseline"
    if len(gap.values) < 2:
        return "inconclusive: fewer than two pairs"
    if gap.ties == len(gap.values):
        return "equal scores on every seed"
    asked = [_claimed(claim, gap) for claim in claims if claim.kind != "exact"]
    if asked:
        return "; ".join(dict.fromkeys(asked))
    margin, established = experiment.margin, gap.low > 0 or gap.high < 0
    if margin and equivalence(gap.values, margin) <= ALPHA:
        return _equivalent(gap, established, margin)
    return _direction(gap) if established else _open(gap)


def _claimed(claim: ClaimResult, gap: Difference) -> str:
    """Say of a row what a claim on it and the baseline established, after Holm's correction."""
    if claim.kind in ("better", "worse"):
        established = claim.p <= ALPHA
        if claim.verdict == "equivalent":
            return _equivalent(gap, established, claim.margin)
        return _direction(gap) if established else _open(gap)
    if claim.kind == "ratio":
        where = f"±{number(claim.margin)} of the ratio {number(claim.value)}"
        words = {"supported": f"within {where}", "contradicted": f"beyond {where}"}
        return words.get(claim.verdict, f"inconclusive: whether within {where}")
    if claim.verdict == "supported":
        return f"equivalent within ±{number(claim.margin)}"
    if claim.verdict == "contradicted":
        return f"{_direction(gap)} by more than {number(claim.margin)}"
    return f"inconclusive: whether within ±{number(claim.margin)}"


def _direction(gap: Difference) -> str:
    return "higher" if gap.mean > 0 else "lower"


def _equivalent(gap: Difference, established: bool, margin: float) -> str:
    return f"{f'{_direction(gap)}, but ' if established else ''}equivalent within ±{number(margin)}"


def _open(gap: Difference) -> str:
    return f"inconclusive: {number(gap.detectable)} would have been seen"


def _tuned(experiment: Experiment, scores: Scores) -> tuple[TunedRow, ...]:
    """Return every row at its best learning rate, compared with the baseline at the baseline's."""
    found = {}
    for name in experiment.tuned:
        rates = tried(experiment, scores, name)
        chosen = best(experiment, name, rates)
        if chosen is not None and scores.has(chosen.id):
            found[name] = (rates, chosen)
    if experiment.baseline not in found:
        return ()
    baseline = found[experiment.baseline][1]
    return tuple(
        TunedRow(
            row=name,
            rates=rates,
            best=chosen.spec.optimizer.learning_rate,
            at_edge=chosen.spec.optimizer.learning_rate in (rates[0].learning_rate, rates[-1].learning_rate),
            result=_row(experiment, scores, chosen, baseline, ()),
        )
        for name, (rates, chosen) in found.items()
    )
