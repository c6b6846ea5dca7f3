"""Which code a run or a warm start was trained by, and which code would train it now."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import RECORD, has_record, read_run
from grpo_ablate.runs.start_files import PARAMETERS, found_start
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.warmstart import Start, cell_start
from grpo_ablate.workflow.digest import row_digest, start_digest

OTHER_START = "from another warm start"


@dataclass(frozen=True)
class Trained:
    """What a record says of itself: the digest of its code, how it ended, and what is wrong with it."""

    code: str
    ending: str
    fault: str = ""


def training_code(cell: Cell) -> str:
    """The digest of the code that would train the cell now, its warm start included."""
    return _training_code(cell.spec_json)


@cache
def _training_code(spec_json: str) -> str:
    return row_digest(from_canonical(spec_json))


def start_code(start: Start) -> str:
    """The digest of the code that would train the start now."""
    return start_digest(start)


def trained(results: Path, cell: Cell) -> Trained | None:
    """What the record of ``cell`` says; None where there is none.

    Where the warm start in ``results`` is another than the run began from, the code says so, too. Light and
    quick: whether the other files match their checksums is not looked at.

    Raises:
        UserError: the record is not what a run leaves.
    """
    folder = results / cell.folder
    if not has_record(folder):
        return None
    run = read_run(folder)
    fault = ""
    if run["hash"] != cell.hash:  # equal short hashes
        fault = f"of another spec, {run['hash']}"
    elif run["seeds"] != cell.seeds:
        fault = "of other seeds"
    elif lacking := [name for name in RECORD if not (folder / name).exists()]:
        fault = f"without {', '.join(lacking)}"
    start = cell_start(cell)
    other = start is not None and _is_other(results, start, run.get("start"))
    return Trained(f"{run['digest']} {OTHER_START}" if other else run["digest"], run["status"], fault)


def _is_other(results: Path, start: Start, begun: dict[str, str] | None) -> bool:
    """Whether the start on disk differs from the one a run says it began from; one not on disk does not."""
    if begun is None or begun["hash"] != start.hash:
        return True
    try:
        found = found_start(results, start)
    except UserError:  # a damaged start is trained again; then it is known whether it is another
        return False
    return found is not None and found["sha256"] != begun["sha256"]


def start_trained(results: Path, start: Start) -> Trained | None:
    """What ``start.json`` says; None where there is none. A damaged one is a fault, which trains it again."""
    try:
        found = found_start(results, start)
    except UserError as error:
        return Trained("", "", str(error))
    if found is None:
        return None
    lacking = "" if (results / start.folder / PARAMETERS).exists() else f"without {PARAMETERS}"
    return Trained(found["digest"], "finished", lacking)


def is_stale(cell: Cell, results: Path) -> bool:
    """Whether the cell's run exists and was trained by other code than today's, or from another start."""
    found = trained(results, cell)
    return found is not None and found.code != training_code(cell)
