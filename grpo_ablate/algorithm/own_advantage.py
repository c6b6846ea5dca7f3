"""An advantage function of the user's own, named by dotted path, in place of baseline and scale."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.dotted import load
from grpo_ablate.errors import UserError


def own_advantages(values: Tensor, member: Tensor, path: str) -> Tensor:
    """Return what ``function(rewards, present)`` makes of each member's groups, float64 [M, B, K].

    ``values`` float64 and ``member`` bool, both [M, B, K]. The function gets one member's rewards float64 [B, K],
    NaN where there is none, and which there are, bool [B, K]; what it returns there is the advantage. Members
    never meet in it. Raises UserError where it raises, or returns anything but finite numbers of that shape.
    """
    function = load(path)
    parts = []
    for rewards, present in zip(torch.where(member, values, torch.nan), member, strict=True):
        try:
            found = function(rewards.clone(), present.clone())
        except Exception as error:
            raise UserError(f"advantage.function: '{path}' failed: {type(error).__name__}: {error}.") from None
        if not isinstance(found, Tensor) or found.shape != rewards.shape:
            shape = f"the shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise UserError(
                f"advantage.function: '{path}' returned {shape}, expected a tensor of the rewards' shape "
                f"{list(rewards.shape)}."
            )
        if not found[present].isfinite().all() and rewards[present].isfinite().all():
            raise UserError(f"advantage.function: '{path}' made of finite rewards what is not finite.")
        parts.append(found.detach().to(values))
    return torch.stack(parts)
