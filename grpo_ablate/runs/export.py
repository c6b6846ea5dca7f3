"""``grpo-ablate export``: a trained member as a folder that transformers and vLLM read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record import check_writable
from grpo_ablate.runs.record_files import has_record, read_checked, read_run
from grpo_ablate.spec.cells import row_cells
from grpo_ablate.spec.schema import SelectionTask, StackedPolicy

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row


def export(experiment: Experiment, row: Row, seed: int, results: Path, folder: Path) -> None:
    """Write the final parameters of one seed of a row, with config and tokenizer, as a LlamaForCausalLM folder.

    Raises:
        UserError: the row trains no language model, the seed is not trained, the record is damaged, or the
            folder exists or cannot be written.
    """
    where, spec = f"{experiment.path}:{row.id}", row.effective
    if not isinstance(spec.policy, StackedPolicy) or isinstance(spec.task, SelectionTask):
        raise UserError(f"{where}: its policy is no language model; there is nothing to export.")
    cell = next((cell for cell in row_cells(experiment, row) if seed in cell.seeds), None)
    if cell is None or not has_record(results / cell.folder):
        raise UserError(f"{where}: seed {seed} is not trained in {results}; `grpo-ablate train {where}` does it.")
    if folder.exists():
        raise UserError(f"--to {folder}: exists already; name a new folder.")
    check_writable(folder)
    run = read_run(results / cell.folder)
    content = read_checked(results / cell.folder, run, "parameters.safetensors")
    from safetensors.torch import load

    from grpo_ablate.policies.stacked.transformers_folder import save_transformers
    from grpo_ablate.tasks.registry import make_task

    member = run["seeds"].index(seed)
    parameters = {name: values[member] for name, values in load(content).items()}
    save_transformers(parameters, spec.policy, make_task(spec.task), folder)
