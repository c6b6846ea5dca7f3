"""Log-probabilities, entropies and KL divergences of recorded responses, with gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.policies.stacked import network
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.layout import Layout


@dataclass(frozen=True)
class Law:
    """How logits become the law of the next token (maths: the real sampling law)."""

    temperature: float = 1.0
    support: Tensor | None = None  # bool [C, Q, V]: what could be drawn, as stored; None: everything
    reference: Tensor | None = None  # [C, Q, V], the reference's log-probabilities, for the exact KL


def law_logprobs(logits: Tensor, law: Law) -> Tensor:
    """Return the law's log-probabilities [C, Q, V]; -inf outside the support."""
    if law.temperature != 1:
        logits = logits / law.temperature
    if law.support is not None:
        logits = torch.where(law.support, logits, -torch.inf)
    return logits.log_softmax(-1)


def score(
    flat: Tensor, architecture: Architecture, layout: Layout, law: Law
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-probabilities, entropies and, where there is a reference, exact KL: [C, B, G, S + 1] each.

    Zero where nothing is scored. ``flat`` [C, P] are the parameters.
    """
    logprobs, entropy, divergence = _Score.apply(flat, architecture, layout, law)
    return logprobs, entropy, None if law.reference is None else divergence


@torch.no_grad()
def row_logprobs(flat: Tensor, architecture: Architecture, layout: Layout, law: Law) -> Tensor:
    """Return the law's log-probabilities of every token at each predicting row, [C, Q, V]."""
    logits, _ = network.forward(architecture.views(flat), architecture, layout)
    return law_logprobs(logits, law)


def at_targets(logprobs: Tensor, layout: Layout) -> Tensor:
    """Return the log-probability of each response token [C, B, G, S + 1] from those of the rows [C, Q, V]."""
    chosen = logprobs.view(-1).take(layout.rows * logprobs.shape[-1] + layout.targets)
    return torch.where(layout.scored, chosen, 0.0)


def _mean(probability: Tensor, values: Tensor, support: Tensor | None) -> Tensor:
    """Return the expectation [C, Q] of ``values``; what lies outside the support never enters."""
    if support is not None:
        values = torch.where(support, values, 0.0)
    return (probability * values).sum(-1)


class _Score(torch.autograd.Function):
    """Parameters [C, P] to log-probabilities, entropies and KL of the scored tokens."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, architecture: Architecture, layout: Layout, law: Law
    ) -> tuple[Tensor, ...]:
        parameters = architecture.views(flat)
        logits, tape = network.forward(parameters, architecture, layout)
        logprobs = law_logprobs(logits, law)
        probability = logprobs.exp()
        entropy = _mean(probability, logprobs, law.support).neg_()
        divergence = torch.zeros_like(entropy)
        if law.reference is not None:
            divergence = _mean(probability, logprobs - law.reference, law.support)
        ctx.architecture, ctx.layout, ctx.law, ctx.tape = architecture, layout, law, tape
        ctx.rows = logprobs, probability, entropy, divergence
        ctx.flat = flat
        ctx.set_materialize_grads(False)

        def spread(values: Tensor) -> Tensor:
            return torch.where(layout.scored, values.view(-1).take(layout.rows), 0.0)

        return at_targets(logprobs, layout), spread(entropy), spread(divergence)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        layout, law = ctx.layout, ctx.law
        logprobs, probability, entropy, divergence = ctx.rows
        of_logprobs, of_entropy, of_divergence = gradients
        logits = torch.zeros_like(logprobs)

        def gathered(values: Tensor) -> Tensor:
            total = torch.zeros_like(entropy)
            total.view(-1).scatter_add_(0, layout.rows.flatten(), values.flatten())
            return total[..., None]

        if of_logprobs is not None:
            of_logprobs = torch.where(layout.scored, of_logprobs, 0.0)
            logits.addcmul_(probability, gathered(of_logprobs), value=-1)
            where = layout.rows * logits.shape[-1] + layout.targets
            logits.view(-1).scatter_add_(0, where.flatten(), of_logprobs.flatten())
        for upper, values, mean, sign in (
            (of_entropy, logprobs, -entropy, -1.0),
            (of_divergence, None if law.reference is None else logprobs - law.reference, divergence, 1.0),
        ):
            if upper is None or values is None:
                continue
            # d E_p[v] / d logit_a = p_a (v_a - E_p[v]) where v is log p plus a constant.
            slope = probability * (values - mean[..., None])
            if law.support is not None:
                slope = torch.where(law.support, slope, 0.0)
            logits.addcmul_(slope, gathered(torch.where(layout.scored, upper, 0.0)), value=sign)
        if law.temperature != 1:
            logits /= law.temperature
        parameters = ctx.architecture.views(ctx.flat)
        return network.backward(parameters, ctx.architecture, layout, ctx.tape, logits), None, None, None
