"""The per-token objectives f, to be maximised: one pure function each, all with the same signature.

Every surrogate hands its values to the same reduction. The flags of active clips are made where the value is
made, so that a clip fraction cannot drift from the loss it describes.

A ratio of log-probabilities some 710 apart overflows. Where f does not depend on it, its gradient is 0 all the
same: such a token gets its log-ratio detached before ``exp``, whose backward pass would make 0 times inf, NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.spec.schema import Off, Update


@dataclass(frozen=True)
class Inputs:
    """What a surrogate sees, [M, B, G, T], with finite values under the mask."""

    logprobs: Tensor  # log pi, carries the gradient
    log_ratio: Tensor  # log u = log pi - log pi_old, after ``log_ratio_clamp``
    clamped: Tensor | None  # bool: ``log_ratio_clamp`` acts here; None when it is off
    advantages: Tensor  # float64, constant
    scored: Tensor  # bool: the tokens of the response
    silent: Tensor | None = None  # bool: the mismatch factor takes f out of the loss here; None: nowhere


@dataclass(frozen=True)
class Outputs:
    """The objective and what became of it on the way, [M, B, G, T]."""

    objective: Tensor  # f, carries the gradient
    ratio: Tensor  # u before any clip; a sequence ratio repeats over its tokens
    high: Tensor  # bool: held at the upper bound
    low: Tensor  # bool: held at the lower bound
    dual: Tensor  # bool: held by dual clip
    flat: Tensor  # bool: f has no gradient in this token's log-probability


Surrogate = Callable[[Inputs, Update], Outputs]


def _nowhere(inputs: Inputs) -> Tensor:
    return torch.zeros_like(inputs.scored)


def _with_clamp(flat: Tensor, inputs: Inputs) -> Tensor:
    return flat if inputs.clamped is None else flat | inputs.clamped


def _weighed(log_ratio: Tensor, inputs: Inputs, flat: Tensor) -> Tensor:
    """Return u A; no gradient where ``flat`` (bool), A is 0 or the token is silent, however large u is."""
    zero = inputs.advantages == 0
    still = flat | zero if inputs.silent is None else flat | zero | inputs.silent
    ratio = torch.where(still, log_ratio.detach(), log_ratio).exp()
    return torch.where(zero, inputs.advantages, ratio * inputs.advantages)


def _clipped(log_ratio: Tensor, inputs: Inputs, update: Update, dual_clip: float | Off = "off") -> Outputs:
    """min(u A, clip(u, 1 - lo, 1 + hi) A), then max(that, c A) for A < 0, written by the branch that is active."""
    ratio = log_ratio.detach().exp()
    high = low = dual = _nowhere(inputs)
    if update.clip_high != "off":
        high = (inputs.advantages > 0) & (ratio > 1.0 + update.clip_high)
    if update.clip_low != "off":
        low = (inputs.advantages < 0) & (ratio < 1.0 - update.clip_low)
    if dual_clip != "off":
        dual = (inputs.advantages < 0) & (ratio > dual_clip)
    flat = high | low | dual
    objective = _weighed(log_ratio, inputs, flat)
    if update.clip_high != "off":
        objective = torch.where(high, (1.0 + update.clip_high) * inputs.advantages, objective)
    if update.clip_low != "off":
        objective = torch.where(low, (1.0 - update.clip_low) * inputs.advantages, objective)
    if dual_clip != "off":
        objective = torch.where(dual, dual_clip * inputs.advantages, objective)
    return Outputs(objective, ratio, high, low, dual, _with_clamp(flat, inputs))


def _response_mean(values: Tensor, scored: Tensor) -> Tensor:
    """Return the mean over the scored tokens of each response, repeated over them, [M, B, G, T]."""
    length = scored.sum(-1, keepdim=True, dtype=torch.float64).clamp(min=1.0)
    return (torch.where(scored, values, 0.0).sum(-1, keepdim=True) / length).expand(values.shape)


def clip(inputs: Inputs, update: Update) -> Outputs:
    """min(u A, clip(u, 1 - lo, 1 + hi) A) (Schulman et al. 2017, PPO, equation 7); both bounds off: u A.

    Bounds that differ are DAPO's clip-higher. Under dual clip (Ye et al. 2020), max(that, c A) for A < 0.
    """
    return _clipped(inputs.log_ratio, inputs, update, update.dual_clip)


def reinforce(inputs: Inputs, update: Update) -> Outputs:
    """A log pi, without a ratio (Williams 1992)."""
    nowhere = _nowhere(inputs)
    ratio = inputs.log_ratio.detach().exp()
    return Outputs(inputs.advantages * inputs.logprobs, ratio, nowhere, nowhere, nowhere, nowhere)


def cispo(inputs: Inputs, update: Update) -> Outputs:
    """stopgrad(clip(u, 1 - lo, 1 + hi)) A log pi (MiniMax 2025, MiniMax-M1, section 3.1).

    The clip holds the weight, whatever the sign of A, and leaves the gradient of log pi alive. The flags say where
    the weight is held and A is not 0.
    """
    ratio = inputs.log_ratio.detach().exp()
    weight, acts = ratio, inputs.advantages != 0
    high = low = nowhere = _nowhere(inputs)
    if update.clip_high != "off":
        high = acts & (ratio > 1.0 + update.clip_high)
        weight = weight.clamp(max=1.0 + update.clip_high)
    if update.clip_low != "off":
        low = acts & (ratio < 1.0 - update.clip_low)
        weight = weight.clamp(min=1.0 - update.clip_low)
    weight = torch.where(acts, weight, 0.0)
    logprobs = inputs.logprobs
    if inputs.silent is not None:
        logprobs = torch.where(inputs.silent, logprobs.detach(), logprobs)
    return Outputs(weight * inputs.advantages * logprobs, ratio, high, low, nowhere, weight == 0)


def sequence(inputs: Inputs, update: Update) -> Outputs:
    """The clip objective of s = (product of u)^(1/L), one value per response (Zheng et al. 2025, GSPO)."""
    return _clipped(_response_mean(inputs.log_ratio, inputs.scored), inputs, update)


def geometric(inputs: Inputs, update: Update) -> Outputs:
    """A exp(mean of log u), log u held token by token: above at ``clip_high`` for A > 0, below at ``-clip_low``
    for A < 0, both on the log scale (Zhao et al. 2025, GMPO)."""
    held = inputs.log_ratio
    high = low = nowhere = _nowhere(inputs)
    if update.clip_high != "off":
        high = (inputs.advantages > 0) & (inputs.log_ratio > update.clip_high)
        held = torch.where(high, update.clip_high, held)
    if update.clip_low != "off":
        low = (inputs.advantages < 0) & (inputs.log_ratio < -update.clip_low)
        held = torch.where(low, -update.clip_low, held)
    objective = _weighed(_response_mean(held, inputs.scored), inputs, nowhere)
    ratio = _response_mean(inputs.log_ratio.detach(), inputs.scored).exp()
    return Outputs(objective, ratio, high, low, nowhere, _with_clamp(high | low, inputs))


def soft(inputs: Inputs, update: Update) -> Outputs:
    """A (4 / tau) sigmoid(tau (u - 1)), tau by the sign of A: a gate, no plateau (Gao et al. 2025, SAPO).

    The gradient falls as u exp(-tau u) and is 0 where u overflows.
    """
    ratio = inputs.log_ratio.detach().exp()
    endless = ratio.isinf()
    tau = torch.full_like(ratio, update.tau_neg).masked_fill(inputs.advantages > 0, update.tau_pos)
    excess = tau * (torch.where(endless, inputs.log_ratio.detach(), inputs.log_ratio).exp() - 1.0)
    # Not torch.sigmoid, which rounds a number by its place in the tensor, and so by the other members.
    gate = 1.0 / (1.0 + (-excess).clamp(max=700.0).exp())
    objective = inputs.advantages * (4.0 / tau) * gate
    nowhere = _nowhere(inputs)
    return Outputs(objective, ratio, nowhere, nowhere, nowhere, _with_clamp(endless, inputs))


SURROGATES: dict[str, Surrogate] = {
    "clip": clip,
    "reinforce": reinforce,
    "cispo": cispo,
    "sequence": sequence,
    "geometric": geometric,
    "soft": soft,
}
