"""What the training loop asks of a policy; the loop knows nothing else of it.

A policy holds M members side by side and keeps them independent: whatever one member samples, learns
or fails at changes no bit of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.rng import Purpose


@dataclass(frozen=True)
class Draw:
    """The key of a call that draws responses: same key, same random numbers."""

    purpose: Purpose
    round: int
    attempt: int = 0


@dataclass(frozen=True)
class Samples:
    """Responses and what the policy knew of them when it drew them."""

    tokens: Tensor  # int64 [M, B, G, T]
    token: Tensor  # bool [M, B, G, T]: scored token
    truncated: Tensor  # bool [M, B, G]: stopped by the limit
    sampler_logprobs: Tensor  # [M, B, G, T], under the law really drawn from
    old_logprobs: Tensor  # [M, B, G, T], the trainer's under the same law
    old_kl_exact: Tensor | None  # [M, B, G, T] where asked: KL(policy, reference) at each prefix
    support: Tensor | None  # [M, B, ...] as the policy keeps it: what top-k and top-p left; None: everything


class Policy(Protocol):
    """M members of one architecture and their optimiser."""

    def sample(
        self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool = False
    ) -> Samples:
        """Draw ``group_size`` responses to each of ``prompts`` int64 [M, B] under the sampling law.

        Groups outside ``wanted`` bool [M, B] are never read and may hold anything.
        """
        ...

    def logprobs(self, batch: Batch, *, kl_exact: bool = False) -> Says:
        """Return differentiable log-probabilities of the batch's responses under its law, and the entropy."""
        ...

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the reference's log-probabilities [M, B, G, T] under the same law, without gradient."""
        ...

    def refresh_reference(self, members: Tensor) -> None:
        """Make the current policy the reference of ``members`` bool [M]."""
        ...

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of each member's loss [M] to what the next step will use."""
        ...

    def step(self, members: Tensor) -> Tensor:
        """Take one optimiser step for ``members`` bool [M]; return the gradient norms, float64 [M]."""
        ...

    def finite(self) -> Tensor:
        """Return whether all parameters of a member are finite, bool [M]."""
        ...

    def evaluate(self, samples: int | str, round: int) -> dict[str, Tensor]:
        """Measure the policy itself (temperature 1, full support): name -> float64 [M].

        ``samples`` responses per held-out prompt, or the expectation in closed form for ``exact``.
        """
        ...

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name, each [M, ...]."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        ...
