"""The metrics of rounds, computed for several rounds at once where the rounds are tiny."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from grpo_ablate.algorithm.accumulator import Accumulator
from grpo_ablate.algorithm.objective import round_metrics
from grpo_ablate.algorithm.packing import pack, unpack
from grpo_ablate.algorithm.records import Batch, Metric, Prepared
from grpo_ablate.spec.schema import Switches

Record = TypeVar("Record")
LIMIT = 1 << 16  # tokens that may wait; a round of a language model never does


class RoundSums:
    """Running sums of ``round_metrics``.

    Rounds wait until their sums are asked for, and are then measured side by side, as if they were
    further members; they are added one after the other, so that the sums do not depend on how many
    waited together.
    """

    def __init__(self, switches: Switches):
        self.switches = switches
        self.sums = Accumulator()
        self.waiting: list[tuple[Batch, Prepared, Batch]] = []

    def add(self, batch: Batch, prepared: Prepared, generated: Batch) -> None:
        """Note a round: its accepted groups, what was fixed for them, and all that was generated."""
        self.waiting.append((batch, prepared, generated))
        if len(self.waiting) * generated.token.numel() >= LIMIT:
            self.settle()

    def settle(self) -> None:
        """Measure the rounds that wait."""
        if not self.waiting:
            return
        rounds, members = len(self.waiting), len(self.waiting[0][0].prompts)
        batches, prepared, generated = zip(*self.waiting, strict=True)
        self.waiting = []
        found = round_metrics(
            _stacked(Batch, batches), _stacked(Prepared, prepared), _stacked(Batch, generated), self.switches
        )
        names = sorted(found)
        totals = torch.stack([found[name].total for name in names]).view(-1, rounds, members)
        counts = torch.stack([found[name].count for name in names]).view(-1, rounds, members)
        for total, count in zip(totals.unbind(1), counts.unbind(1), strict=True):
            self.sums.add_rows(names, total, count)

    def take(self, members: Tensor) -> dict[str, Metric]:
        """Return what has been summed, and start anew for ``members`` bool [M]."""
        self.settle()
        return self.sums.take(members)

    def state(self) -> dict[str, Tensor]:
        """Return the sums by name."""
        self.settle()
        return self.sums.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self.sums.load(state)


def _stacked(kind: type[Record], records: tuple[Record, ...]) -> Record:
    """Return records of M members each as one of all their members, [rounds M, ...]."""
    if len(records) == 1:
        return records[0]
    packed = [pack(record) for record in records]
    return unpack(kind, {name: torch.cat([part[name] for part in packed]) for name in packed[0]})
