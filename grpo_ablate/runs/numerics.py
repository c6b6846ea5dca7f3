"""How torch computes wherever a record is made."""

from __future__ import annotations

import torch

from grpo_ablate.runs.memory import keep_freed_memory
from grpo_ablate.spec.schema import Spec, StackedPolicy


def settle(spec: Spec) -> None:
    """One thread, since results change with their number; in float32 what is too small for full precision is 0."""
    torch.set_num_threads(1)
    keep_freed_memory()
    # It costs some processors a hundredfold. Python's own numbers follow, so float64 policies are spared.
    torch.set_flush_denormal(isinstance(spec.policy, StackedPolicy))
