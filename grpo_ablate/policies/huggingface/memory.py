"""Failures to get memory, on a GPU and on a CPU, as sentences that name what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from grpo_ablate.errors import UserError

SIGNS = ("allocate memory", "out of memory")  # of a CPU's allocator and of a driver, whose errors have no type


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left.

    >>> out_of_memory(RuntimeError("CUDA error: out of memory")), out_of_memory(RuntimeError("sizes differ"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def within_memory(budget: int, work: str) -> AbstractContextManager[None]:
    """Turn a failure to get memory into a sentence that names the setting to lower."""
    return _saying(
        f"out of memory while {work}: lower policy.microbatch_tokens, which is {budget}, or set "
        "policy.gradient_checkpointing: true; the run continues from its last checkpoint."
    )


def weights_within_memory(model: str) -> AbstractContextManager[None]:
    """Turn a failure to get memory for what training keeps beside a model's weights into a sentence."""
    return _saying(
        f"policy.model: there is no memory for what training keeps beside the weights of '{model}' (float32 "
        "copies, the optimiser's state, the reference of kl.beta): use policy.lora, or a smaller model."
    )


@contextmanager
def _saying(sentence: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise UserError(sentence) from None
