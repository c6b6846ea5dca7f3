"""A comparison of an invented table, with the plain formulas: paired differences and their t interval."""

from __future__ import annotations

import math

import pandas as pd
from scipy import stats

from grpo_ablate.analysis.comparison import (
    ClaimResult,
    Comparison,
    ControlResult,
    Difference,
    RowResult,
    Spent,
    Tests,
    as_json,
)
from grpo_ablate.analysis.summary import scores
from grpo_ablate.spec.resolve import Experiment

NAN = math.nan


def difference(one: pd.Series, other: pd.Series) -> Difference:
    """Return the paired differences of two rows' scores, indexed by seed."""
    values = (one - other).dropna()
    n, mean, sd = len(values), float(values.mean()), float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * sd / n**0.5 if n > 1 else NAN
    won = float((values > 0).mean() + 0.5 * (values == 0).mean())
    return Difference(
        tuple(values.index), tuple(values), mean, sd, mean - half, mean + half, NAN, NAN, won,
        int((values == 0).sum()), 3.0 * sd / n**0.5,
    )  # fmt: skip


def comparison(shown: Experiment, table: pd.DataFrame) -> Comparison:
    """Return the comparison of every row of an experiment that has runs."""
    present = set(table["row"])
    scored = {
        row.id: scores(
            table[table["row"] == row.id],
            [name for name in table.columns if name.startswith("eval/")],
            row.spec.evaluation.last,
        )
        for row in (*shown.rows, *shown.controls)
        if row.id in present
    }
    base = scored[shown.baseline][shown.metric]
    rows = []
    for row in shown.rows:
        if row.id not in present:
            continue
        own = scored[row.id][shown.metric]
        n, sd = len(own), float(own.std(ddof=1))
        half = float(stats.t.ppf(0.975, n - 1)) * sd / n**0.5 if n > 1 else NAN
        mean = float(own.mean())
        last = table[table["row"] == row.id].groupby("seed").tail(1)
        spent = Spent(*(float(last[name].mean()) for name in ("rollouts", "tokens", "updates", "seconds")))
        rows.append(
            RowResult(
                row.id, row.label, tuple(own.index), tuple(own), n, mean, sd, mean - half, mean + half, mean, (),
                None if row.id == shown.baseline else difference(own, base), None, (), NAN, "inconclusive", spent,
                0, None, (), row.spec.optimizer.learning_rate,
            )
        )  # fmt: skip
    claims = []
    verdicts = ("supported", "contradicted", "equivalent", "inconclusive")
    for index, claim in enumerate(shown.claims):
        test = claim.test
        metric = test.metric or shown.metric
        if not {test.row, test.than} <= present or metric not in scored[test.row]:
            continue
        found = difference(scored[test.row][metric], scored[test.than][metric])
        claims.append(
            ClaimResult(
                claim.id, claim.statement, claim.source, test.kind, test.row, test.than, metric,
                NAN if test.margin is None else test.margin, NAN if test.value is None else test.value,
                len(found.seeds), None if test.kind == "exact" else found, NAN, NAN, NAN,
                None if test.kind == "exact" else Tests(*[0.04] * 6), NAN if test.kind == "exact" else 0.04,
                verdicts[index % 4], "as invented", True,
            )
        )  # fmt: skip
    again = "control.a-a"
    return Comparison(
        shown.name, shown.question, shown.testbed.name, shown.baseline, shown.metric, shown.seeds,
        NAN if shown.margin is None else shown.margin, 0.05, len(claims), 6, shown.held, 0.0,
        (ControlResult("a-a", "the baseline again", True, "not distinguishable", 0.4, 0.001),),
        difference(scored[again][shown.metric], base) if again in scored else None,
        tuple(rows), tuple(claims), (), (), (), (),
    )  # fmt: skip


def write(results, shown: Experiment, table: pd.DataFrame) -> None:
    """Write the comparison beside the tidy table."""
    path = results / "tables" / f"{shown.name}-comparison.json"
    path.write_bytes(as_json(comparison(shown, table)))
