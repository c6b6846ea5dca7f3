"""The weights that training changes: float32 leaves with a leading axis of one member, beside the module's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.policies.optimizer import StackedOptimizer
from grpo_ablate.spec.schema import Optimizer


class Weights:
    """The trainable parameters of ``model`` and their optimiser.

    A float32 parameter is its own leaf. One of less precision has a float32 leaf, which takes the steps and
    collects the gradients of the microbatches; the parameter is that leaf rounded.
    """

    def __init__(self, model: Any, settings: Optimizer, total_steps: int):
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.parameters = dict(named)
        self.leaves = {name: parameter.detach().float()[None].requires_grad_() for name, parameter in named}
        self.optimizer = StackedOptimizer(list(self.leaves.values()), settings, total_steps)

    def collect(self) -> None:
        """Move the gradients that a backward pass left at the parameters to the leaves."""
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            leaf, gradient = self.leaves[name], parameter.grad.float()[None]
            leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the leaves' gradients, zeros where there are none yet."""
        for leaf in self.leaves.values():
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        return [leaf.grad for leaf in self.leaves.values() if leaf.grad is not None]

    def step(self, members: Tensor) -> Tensor:
        """Take one optimiser step for ``members`` bool [1]; return the gradient norm, float64 [1]."""
        norms = self.optimizer.step(members.to(self.optimizer.steps.device))
        self._round()
        return norms.cpu()

    def finite(self) -> Tensor:
        """Return whether every weight is finite, bool [1]."""
        return torch.stack([leaf.detach().isfinite().all() for leaf in self.leaves.values()]).all()[None].cpu()

    def copies(self) -> dict[str, Tensor]:
        """Return copies of the parameters as the module has them."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @contextmanager
    def replaced(self, others: dict[str, Tensor]) -> Iterator[None]:
        """Let the module compute with other values of its parameters; nothing is copied."""
        own = {name: parameter.data for name, parameter in self.parameters.items()}
        try:
            for name, parameter in self.parameters.items():
                parameter.data = others[name]
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = own[name]

    def state(self) -> dict[str, Tensor]:
        """Return leaves and the optimiser's state by name; after the last step the leaves alone."""
        found = {f"parameters.{name}": leaf.detach().cpu() for name, leaf in self.leaves.items()}
        if int(self.optimizer.steps) >= self.optimizer.total_steps:
            return found
        return found | {f"optimizer.{name}": tensor.cpu() for name, tensor in self.optimizer.state().items()}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        for name, leaf in self.leaves.items():
            leaf.copy_(state[f"parameters.{name}"])
        prefix = "optimizer."
        of_optimizer = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if of_optimizer:
            self.optimizer.load(of_optimizer)
        else:
            self.optimizer.steps.fill_(self.optimizer.total_steps)
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                parameter.copy_(self.leaves[name][0])

    def digests(self) -> dict[str, Tensor]:
        """Return the sha256 of each leaf's bytes, uint8 [1, 32]."""
        return {
            f"{name}.sha256": torch.tensor(list(_sha256(leaf)), dtype=torch.uint8)[None]
            for name, leaf in self.leaves.items()
        }


def _sha256(tensor: Tensor) -> bytes:
    return hashlib.sha256(
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    ).digest()
