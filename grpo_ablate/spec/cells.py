"""The cells of a grid: each is one spec on one block of seeds, trained by one job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.spec.identity import canonical_json

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row


@dataclass(frozen=True, order=True)
class Cell:
    """One training job. ``last_seed`` is inclusive; ``spec_json`` is sparse and canonical."""

    testbed: str
    hash: str
    first_seed: int
    last_seed: int
    spec_json: str

    @property
    def seeds(self) -> list[int]:
        """Every seed of the block."""
        return list(range(self.first_seed, self.last_seed + 1))

    @property
    def folder(self) -> str:
        """The run's folder below the results root."""
        return f"runs/{self.testbed}/{self.hash[:8]}/seeds-{self.first_seed}-{self.last_seed}"


def row_cells(experiment: Experiment, row: Row) -> list[Cell]:
    """Return the cells of one row: whole blocks of the testbed's ``seeds_per_job`` seeds.

    A block is the same for every experiment, so a (spec, seed) of a testbed is trained in one place only; an
    experiment with fewer seeds than its last block holds uses the first of them.
    """
    return _blocks(experiment, row, 0)


def tuning_cells(experiment: Experiment, row: Row) -> list[Cell]:
    """Return the cells that decide for or against a learning rate: on seeds that no row is compared on."""
    return _blocks(experiment, row, experiment.first_tuning_seed)


def trained_cells(experiment: Experiment, row: Row) -> list[Cell]:
    """Return every cell that an experiment trains of one of its ``trained_rows``, the tuning seeds' last."""
    at_rate = any(row.id == other.id for rows in experiment.tuned.values() for other in rows)
    return [*row_cells(experiment, row), *(tuning_cells(experiment, row) if at_rate else ())]


def experiment_cells(experiment: Experiment) -> list[Cell]:
    """Return the distinct cells of an experiment, sorted: its rows, its controls, its rows at every rate."""
    return sorted({cell for row in experiment.trained_rows for cell in trained_cells(experiment, row)})


def measured_runs(experiment: Experiment) -> list[tuple[Row, int]]:
    """Return every row with every seed that the tables hold of it, in the order of the rows, then of the seeds.

    The rows, the controls and the rows at every rate on the main seeds; these last on the tuning seeds as well.
    """
    main = range(experiment.seeds)
    tuning = range(experiment.first_tuning_seed, experiment.first_tuning_seed + experiment.seeds)
    at_rates = {id(row) for rows in experiment.tuned.values() for row in rows}
    return [
        (row, seed)
        for row in experiment.trained_rows
        for seed in (*main, *(tuning if id(row) in at_rates else ()))
    ]


def _blocks(experiment: Experiment, row: Row, start: int) -> list[Cell]:
    size, text = experiment.testbed.seeds_per_job, canonical_json(row.effective)
    return [
        Cell(experiment.testbed.name, row.hash, first, first + size - 1, text)
        for first in range(start, start + experiment.seeds, size)
    ]


def cells(experiments: Iterable[Experiment]) -> list[Cell]:
    """Return every distinct cell of the experiments, sorted; equal specs appear once.

    Raises:
        UserError: two different specs share the eight digits that name their folder.
    """
    found = {cell for experiment in experiments for cell in experiment_cells(experiment)}
    specs: dict[tuple[str, str], str] = {}
    for cell in sorted(found):
        if specs.setdefault((cell.testbed, cell.hash[:8]), cell.spec_json) != cell.spec_json:
            raise UserError(
                f"testbed {cell.testbed}: two different specs share the short hash {cell.hash[:8]}; "
                "change any switch of one of them."
            )
    return sorted(found)
