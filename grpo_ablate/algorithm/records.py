"""The records that carry a round's data between the parts of the algorithm.

Axes: M members (seeds side by side), B prompts, G responses per prompt, T response tokens, J steps.
Everything here is a constant of the round: no gradient flows through it. Every statistic is taken
per member from the masks ``present`` and ``token``, never from a tensor's shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Process supervision: scores at the last token of reasoning steps (DeepSeekMath, 4.1.3)."""

    end: Tensor  # int64 [M, B, G, J], 0-based position in the response, inclusive
    score: Tensor  # float64 [M, B, G, J]
    present: Tensor  # bool [M, B, G, J]


@dataclass(frozen=True)
class Batch:
    """Groups of responses as sampled and scored."""

    prompts: Tensor  # int64 [M, B], index into the task's prompt pool
    tokens: Tensor  # int64 [M, B, G, T]
    token: Tensor  # bool [M, B, G, T]: scored token (end token included, padding excluded)
    present: Tensor  # bool [M, B, G]: the response exists, its group was accepted
    truncated: Tensor  # bool [M, B, G]: stopped by the limit instead of an end token
    reward: Tensor  # float64 [M, B, G], raw task reward; NaN where missing
    components: dict[str, Tensor]  # name -> float64 [M, B, G], raw
    sampler_logprobs: Tensor  # [M, B, G, T], under the law the tokens were really drawn from
    old_logprobs: Tensor  # [M, B, G, T], the trainer's log-probabilities under that law
    reference_logprobs: Tensor | None = None  # [M, B, G, T]
    old_kl_exact: Tensor | None = None  # [M, B, G, T], exact KL(old, reference) at each prefix
    steps: Steps | None = None
    support: Tensor | None = None  # [M, B, ...], what could be drawn, as stored at sampling; None: everything


@dataclass(frozen=True)
class RewardDraws:
    """The random numbers that reward transforms may use, drawn by key before the round."""

    normal: Tensor  # float64 [M, B, G], standard normal
    uniform: Tensor  # float64 [M, B, G], in [0, 1)
    prompt_uniform: Tensor  # float64 [M, B, 2], in [0, 1); a function of (member, prompt), not of the round


@dataclass(frozen=True)
class Prepared:
    """What step 3 of the algorithm fixes before any optimiser step (maths: one round)."""

    shaped: Tensor  # float64 [M, B, G], the rewards that entered the statistics; NaN where missing
    advantages: Tensor  # float64 [M, B, G, T], 0 where a token is not scored
    weights: Tensor  # float64 [M, B, G, T], the reduction's weight per token, 0 where not trained
    mismatch: Tensor  # float64 [M, B, G, T], factor on the policy term for engine mismatch, else 1


@dataclass(frozen=True)
class Policy:
    """What the policy says now about the recorded responses; gradients flow through it."""

    logprobs: Tensor  # [M, B, G, T], under the law of the batch
    entropy: Tensor | None = None  # [M, B, G, T], exact entropy at each prefix
    kl_exact: Tensor | None = None  # [M, B, G, T], exact KL(policy, reference) at each prefix


@dataclass(frozen=True)
class Metric:
    """A quantity as numerator and denominator, summed over rounds and divided once."""

    total: Tensor  # float64 [M]; for an extreme, the extreme itself
    count: Tensor  # float64 [M]; for an extreme, unused


@dataclass(frozen=True)
class Loss:
    """The loss of one optimiser step and the metrics made on the way."""

    loss: Tensor  # [M] = policy + kl + entropy parts, to be MINIMISED
    policy: Tensor  # [M]
    kl: Tensor  # [M], beta times the weighted penalty
    entropy: Tensor  # [M], minus coefficient times the weighted entropy
    objective: Tensor  # [M, B, G, T], f of each token
    ratio: Tensor  # [M, B, G, T] (a sequence ratio repeats)
    clipped_high: Tensor  # bool [M, B, G, T]: the upper clip branch is active
    clipped_low: Tensor  # bool [M, B, G, T]
    clipped_dual: Tensor  # bool [M, B, G, T]: held by dual clip
    kl_values: Tensor  # [M, B, G, T], the estimator's value, 0 where there is no reference
    metrics: dict[str, Metric]
