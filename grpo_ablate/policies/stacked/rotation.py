"""Rotary position embeddings as unit complex numbers (Su et al., "RoFormer", 2021, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture


def rotations(architecture: Architecture, positions: int, device: torch.device) -> Tensor:
    """Return the factors of every position, complex64 [positions, heads + kv heads, D/2].

    Those of the queries carry the scale of attention, 1/sqrt(D), as well.
    """
    settings = architecture.settings
    size = settings.head_size
    frequency = settings.rope_theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
    scale = torch.ones(settings.heads + settings.kv_heads, 1, dtype=torch.float64)
    scale[: settings.heads] = size**-0.5
    return (turn * scale).to(torch.complex64).to(device)


def rotate_(projected: Tensor, turn: Tensor) -> None:
    """Rotate the first I heads of ``projected`` [..., J, D] in place by ``turn`` complex [..., I, D/2]."""
    heads = projected[..., : turn.shape[-2], :]
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turn)
