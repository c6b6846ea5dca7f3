"""Which code a run was trained by, and which code would train it now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.workflow.digest import row_digest

RECORD = (
    "metrics.parquet",
    "samples.jsonl",
    "parameters.safetensors",
    "timing.json",
    "provenance.json",
    "run.json",
)


@dataclass(frozen=True)
class Trained:
    """What a run's record says of itself: the digest of its code, how it ended, and what is wrong with it."""

    code: str
    ending: str
    fault: str = ""


def training_code(cell: Cell) -> str:
    """The digest of the code that would train the cell now."""
    return row_digest(from_canonical(cell.spec_json))


def trained(folder: Path, full_hash: str) -> Trained | None:
    """What the record in ``folder`` says; None where there is none.

    Raises:
        UserError: the record is not what a run leaves.
    """
    path = folder / "run.json"
    try:
        run = json.loads(path.read_bytes())
        code, ending, found = str(run["digest"]), str(run["status"]), run["hash"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not the record of a run"
        raise UserError(f"{path}: cannot be read: {reason}; remove {folder} to train it again.") from None
    if found != full_hash:  # equal short hashes
        return Trained(code, ending, f"of another spec, {found}")
    lacking = [name for name in RECORD if not (folder / name).exists()]
    return Trained(code, ending, f"without {', '.join(lacking)}" if lacking else "")


def is_stale(cell: Cell, results: Path) -> bool:
    """Whether the cell's run exists and was trained by other code than today's."""
    found = trained(results / cell.folder, cell.hash)
    return found is not None and found.code != training_code(cell)
