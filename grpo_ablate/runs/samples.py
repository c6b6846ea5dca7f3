"""Show the responses that a row's runs kept, with their rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import row_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row


def as_text(experiment: Experiment, row: Row, results: Path) -> str:
    """Return the kept responses of every trained seed block of a row, a line each.

    Raises UserError where no block of the row has been trained.
    """
    from grpo_ablate.runs.record import read_samples

    lines = []
    for cell in row_cells(experiment, row):
        folder = results / cell.folder
        if (folder / "samples.jsonl").exists():
            lines += [_line(sample) for sample in read_samples(folder)]
    if not lines:
        raise UserError(f"{experiment.path}:{row.id}: no run of this row is in {results}; train it first.")
    return "\n".join(lines)


def _line(sample: dict[str, object]) -> str:
    known = ("seed", "round", "reward", "prompt", "response")
    more = "".join(f" [{value}]" for key, value in sample.items() if key not in known)
    reward = sample["reward"]
    shown = f"{reward:.3f}" if isinstance(reward, float) else "missing"
    return f"seed {sample['seed']}  reward {shown}  {sample['prompt']}{more} -> {sample['response']}"
