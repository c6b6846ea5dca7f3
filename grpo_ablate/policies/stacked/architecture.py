"""The shape of one member, and its parameters as named pieces of one flat vector.

All parameters of a member lie in one row of a tensor [M, P], so that the optimiser, the gradient norm and a
checkpoint are a handful of operations whatever the number of layers. Matrices map from left to right,
[in, out], the transpose of torch.nn.Linear; queries, keys and values are one matrix, and so are gate and up.

Within a head the two halves that RoPE rotates into each other are interleaved, (0, D/2, 1, D/2 + 1, ...), so
that a rotation is one complex product; dot products of queries and keys do not see the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from grpo_ablate.spec.schema import StackedPolicy


@dataclass(frozen=True)
class Architecture:
    """The numbers that decide every shape: a policy section and the size of the vocabulary."""

    settings: StackedPolicy
    vocabulary: int

    @cached_property
    def projections(self) -> int:
        """Query, key and value heads together."""
        return self.settings.heads + 2 * self.settings.kv_heads

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Each parameter's shape by name, in the order of the flat vector."""
        settings = self.settings
        hidden, inner, size = settings.hidden, settings.intermediate, settings.head_size
        found: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, hidden)}
        for layer in range(settings.layers):
            found |= {
                f"layers.{layer}.attention_norm": (hidden,),
                f"layers.{layer}.attention_in": (hidden, self.projections * size),
                f"layers.{layer}.attention_out": (settings.heads * size, hidden),
                f"layers.{layer}.mlp_norm": (hidden,),
                f"layers.{layer}.mlp_in": (hidden, 2 * inner),
                f"layers.{layer}.mlp_out": (inner, hidden),
            }
        found["norm"] = (hidden,)
        if not settings.tied:
            found["head"] = (hidden, self.vocabulary)
        return found

    @cached_property
    def size(self) -> int:
        """P, the parameters of one member."""
        return sum(self._sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters [M, ...] by name as views of ``flat`` [M, P]."""
        pieces = flat.split(self._sizes, 1)
        return {
            name: piece if len(shape) == 1 else piece.view(-1, *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    @cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]

    def head(self, parameters: dict[str, Tensor]) -> Tensor:
        """Return the output embeddings [M, H, V]."""
        return parameters["embedding"].transpose(1, 2) if self.settings.tied else parameters["head"]
