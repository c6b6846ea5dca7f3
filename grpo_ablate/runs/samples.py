"""Show the responses that a row's runs kept, with their rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record, read_samples
from grpo_ablate.spec.cells import row_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row


def as_text(experiment: Experiment, row: Row, results: Path) -> str:
    """Return the kept responses of the experiment's seeds, as far as a row is trained, a line each.

    Raises UserError where no block of the row has been trained, or a record is damaged.
    """
    lines = []
    for cell in row_cells(experiment, row):
        folder = results / cell.folder
        if has_record(folder):
            lines += [_line(sample) for sample in read_samples(folder) if sample["seed"] < experiment.seeds]
    if not lines:
        raise UserError(f"{experiment.path}:{row.id}: no run of this row is in {results}; train it first.")
    return "\n".join(lines)


def _line(sample: dict[str, Any]) -> str:
    known = ("seed", "round", "reward", "prompt", "response")
    more = "".join(f" [{value}]" for key, value in sample.items() if key not in known)
    reward = sample["reward"]
    shown = "missing" if reward is None else f"{reward:.3f}"
    return f"seed {sample['seed']}  reward {shown}  {sample['prompt']}{more} -> {sample['response']}"
