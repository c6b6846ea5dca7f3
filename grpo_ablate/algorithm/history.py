"""The lines of a run's record: counters and metrics of each member at each evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COUNTERS = ("updates", "rollouts", "tokens")


@dataclass(frozen=True)
class Line:
    """One evaluation of the members ``members``; the others have no line here."""

    round: int
    members: Tensor  # bool [M]
    counters: Tensor  # int64 [3, M]: optimiser steps, responses and tokens generated so far
    values: dict[str, Tensor]  # metric -> float64 [M]


class History:
    """The lines so far, in the order of their rounds."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def names(self) -> list[str]:
        """Return the metrics that appear in any line, sorted."""
        return sorted({name for line in self.lines for name in line.values})

    def columns(self, seeds: list[int]) -> dict[str, Tensor]:
        """Return the lines as columns: seed, round and counters int64, then the metrics float64.

        Sorted by seed and round. A metric that a line lacks is NaN there.
        """
        present = torch.stack([line.members for line in self.lines]).T  # [M, lines]
        rounds = torch.tensor([line.round for line in self.lines])
        columns: dict[str, Tensor] = {
            "seed": torch.tensor(seeds)[:, None].expand(present.shape),
            "round": rounds.expand(present.shape),
        }
        counters = torch.stack([line.counters for line in self.lines], -1)  # [3, M, lines]
        columns |= dict(zip(COUNTERS, counters, strict=True))
        columns |= {name: values.T for name, values in self._values().items()}
        return {name: values[present] for name, values in columns.items()}

    def last(self, name: str) -> list[float]:
        """Return each member's number in its last line."""
        values, members = self._values()[name], torch.stack([line.members for line in self.lines])
        index = torch.arange(len(self.lines))[:, None].where(members, -1).amax(0)
        return values.gather(0, index[None])[0].tolist()

    def state(self) -> dict[str, Tensor]:
        """Return the lines as tensors."""
        return {
            "round": torch.tensor([line.round for line in self.lines], dtype=torch.int64),
            "members": torch.stack([line.members for line in self.lines]),
            "counters": torch.stack([line.counters for line in self.lines]),
            **{f"value.{name}": values for name, values in self._values().items()},
            **{
                f"named.{name}": torch.tensor([name in line.values for line in self.lines])
                for name in self.names()
            },
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        names = [name.removeprefix("value.") for name in state if name.startswith("value.")]
        self.lines = [
            Line(
                int(round),
                state["members"][index],
                state["counters"][index],
                {name: state[f"value.{name}"][index] for name in names if state[f"named.{name}"][index]},
            )
            for index, round in enumerate(state["round"])
        ]

    def _values(self) -> dict[str, Tensor]:
        """Return every metric as float64 [lines, M], NaN in lines without it."""
        missing = torch.full((len(self.lines[0].members),), torch.nan, dtype=torch.float64)
        return {
            name: torch.stack([line.values.get(name, missing) for line in self.lines]) for name in self.names()
        }
