"""Sets our results beside a published table and judges whether they agree.

The published numbers are means and spreads over the seeds of one unknown random stream, printed to a
few digits. Agreement is therefore a statistical statement, and this module says which:

* a mean agrees when it lies within four combined standard errors plus half a printed digit;
* a spread agrees when it lies within four standard errors of a sample standard deviation;
* an upper bound agrees when ours lies below it;
* the gap between two rows that should coincide stays below ``GAP_BOUND`` at every evaluation of every seed;
* the quality before training is the printed one exactly.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from grpo_ablate.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.spec.resolve import Experiment
    from grpo_ablate.spec.schema import Spec

STANDARD_ERRORS = 4.0
# The published bound, 9e-9, is that of one random stream; twelve streams gave 8.4e-9 to 8.9e-9.
GAP_BOUND = 1e-8
# Four qualities averaged over four prompts: a few roundings of float64 are allowed, nothing else.
EXACT = 1e-15
# From this many times the published seeds on, our mean counts as the population's, without error.
POPULATION = 100

Statement = Literal["final", "initial", "gap"]
Quantity = Literal["mean", "spread", "initial", "gap"]


@dataclass(frozen=True)
class Published:
    """One published number: a final quality with its spread, an initial quality, or a gap between two rows."""

    statement: Statement
    row: str  # empty: every row (initial)
    other: str  # gap only: the row compared with
    value: float
    sd: float  # NaN where none is published
    sd_is_bound: bool  # the spread was printed as "< sd"
    digits: int  # decimals printed
    seeds: int
    source: str

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed decimal.

        >>> Published("final", "a", "", .9921, .0005, False, 4, 40, "").half_digit
        5e-05
        """
        return 0.5 * 10.0**-self.digits


@dataclass(frozen=True)
class Verdict:
    """Ours beside theirs for one quantity of one row; ``holds`` says whether they agree."""

    row: str
    quantity: Quantity
    seeds: int
    ours: float
    published: float
    bound: bool  # the published number is an upper bound
    tolerance: float  # of |difference|; for a bound: the largest value allowed
    holds: bool

    @property
    def difference(self) -> float:
        """Ours minus theirs."""
        return self.ours - self.published


def read(path: Path) -> list[Published]:
    """Read a table of published numbers.

    Raises:
        UserError: the file is missing or a line is not of the expected form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: the published table cannot be read: {error.strerror}.") from None
    lines = []
    for number, line in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            lines.append(_published(line))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: line {number} is not a published number: {error}.") from None
    return lines


def _published(line: dict[str, str]) -> Published:
    statements: dict[str, Statement] = {"final": "final", "initial": "initial", "gap": "gap"}
    return Published(
        statement=statements[line["statement"]],
        row=line["row"],
        other=line["other"],
        value=float(line["value"]),
        sd=float(line["sd"] or "nan"),
        sd_is_bound={"true": True, "false": False}[line["sd_is_bound"]],
        digits=int(line["digits"]),
        seeds=int(line["seeds"]),
        source=line["source"],
    )


def mean_tolerance(published: Published, seeds: int) -> float:
    """Return how far the mean of ``seeds`` runs may lie from the published one.

    Four standard errors of the difference of two means of equal spread, plus half a printed digit. Ours is
    taken as exact from ``POPULATION`` times the published seeds on.

    >>> p = Published("final", "r", "", .9323, .0016, False, 4, 40, "")
    >>> abs(mean_tolerance(p, 40) - (4 * 2**.5 * .0016 / 40**.5 + .00005)) < 1e-15
    True
    >>> abs(mean_tolerance(p, 4000) - (4 * .0016 / 40**.5 + .00005)) < 1e-15
    True
    """
    own = 0.0 if seeds >= POPULATION * published.seeds else 1 / seeds
    return STANDARD_ERRORS * published.sd * math.sqrt(1 / published.seeds + own) + published.half_digit


def spread_tolerance(published: Published) -> float:
    """Return how far a sample standard deviation may lie from the published one: four of its standard errors.

    >>> p = Published("final", "r", "", .9323, .0016, False, 4, 40, "")
    >>> abs(spread_tolerance(p) - 4 * .0016 / 78**.5) < 1e-15
    True
    """
    return STANDARD_ERRORS * published.sd / math.sqrt(2 * (published.seeds - 1))


def judge(curves: Mapping[str, np.ndarray], published: Iterable[Published]) -> list[Verdict]:
    """Compare our learning curves with the published numbers of the rows that we have.

    Args:
        curves: per row id, the quality of every seed at every evaluation, ``[seeds, evaluations]`` float64, from
            the untrained policy to the final one.
        published: the published numbers; those of rows that ``curves`` lacks are passed over.
    """
    verdicts: list[Verdict] = []
    for line in published:
        if not {line.row, line.other} <= {*curves, ""}:
            continue
        if line.statement == "final":
            verdicts += _final(line, curves[line.row][:, -1])
        elif line.statement == "initial":
            verdicts.append(_initial(line, curves.values()))
        else:
            verdicts.append(_gap(line, curves[line.row], curves[line.other]))
    return verdicts


def _final(line: Published, ours: np.ndarray) -> list[Verdict]:
    mean, seeds, allowed = float(ours.mean()), len(ours), mean_tolerance(line, len(ours))
    # Decimal numbers such as .9323 and .0016 are not exact in binary: a rounding is no disagreement.
    holds = abs(mean - line.value) <= allowed + EXACT
    verdicts = [Verdict(line.row, "mean", seeds, mean, line.value, False, allowed, holds)]
    if seeds < 2 or math.isnan(line.sd):
        return verdicts
    sd = float(ours.std(ddof=1))
    if line.sd_is_bound:
        verdicts.append(Verdict(line.row, "spread", seeds, sd, line.sd, True, line.sd, sd < line.sd))
    else:
        allowed = spread_tolerance(line)
        holds = abs(sd - line.sd) <= allowed + EXACT
        verdicts.append(Verdict(line.row, "spread", seeds, sd, line.sd, False, allowed, holds))
    return verdicts


def _initial(line: Published, curves: Iterable[np.ndarray]) -> Verdict:
    """Judge, of all rows and seeds, the untrained policy that lies furthest from the printed quality."""
    first = np.concatenate([curve[:, 0] for curve in curves])
    worst = float(first[np.abs(first - line.value).argmax()])
    holds = abs(worst - line.value) <= EXACT
    return Verdict("every row", "initial", len(first), worst, line.value, False, EXACT, holds)


def _gap(line: Published, one: np.ndarray, other: np.ndarray) -> Verdict:
    largest = float(np.abs(one - other).max())
    return Verdict(line.row, "gap", len(one), largest, line.value, True, GAP_BOUND, largest < GAP_BOUND)


def curves_of(runs: pd.DataFrame, metric: str = "eval/reward") -> dict[str, np.ndarray]:
    """Return per row the metric of every seed at every evaluation, ``[seeds, evaluations]``, from a tidy table."""
    table = runs.dropna(subset=[metric])
    return {
        str(row): lines.pivot(index="seed", columns="round", values=metric).to_numpy(dtype=np.float64)
        for row, lines in table.groupby("row", sort=False)
    }


def published_of(experiment: Experiment) -> list[Published]:
    """Return the published numbers that an experiment names.

    Raises:
        UserError: the experiment names no table, or the table speaks of a row that the experiment lacks.
    """
    if experiment.published is None:
        raise UserError(
            f"{experiment.path}: the key 'published' is missing; it names a table of published values."
        )
    lines = read(experiment.published)
    rows = [row.id for row in experiment.rows]
    for line in lines:
        for name in filter(None, (line.row, line.other)):
            if name not in rows:
                offer = nearest(name, rows)
                raise UserError(f"{experiment.published}: {experiment.name} has no row '{name}'; {offer}")
    return lines


@dataclass(frozen=True)
class Report:
    """The verdicts of one reproduction and how it was made."""

    experiment: str
    seeds: int
    random_key: int
    verdicts: tuple[Verdict, ...]

    @property
    def agrees(self) -> bool:
        """Whether something was compared and every comparison agrees."""
        return bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts)

    @property
    def text(self) -> str:
        """The report as lines to print."""
        head = f"{self.experiment}: {self.seeds} seeds, random key {self.random_key}, beside the published table"
        count, failed = len(self.verdicts), sum(not verdict.holds for verdict in self.verdicts)
        end = f"all {count} comparisons agree" if self.agrees else f"{failed} of {count} comparisons disagree"
        return "\n".join([head, *table(self.verdicts), end])


BLOCK = 500  # seeds trained side by side: enough to be quick, few enough for a small memory


def run_published(path: Path, seeds: int | None = None, random_key: int | None = None) -> Report:
    """Train the published rows of an experiment anew, in memory, and judge them.

    Every update is evaluated, whatever the testbed says: the published gap is over all steps.

    Args:
        path: the experiment's file.
        seeds: how many, from 0 on; default: the experiment's own number.
        random_key: the key of all random numbers; default: the testbed's.
    """
    from grpo_ablate.spec.identity import replace
    from grpo_ablate.spec.resolve import load_experiment

    if seeds is not None and not 1 <= seeds <= 2**32:
        raise UserError(f"--seeds {seeds}: expected 1 to {2**32}.")
    if random_key is not None and not 0 <= random_key < 65536:
        raise UserError(f"--random-key {random_key}: expected 0 to 65535.")
    experiment = load_experiment(path)
    lines = published_of(experiment)
    count = experiment.seeds if seeds is None else seeds
    curves: dict[str, np.ndarray] = {}
    keys = set()
    for row in dict.fromkeys(name for line in lines for name in (line.row, line.other) if name):
        spec = experiment.row(row).effective
        key = spec.sampling.random_key if random_key is None else random_key
        keys.add(key)
        changed = replace(spec, {"sampling": {"random_key": key}, "evaluation": {"every": 1}})
        curves[row] = learning_curves(changed, count, experiment.metric)
    return Report(experiment.name, count, keys.pop(), tuple(judge(curves, lines)))


def learning_curves(spec: Spec, seeds: int, metric: str) -> np.ndarray:
    """Train a spec on seeds 0 to ``seeds`` - 1 in memory; return the metric, ``[seeds, evaluations]`` float64."""
    import torch

    from grpo_ablate.runs.train import make_loop

    torch.set_num_threads(1)
    blocks = []
    for first in range(0, seeds, BLOCK):
        loop = make_loop(spec, range(first, min(first + BLOCK, seeds)))
        found = [loop.start().values[metric]]
        while not loop.finished:
            line = loop.advance()
            if line is not None:
                found.append(line.values[metric])
        blocks.append(torch.stack(found, dim=1).numpy())
    return np.concatenate(blocks)


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the verdicts as lines of text, one a comparison, columns aligned."""
    cells = [("row", "quantity", "ours", "published", "difference", "allowed", "")]
    for verdict in verdicts:
        cells.append(
            (
                verdict.row,
                verdict.quantity,
                _number(verdict.ours),
                ("<" if verdict.bound else "") + _number(verdict.published),
                "" if verdict.bound else f"{verdict.difference:+.6f}",
                ("<" if verdict.bound else "") + _number(verdict.tolerance),
                "agrees" if verdict.holds else "DISAGREES",
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    ]


def _number(value: float) -> str:
    return f"{value:.6f}" if value == 0 or abs(value) >= 1e-6 else f"{value:.2e}"
