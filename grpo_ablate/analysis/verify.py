"""Does this machine reproduce a published run? Checksums of every record first, then means within their intervals.

Between the two, every table that exists is made anew from the records: one that differs is named (`derived`).

A cell is a row and a metric. Two means agree when they differ by no more than the two-sample t interval allows
(Welch: standard errors combined, degrees of freedom by Welch and Satterthwaite), at a level of `LEVEL` for all
cells together, divided evenly among them (Bonferroni): an honest rerun on other seeds fails once in a hundred
times. Runs on the same seeds are nearer than that, and are not held to it: published tables hold no seeds. Where
a mean has no spread on both sides, the means must be equal up to rounding.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.planned import history
from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record
from grpo_ablate.runs.start_files import found_start, start_parameters
from grpo_ablate.spec.cells import Cell, cells
from grpo_ablate.spec.warmstart import starts

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.spec.exact_files import ExactExperiment
    from grpo_ablate.spec.resolve import Experiment

LEVEL = 0.01  # of all cells together
ROUNDING = 1e-9  # relative
STATES = {
    "agrees": "within the interval",
    "differs": "outside the interval",
    "other spec": "the row trains otherwise than the published one",
    "missing": "published, and not trained here",
    "unpublished": "trained here, and not published",
}


@dataclass(frozen=True)
class Sample:
    """Mean and standard deviation (ddof 1) over ``n`` seeds."""

    n: int
    mean: float
    sd: float


@dataclass(frozen=True)
class CellVerdict:
    """One row and metric here and there. ``allowed`` is the largest difference that still agrees."""

    experiment: str
    row: str
    metric: str
    state: str
    here: Sample | None
    there: Sample | None
    difference: float
    allowed: float


@dataclass(frozen=True)
class Verification:
    """Every cell, the records that do not match their checksums, and the experiments without runs here."""

    cells: tuple[CellVerdict, ...]
    faults: tuple[str, ...]
    untrained: tuple[str, ...]
    damaged: tuple[str, ...]  # experiments with such records; they are not compared
    altered: tuple[str, ...]  # a sentence for every table that is not what its records give

    @property
    def holds(self) -> bool:
        """Whether no record is damaged, no table altered, and no cell differs or is of another spec."""
        differing = any(cell.state in ("differs", "other spec") for cell in self.cells)
        return not self.faults and not self.altered and not differing


def verify(
    experiments: Sequence[Experiment],
    results: Path,
    references: Mapping[str, bytes],
    exact: Sequence[ExactExperiment] | None = None,
) -> Verification:
    """Compare the records in ``results`` with reference tables (experiment name -> CSV; see `reference`).

    Experiments without a reference are only checked for damage and altered tables. ``exact``: the exact
    experiments of a project all of whose ``experiments`` are given: then their tables, and those over all
    experiments, are checked as well.

    Raises:
        UserError: a reference is no such table.
    """
    from grpo_ablate.analysis import derived
    from grpo_ablate.analysis.collect import tidy
    from grpo_ablate.analysis.reference import read_reference, reference_of

    faults: list[str] = []
    changed = derived.altered_controls(results)
    untrained, broken, pairs, comparisons = [], [], [], []
    for experiment in experiments:
        found = damaged(experiment, results)
        faults += [fault for fault in found if fault not in faults]  # experiments may share a record
        trained = {cell.hash for cell in cells([experiment]) if has_record(results / cell.folder)}
        runs = tidy(experiment, results, partial=True) if trained and not found else None
        if not found:
            given = None if runs is None else derived.derive(experiment, runs, results)
            changed += derived.altered(experiment, given, results)
            comparisons.append(None if given is None else given.comparison)
        if experiment.name not in references:
            continue
        there = read_reference(references[experiment.name], f"{experiment.name}.csv")
        if not trained & {row.hash for row in experiment.rows}:
            untrained.append(experiment.name)
        elif runs is None:
            broken.append(experiment.name)
        else:
            pairs.append((experiment.name, reference_of(experiment, runs.to_pandas()), there))
    if exact is not None:
        changed += derived.altered_exact(exact, results)
        if len(comparisons) == len(experiments):  # no record is damaged
            changed += derived.altered_across(comparisons, results)
    compared = sum(len(_matched(here, there)) for _, here, there in pairs)
    verdicts = [
        verdict for name, here, there in pairs for verdict in _cells(name, here, there, LEVEL / max(1, compared))
    ]
    return Verification(tuple(verdicts), tuple(faults), tuple(untrained), tuple(broken), tuple(changed))


def damaged(experiment: Experiment, results: Path) -> list[str]:
    """Return a sentence for every record, warm start and plan of the experiment that differs from its checksum."""
    found = []
    try:
        history(experiment.name, results)
    except UserError as error:
        found.append(str(error))
    own = cells([experiment])
    for cell in own:
        if has_record(results / cell.folder):
            try:
                _check_record(cell, results)
            except UserError as error:
                found.append(str(error))
    for start in starts(own):
        try:
            if found_start(results, start):
                start_parameters(results, start, "snakemake")
        except UserError as error:
            found.append(str(error))
    return found


def _check_record(cell: Cell, results: Path) -> None:
    from grpo_ablate.runs.record import read_cell

    read_cell(results, cell)


def allowed_difference(one: Sample, other: Sample, level: float) -> float:
    """Return the half width of Welch's two-sample t interval for the difference of two means.

    >>> from math import sqrt
    >>> one = Sample(5, 0.0, 1.0)
    >>> round(allowed_difference(one, one, 0.05) / sqrt(2 / 5), 3)  # t of 8 degrees of freedom
    2.306
    """
    from scipy.stats import t

    rounding = ROUNDING * max(1.0, abs(one.mean), abs(other.mean))
    variances = [
        (sample.sd**2 / sample.n, sample.n - 1) for sample in (one, other) if sample.n > 1 and sample.sd > 0
    ]
    total = sum(variance for variance, _ in variances)
    if not total:
        return rounding
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return max(rounding, float(t.ppf(1 - level / 2, freedom)) * math.sqrt(total))


Key = tuple[str, str]


def _indexed(table: pd.DataFrame) -> dict[Key, tuple[str, Sample]]:
    columns = (table[name].tolist() for name in ("row", "metric", "hash", "n", "mean", "sd"))
    return {
        (row, metric): (digest, Sample(n, mean, sd))
        for row, metric, digest, n, mean, sd in zip(*columns, strict=True)
    }


def _matched(here: pd.DataFrame, there: pd.DataFrame) -> set[Key]:
    """The cells that stand in both tables, of one spec."""
    mine, published = _indexed(here), _indexed(there)
    return {key for key in mine.keys() & published.keys() if mine[key][0] == published[key][0]}


def _cells(name: str, here: pd.DataFrame, there: pd.DataFrame, level: float) -> list[CellVerdict]:
    mine, published = _indexed(here), _indexed(there)
    verdicts = []
    for key in dict.fromkeys([*published, *mine]):
        ours, theirs = mine.get(key), published.get(key)
        one, other = ours and ours[1], theirs and theirs[1]
        difference = allowed = math.nan
        if ours is None or theirs is None:
            state = "missing" if ours is None else "unpublished"
        elif ours[0] != theirs[0]:
            state = "other spec"
        else:
            difference, allowed = ours[1].mean - theirs[1].mean, allowed_difference(ours[1], theirs[1], level)
            alike = abs(difference) <= allowed or (math.isnan(ours[1].mean) and math.isnan(theirs[1].mean))
            state = "agrees" if alike else "differs"
        verdicts.append(CellVerdict(name, *key, state, one, other, difference, allowed))
    return verdicts


def as_json(found: Verification) -> str:
    """Return everything as JSON; numbers that are not finite are null."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    return json.dumps({"holds": found.holds, "level": LEVEL, **plain(asdict(found))}, indent=1)


def as_text(found: Verification) -> str:
    """Return damaged records, altered tables, a line per experiment, cells that do not agree, and the verdict."""
    lines = [*(f"damaged: {fault}" for fault in found.faults), *(f"altered: {table}" for table in found.altered)]
    lines += [f"{name}: not compared: its records are damaged" for name in found.damaged]
    for name in dict.fromkeys(cell.experiment for cell in found.cells):
        own = [cell for cell in found.cells if cell.experiment == name]
        states = Counter(cell.state for cell in own)
        compared = states["agrees"] + states["differs"]
        rest = "".join(
            f", {states[state]} {state}" for state in ("other spec", "missing", "unpublished") if states[state]
        )
        lines.append(f"{name}: {states['agrees']} of {compared} cells agree{rest}")
        lines += [_line(cell) for cell in own if cell.state in ("differs", "other spec")]
    lines += [f"{name}: no runs here" for name in found.untrained]
    total = Counter(cell.state for cell in found.cells)
    compared = total["agrees"] + total["differs"]
    lines.append(
        f"all: {total['agrees']} of {compared} cells agree within their two-sample t intervals "
        f"(level {LEVEL:g} for all together); damaged records: {len(found.faults)}; "
        f"altered tables: {len(found.altered)}"
    )
    return "\n".join(lines)


def _line(cell: CellVerdict) -> str:
    head = f"  {cell.state}  {cell.row}  {cell.metric}"
    if cell.here is None or cell.there is None or cell.state != "differs":
        return head
    return (
        f"{head}  here {cell.here.mean:.6g} (n = {cell.here.n}), published {cell.there.mean:.6g} "
        f"(n = {cell.there.n}), difference {cell.difference:+.3g}, allowed {cell.allowed:.3g}"
    )
