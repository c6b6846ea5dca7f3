"""What an experiment would run and spend: rows, seeds, budgets, twins, and the time on this machine."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_ablate.analysis.sign_flip_bound import seeds_needed
from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import Cell, experiment_cells, row_cells, tuning_cells
from grpo_ablate.spec.estimate import Prices, calibrate, prices_of, start_seconds, works
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.resolve import Experiment, Row
from grpo_ablate.spec.warmstart import Start, starts
from grpo_ablate.workflow.staleness import start_trained, trained


@dataclass(frozen=True)
class RowPlan:
    """One row's arithmetic per seed. ``tokens`` is the most it may generate; ``twin_of`` trains in its stead.

    ``jobs_failed`` are those whose record is broken; they count as neither done nor run.
    """

    row: str
    hash: str
    prompts: int
    group_size: int
    rounds: int
    updates: int
    rollouts: int
    tokens: int
    seeds: int
    twin_of: str | None
    jobs: int
    jobs_done: int
    jobs_failed: int
    inert: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class StartPlan:
    """A warm start that runs begin from."""

    folder: str
    trained: bool


@dataclass(frozen=True)
class Plan:
    """An experiment's rows and what of them is done. ``seconds`` of one core is None where nothing is known.

    ``controls`` are trained with every experiment, ``tuned`` are the rows at each learning rate that is tried;
    ``seeds_needed`` is how many seeds the claims need for one of them to be confirmed at all.
    """

    experiment: str
    question: str
    testbed: str
    baseline: str
    seeds_per_job: int
    rows: list[RowPlan]
    controls: list[RowPlan]
    tuned: list[RowPlan]
    starts: list[StartPlan]
    claims: int
    seeds_needed: int
    jobs: int
    jobs_to_run: int
    jobs_failed: int
    seconds: float | None


def plan(experiment: Experiment, results: Path, prices: Mapping[str, Prices] | None = None) -> Plan:
    """Return the plan of one experiment against what ``results`` holds.

    ``prices`` are what `calibrate` says of ``results``; None asks it.
    """
    states = {cell: _state(cell, results) for cell in experiment_cells(experiment)}
    first: dict[str, str] = {}

    def planned(row: Row) -> RowPlan:
        blocks = row_cells(experiment, row)
        tuning = any(row is other for rows in experiment.tuned.values() for other in rows)
        if tuning:
            blocks += tuning_cells(experiment, row)
        return _row_plan(experiment, row, first, [states[cell] for cell in blocks])

    rows, controls = [planned(row) for row in experiment.rows], [planned(row) for row in experiment.controls]
    tuned = [planned(row) for rates in experiment.tuned.values() for row in rates]
    todo = [cell for cell, state in states.items() if state != "done"]
    begun = starts(states)
    trained_starts = {start for start in begun if _is_trained(results, start)}
    waiting = [start for start in starts(todo) if start not in trained_starts]
    known = calibrate(results) if prices is None and todo else prices or {}
    return Plan(
        experiment.name,
        experiment.question,
        experiment.testbed.name,
        experiment.baseline,
        experiment.testbed.seeds_per_job,
        rows,
        controls,
        tuned,
        [StartPlan(start.folder, start in trained_starts) for start in begun],
        len(experiment.claims),
        seeds_needed(len(experiment.claims)) if experiment.claims else 0,
        len(states),
        len(todo),
        list(states.values()).count("failed"),
        _estimate(todo, waiting, results, known),
    )


def _row_plan(experiment: Experiment, row: Row, first: dict[str, str], states: list[str]) -> RowPlan:
    """Return the plan of a row whose jobs have those ``states``; ``first`` is the row that each hash came from."""
    spec, twin = row.effective, first.setdefault(row.hash, row.id)
    rollouts = spec.rounds * spec.rollouts_per_round
    return RowPlan(
        row=row.id,
        hash=row.hash,
        prompts=spec.sampling.prompts,
        group_size=spec.sampling.group_size,
        rounds=spec.rounds,
        updates=spec.rounds * spec.steps_per_round,
        rollouts=rollouts,
        tokens=rollouts * spec.sampling.max_tokens,
        seeds=experiment.seeds,
        twin_of=None if twin == row.id else twin,
        jobs=len(states),
        jobs_done=states.count("done"),
        jobs_failed=states.count("failed"),
        inert=[asdict(i) for i in row.inert],
        notes=list(row.notes),
    )


def _state(cell: Cell, results: Path) -> str:
    """Return done, failed or missing, as the workflow judges a record before it looks at code and checksums."""
    try:
        found = trained(results, cell)
    except UserError:
        return "failed"
    return "missing" if found is None else "failed" if found.fault else "done"


def _is_trained(results: Path, start: Start) -> bool:
    found = start_trained(results, start)
    return found is not None and not found.fault


def _estimate(
    todo: Sequence[Cell], waiting: Sequence[Start], results: Path, prices: Mapping[str, Prices]
) -> float | None:
    """Return the seconds of one core that the jobs and warm starts would take; None where nothing tells."""
    total, known = 0.0, None
    for cell in todo:
        spec = from_canonical(cell.spec_json)
        known = prices_of(spec, prices)
        if known is None:
            return None
        total += known.start + known.seconds(works(spec, len(cell.seeds)))
    for start in waiting:
        seconds = start_seconds(start, results, known)
        if seconds is None:
            return None
        total += seconds
    return total


def as_json(plans: Sequence[Plan]) -> str:
    """Return the plans as JSON."""
    return json.dumps([asdict(p) for p in plans], indent=2)


def as_text(plans: Sequence[Plan]) -> str:
    """Return the plans as a page for a terminal."""
    return "\n\n".join(_text(p) for p in plans)


def _text(p: Plan) -> str:
    width = max(len("row"), *(len(r.row) for r in p.rows))
    seeds = p.rows[0].seeds
    lines = [
        f"{p.experiment}: {p.question}",
        f"  testbed {p.testbed}, baseline {p.baseline}, {len(p.rows)} rows x {seeds} seeds = "
        f"{len(p.rows) * seeds} runs",
        f"  seeds are trained in blocks of {p.seeds_per_job}, a job each",
        "",
        f"  {'row':<{width}}  {'B':>3} {'G':>3} {'rounds':>6} {'updates':>7} {'rollouts':>9} {'tokens':>9}  state",
    ]
    for r in p.rows:
        state = _row_state(r)
        lines.append(
            f"  {r.row:<{width}}  {r.prompts:>3} {r.group_size:>3} {r.rounds:>6,} {r.updates:>7,} "
            f"{r.rollouts:>9,} {r.tokens:>9,}  {state}"
        )
    lines.append("  (B prompts x G responses a round; updates, rollouts and tokens at most, per seed)")
    lines += _control_lines(p)
    lines += _inert_lines(p)
    for note, rows in _grouped((n, r.row) for r in p.rows for n in r.notes).items():
        lines.append(_wrapped(f"note, {_names(rows, len(p.rows))}: {note}."))
    every = (*p.rows, *p.controls, *p.tuned)
    total = sum(r.rollouts * r.jobs * p.seeds_per_job for r in every if r.twin_of is None)
    time = (
        "unknown (nothing like it has run on this machine)"
        if p.seconds is None
        else f"about {_duration(p.seconds)} of one core"
    )
    lines.append(
        f"  {total:,} rollouts in {p.jobs} jobs; {p.jobs - p.jobs_to_run} done, {p.jobs_to_run} to run"
        + (f" ({p.jobs_failed} failed: `grpo-ablate status` says why)" if p.jobs_failed else "")
        + (f"; time: {time}" if p.jobs_to_run else "")
    )
    return "\n".join(lines)


def _row_state(r: RowPlan) -> str:
    if r.twin_of:
        return f"twin of {r.twin_of}"
    if r.jobs_done == r.jobs:
        return "done"
    if r.jobs_failed == r.jobs:
        return "failed, to train again"
    if not r.jobs_done and not r.jobs_failed:
        return "to train"
    return f"{r.jobs_done} of {r.jobs} jobs done" + (f", {r.jobs_failed} failed" if r.jobs_failed else "")


def _control_lines(p: Plan) -> list[str]:
    """What is trained beside the rows (controls, learning rates, warm starts), and the seeds that claims take."""
    lines = []
    if p.controls:
        told = ", ".join(f"{r.row} ({_row_state(r)})" for r in p.controls)
        lines.append(_wrapped(f"controls, judged before any claim: {told}."))
    if p.tuned:
        jobs, done = sum(r.jobs for r in p.tuned), sum(r.jobs_done for r in p.tuned)
        lines.append(
            _wrapped(
                f"learning rates: {len(p.tuned)} rows at a rate of their own, on the seeds of the rows and on as "
                f"many others that choose the rate; {done} of {jobs} jobs done."
            )
        )
    for start in p.starts:
        lines.append(f"  warm start {start.folder}: {'trained' if start.trained else 'to train'}")
    if p.claims and p.rows[0].seeds < p.seeds_needed:
        lines.append(
            _wrapped(
                f"with {p.rows[0].seeds} seeds and {p.claims} claims no sign-flip test can reach the corrected "
                f"level of .05, whatever the results: that takes {p.seeds_needed} seeds."
            )
        )
    return lines


def _inert_lines(p: Plan) -> list[str]:
    said = ((f"{i['key']} {i['value']} cannot act: {i['reason']}", r.row) for r in p.rows for i in r.inert)
    return [_wrapped(f"{_names(rows, len(p.rows))}: {text}.") for text, rows in _grouped(said).items()]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=100, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for text, row in pairs:
        groups.setdefault(text, []).append(row)
    return groups


def _names(rows: list[str], total: int) -> str:
    if len(rows) == total:
        return "every row"
    return ", ".join(rows) if len(rows) <= 4 else f"{', '.join(rows[:3])} and {len(rows) - 3} more rows"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
