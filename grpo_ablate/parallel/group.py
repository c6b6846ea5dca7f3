"""The processes that train one run together, and what they tell each other; torch is imported only where needed.

Every value that one process hands to another passes through here. Sums are taken in the same order everywhere, so
that all processes see the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")
# What torchrun tells each process that it starts.
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# A process may wait for another's evaluation; one that died is noticed by its closed connection.
PATIENCE = timedelta(hours=12)
# Between the first process that has its gradients and the last: a GPU notices nothing.
BACKWARD = timedelta(hours=1)


@dataclass(frozen=True)
class Group:
    """This process's place among those that train one run: alone, unless torchrun started it."""

    rank: int = 0
    count: int = 1
    gpus: Any = None  # torch's group for tensors that lie there

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, slots: int) -> Tensor:
        """Return which of a round's group slots are this process's, bool [slots]: every ``count``-th."""
        import torch

        return torch.arange(slots) % self.count == self.rank

    def gathered(self, value: Value) -> list[Value]:
        """Return every process's value, in the order of the processes. All of them must call it."""
        if self.count == 1:
            return [value]
        import torch.distributed as distributed

        found: list[Value | None] = [None] * self.count
        with self._linked():
            distributed.all_gather_object(found, value)
        return found  # type: ignore[return-value]  # all were filled

    def from_first(self, value: Value) -> Value:
        """Return the first process's value. All of them must call it."""
        if self.count == 1:
            return value
        import torch.distributed as distributed

        found = [value]
        with self._linked():
            distributed.broadcast_object_list(found, src=0)
        return found[0]

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all processes; one of 16 bits is summed in float32."""
        if self.count == 1:
            return
        import torch
        import torch.distributed as distributed

        short = tensor.dtype in (torch.bfloat16, torch.float16)
        total = tensor.float() if short else tensor
        with self._linked():
            distributed.all_reduce(total, group=self.gpus if total.is_cuda else None)
        if short:
            tensor.copy_(total)

    def meet(self) -> None:
        """Wait until every process is here."""
        self.gathered(None)

    @contextmanager
    def _linked(self) -> Iterator[None]:
        """Turn what torch raises when another process is gone into a UserError."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].strip() or type(error).__name__
            raise UserError(f"process {self.rank + 1} of {self.count} lost the others: {reason[:200]}.") from None


def started_by_torchrun() -> bool:
    """Return whether this process is one of several that torchrun started."""
    return all(name in os.environ for name in TOLD) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def joined() -> Iterator[Group]:
    """Join the group that torchrun started this process in; without one, be alone in it."""
    if not started_by_torchrun():
        yield Group()
        return
    import torch
    import torch.distributed as distributed

    there = torch.cuda.is_available()
    if there:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        gpus = distributed.new_group(backend="nccl", timeout=BACKWARD) if there else None
        yield Group(distributed.get_rank(), distributed.get_world_size(), gpus)
    finally:
        distributed.destroy_process_group()
