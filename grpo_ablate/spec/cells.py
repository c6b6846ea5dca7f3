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
    size, text = experiment.testbed.seeds_per_job, canonical_json(row.effective)
    return [
        Cell(experiment.testbed.name, row.hash, first, first + size - 1, text)
        for first in range(0, experiment.seeds, size)
    ]


def cells(experiments: Iterable[Experiment]) -> list[Cell]:
    """Return every distinct cell of the experiments, sorted; equal specs appear once.

    Raises:
        UserError: two different specs share the eight digits that name their folder.
    """
    found = {cell for e in experiments for row in e.rows for cell in row_cells(e, row)}
    specs: dict[tuple[str, str], str] = {}
    for cell in sorted(found):
        if specs.setdefault((cell.testbed, cell.hash[:8]), cell.spec_json) != cell.spec_json:
            raise UserError(
                f"testbed {cell.testbed}: two different specs share the short hash {cell.hash[:8]}; "
                "change any switch of one of them."
            )
    return sorted(found)
