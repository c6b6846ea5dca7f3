"""From the tidy table to a summary per row and metric: mean over seeds, spread, 95 % interval, costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from grpo_ablate.analysis.alarms import above
from grpo_ablate.analysis.failures import failure_notes
from grpo_ablate.analysis.scores import COUNTERS, Scores
from grpo_ablate.analysis.tables import DIALECTS, render

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row

COLUMNS = (
    "experiment", "row", "label", "metric", "n", "mean", "sd", "ci_low", "ci_high", *COUNTERS, "failed", "stale",
    "partial",
)  # fmt: skip


class Estimate(NamedTuple):
    """A mean over seeds with its sample standard deviation (ddof 1) and 95 % t interval."""

    n: int
    mean: float
    sd: float
    low: float
    high: float


def estimate(values: ArrayLike) -> Estimate:
    """Return the mean of the finite values, with spread and interval NaN where fewer than two are left.

    The interval is mean -+ t(0.975, n - 1) sd / sqrt(n), Student's.

    >>> [round(number, 4) for number in estimate([1.0, 2.0, 3.0])]
    [3, 2.0, 1.0, -0.4841, 4.4841]
    >>> estimate([1.0, float("nan")]).n
    1
    """
    from scipy.stats import t

    every = np.asarray(values, dtype=np.float64)
    finite = every[np.isfinite(every)]
    if not len(finite):
        return Estimate(0, *[float("nan")] * 4)
    mean = float(finite.mean())
    if len(finite) == 1:
        return Estimate(1, mean, *[float("nan")] * 3)
    sd = float(finite.std(ddof=1))
    half = float(t.ppf(0.975, len(finite) - 1)) * sd / len(finite) ** 0.5
    return Estimate(len(finite), mean, sd, mean - half, mean + half)


def scores(lines: pd.DataFrame, metrics: Sequence[str], last: int) -> pd.DataFrame:
    """Return one number per seed (index) and metric (columns) from the lines of one row.

    An ``eval/*`` metric's is the mean of the last ``last`` evaluations; a ``train/*`` metric's is the last
    line's, which covers the rounds since the line before it.
    """
    ordered = lines.sort_values(["seed", "round"], kind="stable").groupby("seed", sort=True)
    tails = ordered.tail(last).groupby("seed", sort=True)
    evaluated = [name for name in metrics if name.startswith("eval/")]
    trained = [name for name in metrics if name.startswith("train/")]
    means = tails[evaluated].mean(skipna=False)
    return pd.concat([means, ordered.tail(1).set_index("seed")[trained]], axis=1)[list(metrics)]


def summarise(
    experiment: Experiment, found: Scores, metrics: Sequence[str] | None = None, *, partial: str = ""
) -> pd.DataFrame:
    """Return the summary in long form, one line per row (in the experiment's order) and metric.

    Scores are those of the comparison: a failed run (diverged or collapsed, by the experiment's own metric) has
    the worst value seen of a reward or accuracy, and is left out of other metrics (`scores`). ``failed`` counts
    the seeds, ``n`` those with a score, over which mean, sd (ddof 1) and interval are taken. Rollouts, tokens,
    updates and seconds are means per seed, of the seeds that did not fail; of all if none is left. ``partial``
    says on every line how many runs there are where some are missing. A metric that does not apply to a row has
    no line. ``metrics``: those wanted; default: all.
    """
    rows: list[tuple[object, ...]] = []
    for row in experiment.rows:
        if not found.has(row.id):
            continue
        lines = found.lines(row.id)
        chosen = [name for name in metrics or found.metrics if name in lines]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and counted as such
            scored = _scored(found, row, chosen)
        costs = list(found.spent(row).values())
        failed, stale = len(found.failed(row)), found.stale(row)
        for name in chosen:
            applies = name.startswith("eval/") or scored[name].notna().any()
            if (applies and not lines[name].isna().all()) or name == experiment.metric:
                numbers = estimate(scored[name])
                rows.append((experiment.name, row.id, row.label, name, *numbers, *costs, failed, stale, partial))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _scored(found: Scores, row: Row, metrics: Sequence[str]) -> pd.DataFrame:
    """Return the scores of a row by seed and metric: at once where no run failed, else as a comparison does."""
    own = found.experiment.metric
    one_by_one = metrics if found.failed(row) else [name for name in metrics if name == own]
    scored = scores(found.lines(row.id), metrics, row.spec.evaluation.last)
    return scored.assign(**{name: found.of(row, name).final for name in one_by_one})


def summary_tables(
    experiment: Experiment,
    found: Scores,
    *,
    heading: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, bytes]:
    """Return the printed tables of the experiment's own metric by their endings, ``.md``, ``.tex`` and ``.typ``.

    ``heading`` stands above every table: what a failed control says, and that runs are missing. ``notes`` stand
    below: what was decided after a look at results.
    """
    own = summarise(experiment, found, [experiment.metric])
    failed = {row.id: tuple(found.failed(row)) for row in experiment.rows if found.has(row.id)}
    below = [*failure_notes(experiment.metric, found.floor(experiment.metric), failed), *notes]
    return {
        f".{dialect}": (
            above(heading, dialect) + render(own, dialect, baseline=experiment.baseline, notes=below)
        ).encode()
        for dialect in DIALECTS
    }


def summary_csv(summary: pd.DataFrame) -> bytes:
    """Return what `summarise` found as CSV."""
    return summary.to_csv(index=False, lineterminator="\n").encode()
