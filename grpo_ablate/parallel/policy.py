"""A policy and a task whose costly calls are divided over the processes of a group, group of responses by group.

Every process runs the whole loop on the same numbers: all responses, rewards, advantages and weights. Divided are
only sampling, scoring and the backward pass. What a policy says of a response does not depend on which process
asks it, and a loss is a sum over tokens whose weights were fixed for the whole round. So values and metrics are
those of one process, and the gradients of the shares add up to its gradient, whatever the shares are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from grpo_ablate.algorithm.packing import pack, unpack
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.parallel.group import Group
from grpo_ablate.policies.protocol import Draw, Policy, Samples
from grpo_ablate.runs.checkpoint import digest
from grpo_ablate.tasks.protocol import Scores, Task

if TYPE_CHECKING:
    from grpo_ablate.policies.huggingface.agreement import Agreement

Part = tuple[Tensor, dict[str, Tensor]]  # which groups, bool [M, B], and tensors [M, B, ...] by name


class Divisible(Policy, Protocol):
    """A policy whose gradients can be added up over processes."""

    def gradients(self) -> list[Tensor]:
        """Return the gradients that the next step will use, to be changed in place; zeros where there are none."""
        ...


class DividedPolicy:
    """One policy of which every process holds a copy and works on its share of each round's groups.

    ``share`` tells this process's slots, bool [B], out of B; the shares of all processes are a partition.
    """

    def __init__(self, policy: Divisible, group: Group, share: Callable[[int], Tensor] | None = None):
        self.policy, self.group = policy, group
        self.share = group.share if share is None else share
        # Of a policy whose engine is not its trainer: how far they are apart, over the tokens of all groups.
        self.agreement: Agreement | None = getattr(policy, "agreement", None)

    def sample(
        self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool = False
    ) -> Samples:
        """Draw the responses of this process's groups; return those of all."""
        own, part = wanted & self.share(wanted.shape[1]), None
        before = None if self.agreement is None else self.agreement.sums.clone()
        if bool(own.any()):
            part = own, pack(self.policy.sample(prompts, group_size, draw, wanted=own, kl_exact=kl_exact))
        found = unpack(Samples, merged(self.group.gathered(part)))
        if self.agreement is not None and before is not None:
            self.agreement.sums = before
            self.agreement.add((found.old_logprobs.double() - found.sampler_logprobs.double())[found.token])
        return found

    def logprobs(self, batch: Batch, *, kl_exact: bool = False) -> Says:
        """Return what the policy says of all groups, differentiable for this process's own."""
        if not bool(batch.present.any()):
            return self.policy.logprobs(batch, kl_exact=kl_exact)
        own = self._own(batch)
        if not bool(own.any()):
            return unpack(Says, merged(self.group.gathered(None)))
        says = pack(self.policy.logprobs(_only(batch, own), kl_exact=kl_exact))
        part = own, {name: values.detach() for name, values in says.items()}
        whole = merged(self.group.gathered(part))
        return unpack(Says, {name: torch.where(own[..., None, None], says[name], whole[name]) for name in whole})

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the reference's log-probabilities of all groups."""
        if not bool(batch.present.any()):
            return self.policy.reference_logprobs(batch)
        own, part = self._own(batch), None
        if bool(own.any()):
            part = own, {"values": self.policy.reference_logprobs(_only(batch, own))}
        return merged(self.group.gathered(part))["values"]

    def refresh_reference(self, members: Tensor) -> None:
        """Make the current policy the reference, in every process."""
        self.policy.refresh_reference(members)

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of this process's share of the loss."""
        if loss.requires_grad:
            self.policy.accumulate(loss)

    def step(self, members: Tensor) -> Tensor:
        """Add up the gradients of all processes and take the same step in each."""
        for gradient in self.policy.gradients():
            self.group.add_up(gradient)
        return self.policy.step(members)

    def finite(self) -> Tensor:
        """Return whether all parameters of a member are finite, bool [M]."""
        return self.policy.finite()

    def evaluate(self, samples: int | str, round: int) -> dict[str, Tensor]:
        """Measure the policy in the first process, for all."""
        if self.group.first:
            return self.group.from_first(self.policy.evaluate(samples, round))
        if self.agreement is not None:
            self.agreement.take()
        return self.group.from_first({})

    def agree(self) -> bool:
        """Return whether all processes hold the same parameters, to the bit."""
        return len(set(self.group.gathered(digest(self.parameters())))) == 1

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name."""
        return self.policy.parameters()

    def state(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name."""
        return self.policy.state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self.policy.load(state)

    def _own(self, batch: Batch) -> Tensor:
        """Return this process's groups with a response in them, bool [M, B]."""
        return batch.present.any(-1) & self.share(batch.present.shape[1])


class FirstScores:
    """A task whose verifier runs in the first process: others see its scores, whatever it times or draws."""

    def __init__(self, task: Task, group: Group):
        self.task, self.group = task, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Return the first process's scores."""
        found = self.group.from_first(self.task.score(prompts, tokens, token) if self.group.first else None)
        assert found is not None
        return found


def merged(parts: list[Part | None]) -> dict[str, Tensor]:
    """Return the tensors of every part in its own groups, [M, B, ...]; 0 in groups that no part has.

    Axes after those may be shorter in some parts; they are filled up with 0.
    """
    given = [part for part in parts if part is not None]
    found = {}
    for name in given[0][1] if given else ():
        tensors = [tensors[name] for _, tensors in given]
        shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        found[name] = whole = tensors[0].new_zeros(shape)
        for (own, _), tensor in zip(given, tensors, strict=True):
            target = whole[tuple(slice(size) for size in tensor.shape)]
            target[own] = tensor[own]
    return found


def _only(batch: Batch, groups: Tensor) -> Batch:
    """Return the batch with nothing present outside ``groups`` bool [M, B]."""
    return replace(batch, present=batch.present & groups[..., None])
