"""How far the engine's log-probabilities are from the trainer's, in every round and after every load of weights.

With d = log(trainer / engine) at a sampled token, w = e^d is what an unbiased update multiplies by (Yao et al.
2025). Over the tokens since the last evaluation: the mean and the largest |d|, the effective sample size (sum w)^2
/ (n sum w^2), and KL(engine, trainer) by the estimate w - 1 - d (Schulman 2020), which no sample makes negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.errors import UserError

NAMES = {
    "mean": "train/engine_gap",
    "max": "train/engine_gap_max",
    "effective": "train/engine_sample_size",
    "kl": "train/engine_kl",
}
TOLERANCE = {"float32": 3e-4, "bfloat16": 0.1}  # mean |d|; measured on CPUs: mostly below 1e-5, and some .01


class Agreement:
    """Sums of d over the tokens of rounds, until ``take`` closes them."""

    def __init__(self) -> None:
        self.sums = torch.zeros(6, dtype=torch.float64)  # n, |d|, largest |d|, w, w^2, w - 1 - d

    def add(self, gaps: Tensor) -> None:
        """Note the gaps float64 [n] of a round's tokens."""
        if gaps.numel():
            ratio, size = gaps.exp(), gaps.abs()
            largest = torch.maximum(self.sums[2], size.max())
            self.sums += torch.stack(
                [
                    torch.ones_like(gaps).sum(),
                    size.sum(),
                    torch.zeros_like(largest),
                    ratio.sum(),
                    ratio.square().sum(),
                    (torch.expm1(gaps) - gaps).sum(),
                ]
            )
            self.sums[2] = largest

    def take(self) -> dict[str, Tensor]:
        """Return the metrics, float64 [1] each, and start anew; empty where there was no round."""
        count, size, largest, ratio, square, kl = self.sums.clone()
        if count == 0:
            return {}
        self.sums = torch.zeros_like(self.sums)
        found = {"mean": size / count, "max": largest, "effective": ratio**2 / (count * square), "kl": kl / count}
        return {NAMES[name]: value[None] for name, value in found.items()}


def check_agreement(gaps: Tensor, tolerance: float, engine: str, reason: str) -> None:
    """Raise UserError where an engine's first round with new weights says that it draws from another law.

    ``gaps`` float64 [n] are those of its tokens; ``reason`` is what may be the matter.
    """
    gap = float(gaps.abs().mean()) if gaps.numel() else 0.0
    if not gap <= tolerance:
        raise UserError(
            f"sampling.engine {engine}: its log-probabilities differ from the trainer's by {gap:.3g} on average, "
            f"where {tolerance:g} is allowed: {reason}."
        )
