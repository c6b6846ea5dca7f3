"""The loss of a round: what is fixed before the first step, a minibatch of it, and one step's loss.

The order of this file is the order of the algorithm: :func:`prepare` once per round over the accepted groups,
:func:`minibatch` to gather whole groups, :func:`loss` for each optimiser step.
"""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from grpo_ablate.algorithm import kl as kl_terms
from grpo_ablate.algorithm import mismatch, reductions, rewards
from grpo_ablate.algorithm.advantages import advantages
from grpo_ablate.algorithm.membership import members
from grpo_ablate.algorithm.monitoring import round_metrics, step_metrics
from grpo_ablate.algorithm.records import Batch, Loss, Policy, Prepared, RewardDraws, Steps
from grpo_ablate.algorithm.surrogates import SURROGATES, Inputs
from grpo_ablate.spec.schema import Switches

__all__ = ["loss", "minibatch", "prepare", "round_metrics"]


@torch.no_grad()
def prepare(batch: Batch, switches: Switches, draws: RewardDraws, running_means: Tensor | None = None) -> Prepared:
    """Fix shaped rewards, advantages, token weights and mismatch factors of a round's accepted groups.

    ``running_means`` float64 [M, P] for the ``ema`` baseline. Raises UserError where a switch asks for what the
    batch does not have.
    """
    kl = switches.kl
    shaped = rewards.shape(batch, switches.reward, switches.sampling, kl, draws)
    part = members(batch, shaped, switches)
    advantage = advantages(shaped, part.statistics, batch, switches.advantage, running_means)
    if kl.place == "reward-after" and kl.beta > 0:
        to_go = kl_terms.to_go(kl_terms.old_values(batch, kl))
        advantage = advantage - torch.where(part.trained, kl.beta * to_go, 0.0)
    return Prepared(
        shaped=shaped,
        advantages=advantage,
        weights=reductions.token_weights(
            batch.token, part.counted, part.trained, switches.update, switches.sampling
        ),
        mismatch=mismatch.factor(batch, switches.update),
    )


def _gather(values: Tensor, groups: Tensor) -> Tensor:
    """Return [M, n, ...] from [M, B, ...] by indices int64 [M, n]."""
    member = torch.arange(groups.shape[0], device=groups.device).unsqueeze(-1)
    return values[member, groups]


def minibatch(batch: Batch, prepared: Prepared, groups: Tensor, valid: Tensor) -> tuple[Batch, Prepared]:
    """Gather whole groups per member: ``groups`` int64 [M, n]; where ``valid`` (bool [M, n]) is false, nothing.

    Weights, advantages and factors are those of the round: a minibatch is a part of the round's sum.
    """
    part = Batch(
        **{
            field.name: _gather(value, groups)
            for field in fields(Batch)
            if isinstance(value := getattr(batch, field.name), Tensor)
        },
        components={name: _gather(value, groups) for name, value in batch.components.items()},
        steps=None
        if batch.steps is None
        else Steps(*(_gather(getattr(batch.steps, field.name), groups) for field in fields(Steps))),
    )
    part = replace(part, present=part.present & valid.unsqueeze(-1))
    gathered = Prepared(*(_gather(getattr(prepared, field.name), groups) for field in fields(Prepared)))
    weights = torch.where(valid[..., None, None], gathered.weights, 0.0)
    return part, replace(gathered, weights=weights)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum of weight times value per member, [M]; a value of weight 0 enters neither sum nor gradient."""
    return torch.where(weights != 0, weights * values, 0.0).sum((1, 2, 3))


def _kl_values(batch: Batch, policy: Policy, logprobs: Tensor, scored: Tensor, switches: Switches) -> Tensor:
    """Return the estimator per token, [M, B, G, T]: what the loss uses, or k3 or 0 where it can only be shown."""
    estimator, needed = switches.kl.estimator, switches.kl.beta > 0 and switches.kl.place == "loss"
    if not needed:
        if estimator == "exact" and policy.kl_exact is None:
            estimator = "k3"
        if estimator != "exact" and batch.reference_logprobs is None:
            return torch.zeros_like(logprobs)
    return kl_terms.estimate(estimator, logprobs, batch.reference_logprobs, policy.kl_exact, scored)


def loss(
    batch: Batch, prepared: Prepared, policy: Policy, switches: Switches, factor: float | Tensor = 1.0
) -> Loss:
    """Return the loss of one optimiser step and the metrics made on the way.

    ``factor`` is the number of minibatches (a number or [M]): each step's loss is that many times its part of the
    round's sum, KL and entropy included. Tokens of weight 0 may hold anything, NaN included. Raises ValueError
    when the switches need log-probabilities, entropies or exact KL that were not given.
    """
    update, kl = switches.update, switches.kl
    scored = batch.token & batch.present.unsqueeze(-1)
    trained = prepared.weights != 0
    current = policy.logprobs.double()
    # Scored tokens that do not train keep their value for the record and lose their gradient.
    logprobs = torch.where(trained, current, torch.where(scored, current.detach(), 0.0))
    log_ratio = logprobs - torch.where(scored, batch.old_logprobs.double(), 0.0)
    clamped = None
    if update.log_ratio_clamp != "off":
        clamped = log_ratio.abs() > update.log_ratio_clamp
        log_ratio = log_ratio.clamp(-update.log_ratio_clamp, update.log_ratio_clamp)
    silent = None if update.mismatch == "none" else prepared.mismatch == 0
    inputs = Inputs(logprobs, log_ratio, clamped, prepared.advantages, scored, silent)
    surrogate = SURROGATES[update.surrogate](inputs, update)
    policy_part = -factor * _weighted_sum(prepared.weights * prepared.mismatch, surrogate.objective)

    nothing = torch.zeros_like(policy_part)
    kl_part, kl_values = nothing, _kl_values(batch, policy, logprobs, scored, switches)
    if kl.beta > 0 and kl.place == "loss":
        # The exact KL is already a function of the policy: no other gradient than its own is meant.
        gradient = kl_terms.GRADIENTS["pathwise" if kl.estimator == "exact" else kl.gradient]
        penalty = gradient(kl_values, log_ratio, logprobs)
        kl_part = factor * kl.beta * _weighted_sum(prepared.weights, penalty)

    entropy_part = nothing
    if update.entropy_coefficient != 0:
        if policy.entropy is None:
            raise ValueError("the entropy bonus needs the policy's entropies")
        entropy = torch.where(trained, policy.entropy.double(), 0.0)
        entropy_part = -factor * update.entropy_coefficient * _weighted_sum(prepared.weights, entropy)

    total = policy_part + kl_part + entropy_part
    parts = {
        "train/loss": total,
        "train/policy_loss": policy_part,
        "train/kl_loss": kl_part,
        "train/entropy_loss": entropy_part,
    }
    return Loss(
        loss=total,
        policy=policy_part,
        kl=kl_part,
        entropy=entropy_part,
        objective=surrogate.objective.detach(),
        ratio=surrogate.ratio.detach(),
        clipped_high=surrogate.high & scored,
        clipped_low=surrogate.low & scored,
        clipped_dual=surrogate.dual & scored,
        kl_values=kl_values.detach(),
        metrics=step_metrics(batch, prepared, policy, inputs, surrogate, parts),
    )
