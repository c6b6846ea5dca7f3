"""``grpo-ablate train`` and ``warmstart``: which spec, which seeds, which folders; then calls of the trainers."""

from __future__ import annotations

import argparse
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.parallel.group import Group, joined
from grpo_ablate.runs.devices import leased
from grpo_ablate.runs.start_files import Begin, found_start
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.spec.cells import Cell, trained_cells
from grpo_ablate.spec.identity import canonical_json, from_canonical, parse_spec, spec_hash
from grpo_ablate.spec.resolve import find_row
from grpo_ablate.spec.warmstart import Start, cell_start, parse_start, starts

if TYPE_CHECKING:
    from grpo_ablate.runs.mlflow_stream import Stream
    from grpo_ablate.spec.schema import Spec


LAST_SEED = 2**32 - 1  # a word of the random numbers' key
MOST_SEEDS = 65_536
NAME = r"[a-z0-9][a-z0-9.-]{0,79}"


def train_command(arguments: argparse.Namespace) -> int:
    """Train what the command line names; return the exit code."""
    cells = _cells(arguments)
    if arguments.dump_round is None and arguments.dump is not None:
        raise UserError(f"--dump {arguments.dump}: goes with --dump-round K, the round to write.")
    if arguments.dump_round is not None and arguments.stream is not None:
        raise UserError("--dump-round: writes a batch and no run; leave out --stream.")
    if arguments.dump_round is not None and len(cells) > 1:
        raise UserError("--dump-round: name one block of seeds with --seeds A-B.")
    if arguments.row is not None:
        _check(arguments, from_canonical(cells[0].spec_json))
    with joined() as group:
        if group.count > 1:
            return _train_shares(arguments, cells, group)
    gpus = _gpus(arguments)
    if gpus > 1:
        _refuse_shares(cells)
    if arguments.dump_round is not None:
        with leased(gpus):
            _train_cell(arguments, cells[0], StopRequest())
        return 0
    _record_plan(arguments)
    with stop_requests(arguments.stop_with_parent) as request, leased(gpus, request.pending) as devices:
        if len(devices) > 1:
            return _launch(arguments, cells, len(devices), request)
        if arguments.row is not None:  # a row's first run trains what it begins from
            for start in starts(cells):
                if found_start(arguments.results, start) is None:
                    request.heed("the warm start")
                    _train_start(arguments, start)
        for cell in cells:
            _train_cell(arguments, cell, request)
    return 0


def _record_plan(arguments: argparse.Namespace) -> None:
    """Record what a row's experiment is before it is trained; the workflow does so at its start."""
    if arguments.row is not None:
        from grpo_ablate.analysis.planned import record_plan

        record_plan(find_row(arguments.row)[0], arguments.results)


def _gpus(arguments: argparse.Namespace) -> int:
    """Return how many GPUs to lease: as stated, else as the row's testbed says. A batch is dumped with one."""
    if arguments.gpus is not None:
        if arguments.gpus < 0:
            raise UserError(f"--gpus {arguments.gpus}: expected a number of GPUs, 0 for none.")
        wanted = int(arguments.gpus)
    else:
        wanted = 0 if arguments.row is None else find_row(arguments.row)[0].testbed.gpus
    return wanted if arguments.dump_round is None else min(1, wanted)


def _train_cell(arguments: argparse.Namespace, cell: Cell, request: StopRequest) -> None:
    """Train a block of seeds in this process, unless there is a reason to stop."""
    from grpo_ablate.runs.train import train

    spec = from_canonical(cell.spec_json)
    begin = _begin(arguments, cell, spec)
    folder, scratch = _folders(arguments, cell)
    request.heed(f"seeds {cell.first_seed}-{cell.last_seed}")  # the import of torch takes its time
    with _stream(arguments, cell, spec) as listener:
        train(
            spec,
            range(cell.first_seed, cell.last_seed + 1),
            folder,
            scratch,
            testbed=cell.testbed,
            begin=begin,
            stop_with_parent=arguments.stop_with_parent,
            dump_round=arguments.dump_round,
            dump_path=arguments.dump,
            on_evaluation=listener,
        )


def _launch(arguments: argparse.Namespace, cells: list[Cell], count: int, request: StopRequest) -> int:
    """Train the blocks of seeds one after the other, each by ``count`` processes; return the exit code."""
    from grpo_ablate.parallel.launch import launch

    for cell in cells:
        request.heed(f"seeds {cell.first_seed}-{cell.last_seed}")
        options = [] if arguments.stream is None else ["--stream", arguments.stream]
        code = launch(
            count,
            [
                "train", "--cell", cell.spec_json, "--testbed", cell.testbed,
                "--seeds", f"{cell.first_seed}-{cell.last_seed}", "--results", str(arguments.results),
                "--stop-with-parent", *options,
            ],
            request.pending,
        )  # fmt: skip
        if code:
            return code
    return 0


def _train_shares(arguments: argparse.Namespace, cells: list[Cell], group: Group) -> int:
    """Train the blocks of seeds as one process of a group; return the exit code."""
    from grpo_ablate.parallel.session import train_together

    if arguments.dump_round is not None:
        raise UserError("--dump-round: follows a run in one process; start it without torchrun.")
    if arguments.gpus is not None:
        raise UserError(f"--gpus {arguments.gpus}: torchrun says which GPU a process has; leave it out.")
    _refuse_shares(cells)
    if group.first:
        _record_plan(arguments)
    with stop_requests(arguments.stop_with_parent, once=True), leased(0):
        for cell in cells:
            spec = from_canonical(cell.spec_json)
            with _stream(arguments, cell, spec) if group.first else nullcontext() as listener:
                train_together(
                    group,
                    spec,
                    range(cell.first_seed, cell.last_seed + 1),
                    *_folders(arguments, cell),
                    testbed=cell.testbed,
                    stop_with_parent=arguments.stop_with_parent,
                    on_evaluation=listener,
                )
    return 0


def _refuse_shares(cells: list[Cell]) -> None:
    """Raise UserError where runs cannot be divided over processes: those of one row, or of a cell."""
    policy = from_canonical(cells[0].spec_json).policy.name
    if policy != "huggingface":
        raise UserError(
            f"policy.name is {policy}, but only a pretrained model (huggingface) is trained by several processes."
        )


def _folders(arguments: argparse.Namespace, cell: Cell) -> tuple[Path, Path]:
    """Return where the record of a block of seeds goes, and its scratch folder."""
    return arguments.results / cell.folder, arguments.results / cell.folder.replace("runs/", "scratch/", 1)


def _check(arguments: argparse.Namespace, spec: Spec) -> None:
    """Refuse, before anything is written, a round that a run has not, and pools that the task cannot fill."""
    from grpo_ablate.tasks.registry import make_task

    if arguments.dump_round is not None and not 1 <= arguments.dump_round <= spec.rounds:
        raise UserError(f"--dump-round {arguments.dump_round}: {arguments.row} has rounds 1 to {spec.rounds}.")
    try:
        make_task(spec.task, spec.policy)
    except UserError as error:
        raise UserError(f"{arguments.row}: {error}") from None


def warmstart_command(arguments: argparse.Namespace) -> int:
    """Train the warm starts that the command line names; return the exit code."""
    seeds = None if arguments.seeds is None else _seeds(arguments.seeds)
    if (arguments.cell is None) == (arguments.row is None):
        raise UserError("name a row whose warm start to train, as in experiments/kl.yaml:ROW, or use --cell.")
    if arguments.cell is not None:
        found = [parse_start(arguments.cell, seeds, "--cell")]
    else:
        experiment, row = find_row(arguments.row)
        blocks = trained_cells(experiment, row)
        own = blocks if seeds is None else [Cell(blocks[0].testbed, row.hash, *seeds, blocks[0].spec_json)]
        found = starts(own)
        if not found:
            raise UserError(f"{arguments.row}: its runs begin from no warm start.")
    for start in found:
        _train_start(arguments, start)
    return 0


def _train_start(arguments: argparse.Namespace, start: Start) -> None:
    from grpo_ablate.runs.warmstart import train_start

    train_start(start, arguments.results, stop_with_parent=arguments.stop_with_parent)


def _begin(arguments: argparse.Namespace, cell: Cell, spec: Spec) -> Begin | None:
    """Load the warm start of a cell, if it has one."""
    start = cell_start(cell)
    if start is None:
        return None
    from grpo_ablate.runs.warmstart import load_start

    own = "" if start.seeds is None else f" --seeds {start.seeds[0]}-{start.seeds[1]}"
    command = f"grpo-ablate warmstart --cell '{start.spec_json}'{own} --results {arguments.results}"
    return load_start(arguments.results, spec, range(cell.first_seed, cell.last_seed + 1), command)


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
        if re.fullmatch(NAME, arguments.testbed) is None:  # it becomes a folder
            raise UserError(f"--testbed {arguments.testbed}: expected lower-case letters, digits, '.' and '-'.")
        spec = parse_spec(arguments.cell, "--cell")
        return [Cell(arguments.testbed, spec_hash(spec), *seeds, canonical_json(spec))]
    if arguments.testbed is not None:
        raise UserError("--testbed: goes with --cell; a row's experiment names its testbed.")
    if arguments.row is None:
        raise UserError("name a row to train, as in experiments/selection.yaml:ROW.")
    experiment, row = find_row(arguments.row)
    blocks = trained_cells(experiment, row)
    if seeds is None:
        return blocks
    return [Cell(blocks[0].testbed, row.hash, *seeds, blocks[0].spec_json)]


def _seeds(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"0*([0-9]{1,10})-0*([0-9]{1,10})", text)
    if match is None or int(match[1]) > int(match[2]) or int(match[2]) > LAST_SEED:
        raise UserError(
            f"--seeds {text[:80]}: expected the first and the last seed, as in 0-39, each from 0 to {LAST_SEED}."
        )
    first, last = int(match[1]), int(match[2])
    if last - first >= MOST_SEEDS:
        raise UserError(f"--seeds {text}: one job trains at most {MOST_SEEDS} seeds, side by side in memory.")
    return first, last
