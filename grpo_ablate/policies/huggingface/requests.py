"""What is asked of a rollout engine, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from grpo_ablate.policies.protocol import Draw
from grpo_ablate.spec.schema import Sampling


@dataclass(frozen=True)
class Request:
    """N prompts, each to be answered ``samples`` times by chance and ``greedy`` times by the likeliest token."""

    prompts: list[list[int]]
    slots: Tensor  # int64 [N], the place of each prompt in the key of its random numbers
    draw: Draw
    samples: int
    law: Sampling  # temperature, top-k, top-p and the limit
    greedy: int = 0

    @property
    def responses(self) -> int:
        """S, responses to each prompt."""
        return self.samples + self.greedy


@dataclass(frozen=True)
class Drawn:
    """Responses to N prompts, those drawn by chance first; beyond a response's length anything may stand."""

    tokens: Tensor  # int64 [N, S, T]
    length: Tensor  # int64 [N, S], scored tokens
    ended: Tensor  # bool [N, S]; false: stopped by the limit
    logprobs: Tensor  # float32 [N, S, T], under the law drawn from, as the engine computed them
    support: Tensor | None  # uint8 [N, S, T, ceil(V / 8)], see ``packed``; None: not known, or everything

    @property
    def token(self) -> Tensor:
        """Which tokens belong to a response, bool [N, S, T]."""
        return torch.arange(self.tokens.shape[-1]) < self.length[..., None]


class Engine(Protocol):
    """Draws responses from the current weights."""

    def draw(self, request: Request) -> Drawn:
        """Answer a request; equal requests under equal weights have equal answers, as far as the engine can."""
        ...

    def check(self, gaps: Tensor) -> None:
        """Look at how far the trainer's log-probabilities of a round are from the engine's, float64 [n].

        Raises UserError where they say that the engine has other weights than the trainer.
        """
        ...


def packed(support: Tensor) -> Tensor:
    """Return bool [..., V] as bits, uint8 [..., ceil(V / 8)]: supports of large vocabularies are large.

    >>> packed(torch.tensor([True, False, False, True, False, False, False, False, True]))
    tensor([9, 1], dtype=torch.uint8)
    """
    bits = torch.nn.functional.pad(support, (0, -support.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (bits.to(torch.uint8) << _places(support.device)).sum(-1, dtype=torch.uint8)


def unpacked(bits: Tensor, vocabulary: int) -> Tensor:
    """Return what was packed, bool [..., V].

    >>> unpacked(torch.tensor([9, 1], dtype=torch.uint8), 9).nonzero()[:, 0].tolist()
    [0, 3, 8]
    """
    return ((bits[..., None] >> _places(bits.device)) & 1).bool().flatten(-2)[..., :vocabulary]


def cuts(law: Sampling) -> bool:
    """Return whether a law leaves tokens out."""
    return law.top_k != "off" or law.top_p < 1


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
