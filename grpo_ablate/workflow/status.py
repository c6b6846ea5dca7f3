"""Which cells of the grid are done, running, missing, failed or stale."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.runs.lock import is_held
from grpo_ablate.runs.record_files import verify
from grpo_ablate.spec.cells import Cell, row_cells, tuning_cells
from grpo_ablate.spec.resolve import Experiment
from grpo_ablate.workflow.staleness import OTHER_START, trained, training_code

STATES = {
    "done": "trained by today's code",
    "stale": "trained by other code, or from another warm start",
    "running": "being trained",
    "failed": "started and did not finish, or its record is broken",
    "missing": "not trained yet",
}


@dataclass(frozen=True)
class CellStatus:
    """One seed block of one row. ``detail`` is what is known of a state that is not plain."""

    experiment: str
    row: str
    testbed: str
    seeds: str
    folder: str
    state: str
    detail: str = ""


def status(experiments: Sequence[Experiment], results: Path) -> list[CellStatus]:
    """Return the state of every cell of every row and control, in the order of the files."""
    known: dict[Cell, tuple[str, str]] = {}
    found = []
    for experiment in experiments:
        for row, cell in _trained(experiment):
            if cell not in known:
                known[cell] = _state(cell, experiment, results)
            seeds = f"{cell.first_seed}-{cell.last_seed}"
            found.append(CellStatus(experiment.name, row, cell.testbed, seeds, cell.folder, *known[cell]))
    return found


def _trained(experiment: Experiment) -> Iterator[tuple[str, Cell]]:
    """Every cell of an experiment with the row, control, or row at a learning rate that it belongs to."""
    for row in experiment.trained_rows:
        yield from ((row.id, cell) for cell in row_cells(experiment, row))
    for rows in experiment.tuned.values():
        yield from ((f"{row.id} (tuning)", cell) for row in rows for cell in tuning_cells(experiment, row))


def as_json(cells: Sequence[CellStatus]) -> str:
    """Return the states as JSON: every cell, and the number of distinct cells in each state."""
    return json.dumps({"counts": counts(cells), "cells": [asdict(cell) for cell in cells]}, indent=2)


def counts(cells: Sequence[CellStatus]) -> dict[str, int]:
    """Return state -> number of distinct cells; twins and shared rows count once."""
    states = Counter({cell.folder: cell.state for cell in cells}.values())
    return {state: states[state] for state in STATES}


def as_text(cells: Sequence[CellStatus]) -> str:
    """Return a line per experiment, then the cells that are not plainly done, then the totals."""
    lines = []
    for name in dict.fromkeys(cell.experiment for cell in cells):
        own = [cell for cell in cells if cell.experiment == name]
        lines.append(f"{name}: {_counted(counts(own))}")
        told: set[str] = set()
        for cell in own:
            if (cell.state != "done" or cell.detail) and cell.folder not in told:
                told.add(cell.folder)
                detail = f" ({cell.detail})" if cell.detail else ""
                lines.append(f"  {cell.state:<7}  {cell.row}  seeds {cell.seeds}  {cell.folder}{detail}")
    total = counts(cells)
    lines.append(f"all: {_counted(total)}")
    lines += [f"  {state}: {STATES[state]}" for state in STATES if total[state] and state != "done"]
    return "\n".join(lines)


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in states.items() if number) + " seed blocks"


def _state(cell: Cell, experiment: Experiment, results: Path) -> tuple[str, str]:
    """State and detail of one cell."""
    folder = results / cell.folder
    if is_held(results / cell.folder.replace("runs/", "scratch/", 1)):
        return "running", ""
    try:
        found = trained(results, cell)
        if found and not found.fault:
            verify(folder)
    except UserError as error:
        return "failed", str(error)
    if found is None:
        log = results / f"{cell.folder.replace('runs/', 'logs/', 1)}.log"
        return ("failed", f"{log}: {_last_line(log)}") if log.exists() else ("missing", "")
    if found.fault:
        return "failed", found.fault
    if found.code != training_code(cell):
        kept = "kept" if experiment.testbed.stale == "keep" else "will be trained again"
        return "stale", f"{OTHER_START}, {kept}" if found.code.endswith(OTHER_START) else kept
    return "done", "" if found.ending == "finished" else found.ending


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "stopped without a word"
