"""The floating-point operations that a round needs at least, counted from the real lengths.

Matrix products only (a multiplication and an addition are two operations): norms, softmaxes, embeddings and
the optimiser are left out, and so is all padding. A prompt is counted once per group, however often a program
computes it, and a group of equal rewards, which has no gradient, is not counted in training, so the same
responses count the same whoever works on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grpo_ablate.spec.schema import StackedPolicy


@dataclass(frozen=True)
class TokenCost:
    """Operations of the forward pass of one token."""

    layers: int  # projections and feed-forward of all layers
    per_key: int  # attention, for each position attended to
    head: int  # logits over the vocabulary


def token_cost(policy: StackedPolicy, vocabulary: int) -> TokenCost:
    """Return the cost of one token of a Llama-shaped model.

    >>> token_cost(StackedPolicy(name="stacked"), 49)
    TokenCost(layers=163840, per_key=512, head=6272)
    """
    queries, keys = policy.heads * policy.head_size, policy.kv_heads * policy.head_size
    projections = policy.hidden * (2 * queries + 2 * keys)
    feed_forward = 3 * policy.hidden * policy.intermediate
    return TokenCost(
        layers=2 * policy.layers * (projections + feed_forward),
        per_key=4 * policy.layers * queries,
        head=2 * policy.hidden * vocabulary,
    )


def forward(cost: TokenCost, prompts: Tensor, responses: Tensor) -> float:
    """Return the operations of computing the logits of every response token once.

    ``prompts`` int64 [..., B] and ``responses`` int64 [..., B, G] are lengths. A response's last token is never
    fed, and of a prompt only the last position needs logits.
    """
    prompts, responses = prompts.double(), responses.double()
    fed = (responses - 1).clamp(min=0)
    tokens = prompts.sum() + fed.sum()
    keys = (prompts * (prompts + 1) / 2).sum() + (fed * prompts.unsqueeze(-1) + fed * (fed + 1) / 2).sum()
    logits = prompts.numel() + fed.sum()
    return float(cost.layers * tokens + cost.per_key * keys + cost.head * logits)


def training(forward_operations: float, passes: int) -> float:
    """Return the operations of that many inner passes: the backward pass costs twice the forward pass.

    >>> training(10.0, 2)
    60.0
    """
    return 3.0 * forward_operations * passes
