"""From the tidy table to a summary per row and metric: mean over seeds, spread, 95 % interval, costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from grpo_ablate.analysis.alarms import above
from grpo_ablate.analysis.tables import DIALECTS, render

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

COSTS = ("rollouts", "tokens", "updates", "seconds")
COLUMNS = (
    "experiment", "row", "label", "metric", "n", "mean", "sd", "ci_low", "ci_high", *COSTS, "diverged", "stale",
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


def summarise(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the summary in long form, one line per row (in the experiment's order) and metric.

    ``n`` counts the seeds with a finite score, over which mean, sd (ddof 1) and interval are taken;
    ``diverged`` the seeds whose score of the experiment's own metric is not finite. Rollouts, tokens, updates
    and seconds are means per seed, of all seeds. A metric that does not apply to a row has no line.
    """
    metrics = [name for name in runs.columns if name.startswith(("eval/", "train/"))]
    rows: list[tuple[object, ...]] = []
    for row in experiment.rows:
        lines = runs[runs["row"] == row.id]
        if lines.empty:
            continue
        scored = scores(lines, metrics, row.spec.evaluation.last)
        final = lines.sort_values(["seed", "round"], kind="stable").groupby("seed").tail(1)
        costs = [float(final[name].mean()) for name in COSTS]
        own = scored.get(experiment.metric)
        diverged = 0 if own is None else int((~np.isfinite(own)).sum())
        stale = int(final["stale"].sum())
        for name in metrics:
            applies = name.startswith("eval/") or scored[name].notna().any()
            if (applies and not lines[name].isna().all()) or name == experiment.metric:
                numbers = estimate(scored[name])
                rows.append((experiment.name, row.id, row.label, name, *numbers, *costs, diverged, stale))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_summary(
    experiment: Experiment, summary: pd.DataFrame, folder: Path, heading: Sequence[str] = ()
) -> list[Path]:
    """Write the summary as CSV, and the table of the experiment's own metric in every dialect.

    ``heading`` stands above every table: what a failed control says.
    """
    files = [folder / f"{experiment.name}.csv"]
    summary.to_csv(files[0], index=False, lineterminator="\n")
    own = summary[summary["metric"] == experiment.metric]
    for dialect in DIALECTS:
        files.append(folder / f"{experiment.name}.{dialect}")
        text = above(heading, dialect) + render(own, dialect, baseline=experiment.baseline)
        files[-1].write_text(text, encoding="utf-8")
    return files
