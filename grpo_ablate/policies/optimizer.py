"""SGD and AdamW on parameters stacked over members, each member with its own step count and gradient norm.

A member that takes no step keeps its parameters, its moments and its count bit by bit. Per member the
results are those of ``torch.optim.SGD`` and ``torch.optim.AdamW`` (Loshchilov and Hutter, "Decoupled
weight decay regularization", 2019, algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_ablate.spec.schema import Optimizer as Settings

ADAM_EPS = 1e-8
LARGE = 1 << 12  # numbers of one member from which a CPU is faster member by member: they fill its cache

SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + torch.cos(math.pi * progress)) / 2,
}


def rate_factor(steps: Tensor, settings: Settings, total_steps: int) -> Tensor:
    """Return what multiplies the learning rate at each member's next step, float64 [M].

    ``steps`` int64 [M] are the steps taken. The warm-up rises over ``warmup`` steps to 1, its first step
    being 1/warmup; then the schedule falls to 0 at ``total_steps``, the steps that the budget pays for
    when nothing is resampled.
    """
    taken = steps.double()
    warmup = settings.warmup
    progress = ((taken - warmup) / max(1, total_steps - warmup)).clamp(0, 1)
    factor = SCHEDULES[settings.schedule](progress)
    return torch.where(taken < warmup, (taken + 1) / max(1, warmup), factor)


class StackedOptimizer:
    """One optimiser step for M members at once.

    ``parameters`` are leaf tensors [M, ...] that require gradients; they are changed in place.
    """

    def __init__(self, parameters: Sequence[Tensor], settings: Settings, total_steps: int):
        self.parameters = list(parameters)
        self.settings = settings
        self.total_steps = total_steps
        members, device = len(self.parameters[0]), self.parameters[0].device
        self.steps = torch.zeros(members, dtype=torch.int64, device=device)
        self.moments: list[tuple[Tensor, Tensor]] = []
        if settings.name == "adamw":
            self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        size = sum(p[0].numel() for p in self.parameters)
        self.by_member = device.type == "cpu" and size >= LARGE

    @torch.no_grad()
    def step(self, active: Tensor) -> Tensor:
        """Step the members of ``active`` bool [M] along minus their gradients, and clear all gradients.

        Returns the gradient norms before clipping, float64 [M].
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        if self.by_member:
            norms = self._step_by_member(gradients, active)
            self.steps += active
            return norms
        norms = gradient_norms(gradients)
        if self.settings.max_grad_norm != "off":
            # As torch.nn.utils.clip_grad_norm_, whose 1e-6 keeps a zero norm harmless.
            factor = (self.settings.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            gradients = [gradient * _along(factor, gradient) for gradient in gradients]
        UPDATES[self.settings.name](self, gradients, self.rate(), None if active.all() else active)
        self.steps += active
        return norms

    def _step_by_member(self, gradients: list[Tensor], active: Tensor) -> Tensor:
        """Step one member after the other in as few passes over its numbers as there can be."""
        rates = torch.as_tensor(self.rate(), dtype=torch.float64).expand(len(active)).tolist()
        update, norms = MEMBER_UPDATES[self.settings.name], []
        for member, rate in enumerate(rates):
            own = [gradient[member] for gradient in gradients]
            parts = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in own]
            norms.append(parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts)))
            if not active[member]:
                continue
            if self.settings.max_grad_norm != "off":
                factor = (self.settings.max_grad_norm / (norms[-1] + 1e-6)).clamp(max=1.0).item()
                own = [gradient * factor for gradient in own]
            update(self, member, own, rate)
        return torch.stack(norms)

    def rate(self) -> Tensor | float:
        """Return the learning rate of each member's next step, float64 [M], or one number for all."""
        if self.settings.schedule == "constant" and not self.settings.warmup:
            return self.settings.learning_rate
        return self.settings.learning_rate * rate_factor(self.steps, self.settings, self.total_steps)

    def state(self) -> dict[str, Tensor]:
        """Return the step counts and the moments by name."""
        found = {"steps": self.steps}
        for index, (first, second) in enumerate(self.moments):
            found |= {f"first.{index}": first, f"second.{index}": second}
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Take the step counts and the moments from ``state``."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


def sgd(optimizer: StackedOptimizer, gradients: list[Tensor], rate: Tensor | float, active: Tensor | None) -> None:
    """theta <- theta - rate (g + decay theta), for the ``active`` members (None: all)."""
    decay = optimizer.settings.weight_decay
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        if decay:
            gradient = gradient.add(parameter, alpha=decay)
        _assign(parameter, parameter - _along(rate, parameter) * gradient, active)


def adamw(
    optimizer: StackedOptimizer, gradients: list[Tensor], rate: Tensor | float, active: Tensor | None
) -> None:
    """Adam with decoupled weight decay and bias correction, for the ``active`` members (None: all)."""
    beta1, beta2 = optimizer.settings.betas
    count = (optimizer.steps + 1).double()
    step_size = rate / _bias(beta1, count)
    root = _bias(beta2, count).sqrt()
    for parameter, gradient, (first, second) in zip(
        optimizer.parameters, gradients, optimizer.moments, strict=True
    ):
        new_first = first * beta1 + gradient * (1 - beta1)
        new_second = second * beta2 + gradient * gradient * (1 - beta2)
        _assign(first, new_first, active)
        _assign(second, new_second, active)
        kept = parameter * (1 - _along(rate, parameter) * optimizer.settings.weight_decay)
        denominator = new_second.sqrt() / _along(root, parameter) + ADAM_EPS
        _assign(parameter, kept - _along(step_size, parameter) * new_first / denominator, active)


UPDATES = {"sgd": sgd, "adamw": adamw}


def sgd_of_member(optimizer: StackedOptimizer, member: int, gradients: list[Tensor], rate: float) -> None:
    """:func:`sgd` of one member, in place."""
    decay = optimizer.settings.weight_decay
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        if decay:
            gradient = gradient.add(parameter[member], alpha=decay)
        parameter[member].sub_(gradient, alpha=rate)


def adamw_of_member(optimizer: StackedOptimizer, member: int, gradients: list[Tensor], rate: float) -> None:
    """:func:`adamw` of one member by the kernel behind ``torch.optim.AdamW(fused=True)``."""
    beta1, beta2 = optimizer.settings.betas
    count = (optimizer.steps[member] + 1).float()
    torch._fused_adamw_(
        [parameter[member] for parameter in optimizer.parameters],
        gradients,
        [first[member] for first, _ in optimizer.moments],
        [second[member] for _, second in optimizer.moments],
        [],
        [count] * len(gradients),
        lr=rate,
        beta1=beta1,
        beta2=beta2,
        weight_decay=optimizer.settings.weight_decay,
        eps=ADAM_EPS,
        amsgrad=False,
        maximize=False,
    )


MEMBER_UPDATES = {"sgd": sgd_of_member, "adamw": adamw_of_member}


def _bias(beta: float, count: Tensor) -> Tensor:
    """Return 1 - beta ** count, float64 [M].

    By expm1: torch rounds a power by a number's place in the tensor, and so by the other members.
    """
    return -torch.expm1(count * (math.log(beta) if beta > 0 else -math.inf))


def gradient_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each member's gradient over all parameters, float64 [M]."""
    squares = [gradient.double().square().flatten(1).sum(-1) for gradient in gradients]
    return (squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)).sqrt()


def _along(value: Tensor | float, parameter: Tensor) -> Tensor | float:
    """Shape a per-member number [M] to broadcast against a parameter [M, ...]."""
    if not isinstance(value, Tensor):
        return value
    return value.reshape(-1, *(1 for _ in parameter.shape[1:])).to(parameter.dtype)


def _assign(target: Tensor, value: Tensor, active: Tensor | None) -> None:
    if active is None:
        target.copy_(value)
    else:
        target.copy_(torch.where(active.reshape(-1, *(1 for _ in target.shape[1:])), value, target))
