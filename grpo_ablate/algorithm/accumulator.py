"""Metrics summed over the rounds between two evaluations and divided once, per member."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Metric
from grpo_ablate.metrics import meaning_of

START = {"largest": -torch.inf, "smallest": torch.inf}


class Accumulator:
    """The running sums and extremes of one fixed set of metrics for M members.

    All metrics are rows of one matrix, since runs of tiny policies would spend their time on single sums.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.edges = (0, 0)  # rows: sums, then largest, then smallest
        self.total = self.count = self.start = torch.empty(0, 0, dtype=torch.float64)

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Add one round's or one step's metrics; every call brings the same names."""
        names = self.names or sorted(metrics)
        chosen = [metrics[name] for name in names]
        self.add_rows(
            names,
            torch.stack([metric.total for metric in chosen]),
            torch.stack([metric.count for metric in chosen]),
        )

    def add_rows(self, names: list[str], total: Tensor, count: Tensor) -> None:
        """Add numerators and denominators float64 [K, M] of the K metrics ``names``."""
        if not self.names:
            self._begin(sorted(names), total.shape[1])
        if names != self.names:
            order = [names.index(name) for name in self.names]
            total, count = total[order], count[order]
        self.count += count
        sums, largest = self.edges
        self.total[:sums] += total[:sums]
        if largest > sums:
            rows = self.total[sums:largest]
            torch.maximum(rows, total[sums:largest], out=rows)
        if len(self.names) > largest:
            rows = self.total[largest:]
            torch.minimum(rows, total[largest:], out=rows)

    def take(self, members: Tensor) -> dict[str, Metric]:
        """Return what has been summed, and start anew for ``members`` bool [M]."""
        rows = zip(self.names, self.total, self.count, strict=True)
        found = {name: Metric(total, count) for name, total, count in rows}
        if self.names:
            self.total = torch.where(members, self.start, self.total)
            self.count = torch.where(members, 0.0, self.count)
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the sums by name: ``<metric>`` [2, M], numerator and denominator."""
        both = torch.stack([self.total, self.count], 1)
        return {name: both[row] for row, name in enumerate(self.names)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        if state:
            self._begin(sorted(state), next(iter(state.values())).shape[1])
            self.total = torch.stack([state[name][0] for name in self.names])
            self.count = torch.stack([state[name][1] for name in self.names])

    def _begin(self, names: list[str], members: int) -> None:
        def kind(name: str) -> str:
            finish = meaning_of(name).finish
            return finish if finish in START else ""

        groups = [[name for name in names if kind(name) == wanted] for wanted in ("", "largest", "smallest")]
        self.names = [name for group in groups for name in group]
        self.edges = (len(groups[0]), len(groups[0]) + len(groups[1]))
        start = torch.tensor([START.get(kind(name), 0.0) for name in self.names], dtype=torch.float64)
        self.start = start[:, None].expand(-1, members)
        self.total = self.start.clone()
        self.count = torch.zeros_like(self.total)
