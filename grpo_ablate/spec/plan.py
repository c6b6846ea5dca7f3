"""What an experiment would run and spend: rows, seeds, budgets, twins, and the time on this machine."""

from __future__ import annotations

import json
import platform
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import read_timing
from grpo_ablate.spec.cells import Cell, row_cells
from grpo_ablate.spec.resolve import Experiment, Row
from grpo_ablate.workflow.staleness import trained


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
class Plan:
    """An experiment's rows and what of them is done. ``seconds`` of one core is None where nothing is known."""

    experiment: str
    question: str
    testbed: str
    baseline: str
    seeds_per_job: int
    rows: list[RowPlan]
    jobs: int
    jobs_to_run: int
    jobs_failed: int
    seconds: float | None


def plan(experiment: Experiment, results: Path) -> Plan:
    """Return the plan of one experiment against what ``results`` holds."""
    first: dict[str, str] = {}
    rows = []
    todo: dict[Cell, Row] = {}
    states: dict[Cell, str] = {}
    for row in experiment.rows:
        blocks = row_cells(experiment, row)
        states |= {cell: _state(cell, results) for cell in blocks if cell not in states}
        todo |= {cell: row for cell in blocks if states[cell] != "done"}
        own = [states[cell] for cell in blocks]
        twin = first.setdefault(row.hash, row.id)
        spec = row.effective
        rollouts = spec.rounds * spec.rollouts_per_round
        rows.append(
            RowPlan(
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
                jobs=len(blocks),
                jobs_done=own.count("done"),
                jobs_failed=own.count("failed"),
                inert=[asdict(i) for i in row.inert],
                notes=list(row.notes),
            )
        )
    seconds = _estimate(experiment, todo, results)
    return Plan(
        experiment.name,
        experiment.question,
        experiment.testbed.name,
        experiment.baseline,
        experiment.testbed.seeds_per_job,
        rows,
        len(states),
        len(todo),
        list(states.values()).count("failed"),
        seconds,
    )


def _state(cell: Cell, results: Path) -> str:
    """Return done, failed or missing, as the workflow judges a record before it looks at code and checksums."""
    try:
        found = trained(results / cell.folder, cell)
    except UserError:
        return "failed"
    return "missing" if found is None else "failed" if found.fault else "done"


def _estimate(experiment: Experiment, todo: Mapping[Cell, Row], results: Path) -> float | None:
    """Return the seconds of one core that the jobs would take: a start each, and their optimiser steps.

    Both as earlier jobs of this testbed took on this machine; None where there are none.
    """
    jobs, starts, seconds, updates = 0, 0.0, 0.0, 0
    for path in sorted((results / "runs" / experiment.testbed.name).glob("*/*/timing.json")):
        try:
            timing = read_timing(path.parent)
        except UserError:
            continue  # an unreadable timing tells nothing; `status` reports broken records
        if timing["machine"] == platform.node():
            jobs += 1
            starts += timing["parts"].get("start_up", 0.0)
            seconds += timing["seconds"]
            updates += timing["updates"]
    if not todo:
        return 0.0
    if not updates:
        return None
    steps = sum(
        row.effective.rounds * row.effective.steps_per_round * len(cell.seeds) for cell, row in todo.items()
    )
    return len(todo) * starts / jobs + steps * seconds / updates


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
        state = (
            f"twin of {r.twin_of}"
            if r.twin_of
            else "done"
            if r.jobs_done == r.jobs
            else "failed, to train again"
            if r.jobs_failed == r.jobs
            else f"{r.jobs_done} of {r.jobs} jobs done" + (f", {r.jobs_failed} failed" if r.jobs_failed else "")
            if r.jobs_done or r.jobs_failed
            else "to train"
        )
        lines.append(
            f"  {r.row:<{width}}  {r.prompts:>3} {r.group_size:>3} {r.rounds:>6,} {r.updates:>7,} "
            f"{r.rollouts:>9,} {r.tokens:>9,}  {state}"
        )
    lines.append("  (B prompts x G responses a round; updates, rollouts and tokens at most, per seed)")
    lines += _inert_lines(p)
    for note, rows in _grouped((n, r.row) for r in p.rows for n in r.notes).items():
        lines.append(_wrapped(f"note, {_names(rows, len(p.rows))}: {note}."))
    total = sum(r.rollouts * r.jobs * p.seeds_per_job for r in p.rows if r.twin_of is None)
    time = (
        "unknown (nothing of this testbed has run on this machine)"
        if p.seconds is None
        else f"about {_duration(p.seconds)} of one core"
    )
    lines.append(
        f"  {total:,} rollouts in {p.jobs} jobs; {p.jobs - p.jobs_to_run} done, {p.jobs_to_run} to run"
        + (f" ({p.jobs_failed} failed: `grpo-ablate status` says why)" if p.jobs_failed else "")
        + (f"; time: {time}" if p.jobs_to_run else "")
    )
    return "\n".join(lines)


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
