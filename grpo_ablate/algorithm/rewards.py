"""From raw rewards to the shaped rewards that enter the group statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_ablate.algorithm.kl import old_values
from grpo_ablate.algorithm.membership import masked
from grpo_ablate.algorithm.records import Batch, RewardDraws
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.schema import Kl, Reward, Sampling

Transform = Callable[[Tensor, Tensor, Reward, RewardDraws], Tensor]


def identity(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """The reward as it is."""
    return raw


def affine(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """``scale * r + shift``, the same for every prompt."""
    return raw * reward.scale + reward.shift


def per_prompt_affine(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """``a_x r + b_x`` with a scale and a shift drawn uniformly for each prompt and kept for the run."""
    scale = reward.scale_low + (reward.scale_high - reward.scale_low) * draws.prompt_uniform[..., :1]
    shift = reward.shift_low + (reward.shift_high - reward.shift_low) * draws.prompt_uniform[..., 1:]
    return raw * scale + shift


def power(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """``r ** power``; a negative reward under a fractional power has no value and is refused."""
    if reward.power != int(reward.power) and bool((raw < 0).any()):
        raise UserError(
            f"reward.power: a negative reward has no power {reward.power:g}; "
            "expected a whole number or rewards of at least 0."
        )
    if reward.power in (0.5, 1.0, 2.0, 3.0):
        return raw**reward.power
    # Other powers torch rounds by a number's place in the tensor, and so by the other members.
    size = (raw.abs().log() * reward.power).exp()
    return torch.where(raw < 0, -size, size) if reward.power % 2 == 1 else size


def clip(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """``r`` held between ``clip_low`` and ``clip_high``."""
    low = -torch.inf if reward.clip_low == "off" else reward.clip_low
    high = torch.inf if reward.clip_high == "off" else reward.clip_high
    return raw.clamp(low, high)


def rank(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """The rank of the reward within its group, 1 for the smallest, ties averaged."""
    mine, others = raw.unsqueeze(-1), raw.unsqueeze(-2)
    present = member.unsqueeze(-2)
    below = ((others < mine) & present).sum(-1)
    equal = ((others == mine) & present).sum(-1)
    return torch.where(raw.isnan(), raw, below.double() + (equal.double() + 1.0) / 2.0)


def noise(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """``r`` plus normal noise of standard deviation ``noise_std``, one draw per response."""
    return raw + reward.noise_std * draws.normal


def constant(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """The same reward for every response: a control without a signal."""
    return torch.where(raw.isnan(), raw, reward.constant)


def random(raw: Tensor, member: Tensor, reward: Reward, draws: RewardDraws) -> Tensor:
    """A uniform number in [0, 1), independent of the response: a control without a signal."""
    return torch.where(raw.isnan(), raw, draws.uniform)


TRANSFORMS: dict[str, Transform] = {
    "identity": identity,
    "affine": affine,
    "per-prompt-affine": per_prompt_affine,
    "power": power,
    "clip": clip,
    "rank": rank,
    "noise": noise,
    "constant": constant,
    "random": random,
}


def _overflowed(values: Tensor, missing: Tensor) -> Tensor:
    """Return inf for a NaN that is no ``missing`` reward (bool): inf - inf, a fault to be seen, not a gap."""
    return torch.where(values.isnan() & ~missing, torch.inf, values)


def raw_reward(batch: Batch, reward: Reward) -> Tensor:
    """Return float64 [M, B, G]: the task's reward, or the weighted sum of the named components.

    NaN where the response does not exist or any part of its reward is missing. Raises UserError for a
    component that the task does not have.
    """
    total = batch.reward
    if reward.components:
        total = torch.zeros_like(batch.reward)
        missing = torch.zeros_like(batch.present)
        for name, weight in reward.components.items():
            if name not in batch.components:
                raise UserError(
                    f"reward.components: the task has no component '{name}'; "
                    f"{nearest(name, batch.components) if batch.components else 'it has none.'}"
                )
            total = total + weight * batch.components[name]
            missing = missing | batch.components[name].isnan()
        total = _overflowed(total, missing)
    return torch.where(batch.present, total, torch.nan)


def overlong_penalty(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """Return DAPO's soft overlong penalty, float64 in [-1, 0] of the shape of ``lengths`` (tokens).

    0 up to ``limit - buffer``, falling linearly to -1 at ``limit``, -1 beyond (Yu et al. 2025, DAPO,
    section 3.4, equation 13).

    >>> overlong_penalty(torch.tensor([6, 7, 8, 9, 10, 11]), limit=10, buffer=4).tolist()
    [0.0, -0.25, -0.5, -0.75, -1.0, -1.0]
    """
    excess = (lengths - (limit - buffer)).double()
    if buffer == 0:
        return torch.where(excess > 0, -1.0, 0.0).double()
    return (-excess / buffer).clamp(-1.0, 0.0) + 0.0


def shape(batch: Batch, reward: Reward, sampling: Sampling, kl: Kl, draws: RewardDraws) -> Tensor:
    """Return the shaped rewards, float64 [M, B, G]: those that enter the statistics; NaN where missing.

    In order: components, transform, soft overlong penalty, then ``- beta sum_t k_t`` of the old policy under
    ``kl.place: reward-before``. A reward that leaves float64's range is infinite, never NaN: it makes its group's
    advantages NaN and the run diverge, where a missing one leaves its siblings alone. Raises UserError for an
    unknown component or an undefined power.
    """
    raw = raw_reward(batch, reward)
    member = ~raw.isnan()
    if not reward.masked_in_baseline:
        member = member & ~masked(batch, reward)
    shaped = TRANSFORMS[reward.transform](raw, member, reward, draws)
    if reward.overlong == "soft":
        lengths = batch.token.sum(-1)
        shaped = shaped + overlong_penalty(lengths, sampling.max_tokens, reward.overlong_buffer)
    if kl.place == "reward-before" and kl.beta > 0:
        shaped = shaped - kl.beta * old_values(batch, kl).sum(-1)
    return _overflowed(shaped, raw.isnan())
