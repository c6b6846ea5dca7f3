"""``grpo-ablate export``: a trained member as a folder that transformers and vLLM read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record import check_writable
from grpo_ablate.runs.record_files import has_record, read_checked, read_run
from grpo_ablate.spec.cells import Cell, row_cells
from grpo_ablate.spec.schema import HuggingFacePolicy, SelectionTask, TabularPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ablate.spec.resolve import Experiment, Row

CHECKPOINT = "checkpoint.safetensors"


def export(experiment: Experiment, row: Row, seed: int, results: Path, folder: Path) -> None:
    """Write the final parameters of one seed of a row, with config and tokenizer, as a folder of transformers.

    Raises:
        UserError: the row trains no language model, the seed is not trained, the record is damaged, the weights
            of a pretrained model are gone, or the folder exists or cannot be written.
    """
    where, spec = f"{experiment.path}:{row.id}", row.effective
    if isinstance(spec.policy, TabularPolicy) or isinstance(spec.task, SelectionTask):
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

    if isinstance(spec.policy, HuggingFacePolicy):
        from grpo_ablate.policies.huggingface.exporting import save_trained

        found = {name: value[0] for name, value in load(content).items()}
        trained = found if spec.policy.lora != "off" else _weights(results, cell, found)
        return save_trained(spec.policy, trained, folder)
    from grpo_ablate.policies.stacked.transformers_folder import save_transformers
    from grpo_ablate.tasks.registry import make_task

    member = run["seeds"].index(seed)
    parameters = {name: values[member] for name, values in load(content).items()}
    task: Any = make_task(spec.task)  # a language task: a stacked policy has no other
    save_transformers(parameters, spec.policy, task, folder)


def _weights(results: Path, cell: Cell, digests: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a whole pretrained model, of which the record holds the digests, from the checkpoint.

    Raises UserError where the checkpoint of the finished run is gone, or holds other weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = results / cell.folder.replace("runs/", "scratch/", 1) / CHECKPOINT
    prefix = "policy.parameters."
    try:
        state = load_file(path)
    except (OSError, SafetensorError):
        raise UserError(
            f"{path}: cannot be read: a record holds the digest of a whole model's weights, which "
            "themselves are in the finished run's checkpoint; train the row again."
        ) from None
    found = {name.removeprefix(prefix): value[0] for name, value in state.items() if name.startswith(prefix)}
    for name, digest in digests.items():
        value = found.get(name.removesuffix(".sha256"))
        if value is None or bytes(digest.tolist()) != hashlib.sha256(value.numpy().tobytes()).digest():
            raise UserError(f"{path}: its weights are not those of the finished run; train the row again.")
    return found
