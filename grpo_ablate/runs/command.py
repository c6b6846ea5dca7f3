"""``grpo-ablate train``: which spec, which seeds, which folders; then a call of the trainer per block of seeds."""

from __future__ import annotations

import argparse
import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import Cell, row_cells
from grpo_ablate.spec.identity import from_canonical, spec_hash
from grpo_ablate.spec.resolve import find_row

if TYPE_CHECKING:
    from grpo_ablate.runs.mlflow_stream import Stream
    from grpo_ablate.spec.schema import Spec


def train_command(arguments: argparse.Namespace) -> int:
    """Train what the command line names; return the exit code."""
    cells = _cells(arguments)
    if arguments.dump_round is not None and len(cells) > 1:
        raise UserError("--dump-round: name one block of seeds with --seeds A-B.")
    from grpo_ablate.runs.train import train

    for cell in cells:
        spec = from_canonical(cell.spec_json)
        with _stream(arguments, cell, spec) as listener:
            train(
                spec,
                range(cell.first_seed, cell.last_seed + 1),
                arguments.results / cell.folder,
                arguments.results / cell.folder.replace("runs/", "scratch/", 1),
                testbed=cell.testbed,
                stop_with_parent=arguments.stop_with_parent,
                dump_round=arguments.dump_round,
                dump_path=arguments.dump,
                on_evaluation=listener,
            )
    return 0


def _stream(arguments: argparse.Namespace, cell: Cell, spec: Spec) -> AbstractContextManager[Stream | None]:
    """Send a run's evaluations to the MLflow server that ``--stream`` names, while it trains."""
    if arguments.stream is None:
        return nullcontext()
    from grpo_ablate.runs.mlflow_stream import Stream

    return Stream(arguments.stream, spec, testbed=cell.testbed, folder=arguments.results / cell.folder)


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    seeds = None if arguments.seeds is None else _seeds(arguments.seeds)
    if arguments.cell is not None:
        if arguments.row is not None or arguments.testbed is None or seeds is None:
            raise UserError("--cell goes with --testbed and --seeds, and without a row.")
        spec = from_canonical(arguments.cell)
        return [Cell(arguments.testbed, spec_hash(spec), *seeds, arguments.cell)]
    if arguments.row is None:
        raise UserError("name a row to train, as in experiments/selection.yaml:ROW.")
    experiment, row = find_row(arguments.row)
    blocks = row_cells(experiment, row)
    if seeds is None:
        return blocks
    return [Cell(blocks[0].testbed, row.hash, *seeds, blocks[0].spec_json)]


def _seeds(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise UserError(f"--seeds {text}: expected the first and the last seed, as in 0-39.")
    return int(match[1]), int(match[2])
