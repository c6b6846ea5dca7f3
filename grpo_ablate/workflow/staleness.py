"""Which code a run was trained by, and which code would train it now."""

from __future__ import annotations

import json
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.workflow.digest import row_digest


def training_code(cell: Cell) -> str:
    """The digest of the code that would train the cell now."""
    return row_digest(from_canonical(cell.spec_json))


def recorded_code(folder: Path, full_hash: str) -> str | None:
    """The digest of the code that trained the run in ``folder``; None where there is none.

    A run of another spec in the same folder (equal short hashes) was trained by other code, too.

    Raises:
        UserError: the record is not what a run leaves.
    """
    path = folder / "run.json"
    try:
        run = json.loads(path.read_bytes())
        recorded, found = str(run["digest"]), run["hash"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not the record of a run"
        raise UserError(f"{path}: cannot be read: {reason}; remove {folder} to train it again.") from None
    return recorded if found == full_hash else f"{recorded} for the spec {found}"


def is_stale(cell: Cell, results: Path) -> bool:
    """Whether the cell's run exists and was trained by other code than today's."""
    return recorded_code(results / cell.folder, cell.hash) not in (None, training_code(cell))
