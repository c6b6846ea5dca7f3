"""Which code a run was trained by, and which code would train it now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo_ablate.runs.record_files import RECORD, has_record, read_run
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.workflow.digest import row_digest


@dataclass(frozen=True)
class Trained:
    """What a run's record says of itself: the digest of its code, how it ended, and what is wrong with it."""

    code: str
    ending: str
    fault: str = ""


def training_code(cell: Cell) -> str:
    """The digest of the code that would train the cell now."""
    return row_digest(from_canonical(cell.spec_json))


def trained(folder: Path, cell: Cell) -> Trained | None:
    """What the record of ``cell`` in ``folder`` says; None where there is none.

    Light and quick: whether the other files match their checksums is not looked at.

    Raises:
        UserError: the record is not what a run leaves.
    """
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
    return Trained(run["digest"], run["status"], fault)


def is_stale(cell: Cell, results: Path) -> bool:
    """Whether the cell's run exists and was trained by other code than today's."""
    found = trained(results / cell.folder, cell)
    return found is not None and found.code != training_code(cell)
