"""From shaped rewards to one advantage per token: baseline, scale, outcome and process supervision.

All statistics are float64 and two-pass, taken after subtracting the smallest value: close rewards then
keep their differences exactly, and a group is constant when its values differ by less than `SMALLEST`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.algorithm.kl import to_go
from grpo_ablate.algorithm.own_advantage import own_advantages
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.spec.schema import Advantage

SMALLEST = 1e-290  # a difference below this: its mean and deviations could leave float64's normal numbers


@dataclass(frozen=True)
class Spread:
    """Mean-free values of a pool and their standard deviation; statistics keep the pooled axes as size 1."""

    deviation: Tensor  # value minus the pool's mean, 0 outside the pool
    std: Tensor  # 0 for a constant pool
    constant: Tensor  # bool: all values equal up to `SMALLEST`, or fewer than two
    count: Tensor  # float64, values in the pool


def spread(values: Tensor, member: Tensor, axes: tuple[int, ...], ddof: int) -> Spread:
    """Return deviation and standard deviation (divisor n - ddof) of the members along ``axes``.

    >>> pool = torch.tensor([1.0, 0.0, 1.0, 1.0, 9.0], dtype=torch.float64)
    >>> round(float(spread(pool, pool < 9, (0,), ddof=0).std), 6)
    0.433013
    """
    count = member.sum(axes, keepdim=True, dtype=torch.float64)
    smallest = torch.where(member, values, torch.inf).amin(axes, keepdim=True)
    shifted = torch.where(member, values - smallest, 0.0)
    constant = shifted.amax(axes, keepdim=True) < SMALLEST
    shifted = torch.where(constant, 0.0, shifted)
    mean = shifted.sum(axes, keepdim=True) / count.clamp(min=1.0)
    deviation = torch.where(member, shifted - mean, 0.0)
    # The largest deviation is taken out of the squares, which would otherwise underflow for tiny rewards.
    largest = torch.where(constant, 1.0, deviation.abs().amax(axes, keepdim=True))
    squares = (deviation / largest).square().sum(axes, keepdim=True)
    std = torch.where(constant, 0.0, largest * (squares / (count - ddof).clamp(min=1.0)).sqrt())
    return Spread(deviation, std, constant, count)


@dataclass(frozen=True)
class Pool:
    """The values of each group along the last axis: rewards of its responses or scores of its steps."""

    values: Tensor  # float64 [M, B, K]
    member: Tensor  # bool [M, B, K]
    group: Spread  # along K
    advantage: Advantage
    running_mean: Tensor | None  # float64 [M, B, 1], of the group's prompt before this round

    def batch(self) -> Spread:
        """Return the spread over all groups of a member, statistics [M, 1, 1]."""
        return spread(self.values, self.member, (-2, -1), self.advantage.ddof)


def no_baseline(pool: Pool) -> Tensor:
    """R_i."""
    return pool.values


def constant_baseline(pool: Pool) -> Tensor:
    """R_i - b with b given."""
    return pool.values - pool.advantage.constant


def group_mean(pool: Pool) -> Tensor:
    """R_i minus the mean of its group: the gradient of the expected reward shrunk by 1 - 1/G."""
    return pool.group.deviation


def leave_one_out(pool: Pool) -> Tensor:
    """R_i minus the mean of the others, G/(G-1) (R_i - mean): the unbiased baseline (Kool et al. 2019)."""
    count = pool.group.count
    return pool.group.deviation * (count / (count - 1.0).clamp(min=1.0))


def batch_mean(pool: Pool) -> Tensor:
    """R_i minus the mean over the whole batch."""
    return pool.batch().deviation


def running_mean(pool: Pool) -> Tensor:
    """R_i minus the running mean of its prompt's rewards, as it was before this round."""
    if pool.running_mean is None:
        raise ValueError("the ema baseline needs the running means")
    return pool.values - pool.running_mean


BASELINES: dict[str, Callable[[Pool], Tensor]] = {
    "none": no_baseline,
    "constant": constant_baseline,
    "mean": group_mean,
    "leave-one-out": leave_one_out,
    "batch": batch_mean,
    "ema": running_mean,
}


def _stabilised(std: Tensor, undivided: Tensor, advantage: Advantage) -> Tensor:
    """Return the divisor of a standard deviation, 1 where the values are not to be divided."""
    if advantage.eps_inside and advantage.eps > 0:
        # sqrt(std^2 + eps) with the larger part taken out of the squares, which would leave float64's range.
        # torch.hypot would do, but rounds a number by its place in the tensor, and so by the other members.
        root = math.sqrt(advantage.eps)
        largest = std.clamp(min=root)
        divisor = largest * ((std / largest).square() + (root / largest).square()).sqrt()
    else:
        divisor = std + advantage.eps
    return torch.where(undivided, 1.0, divisor)


def group_std(pool: Pool) -> Tensor:
    """The group's standard deviation plus eps; a group of std 0 is not divided."""
    return _stabilised(pool.group.std, pool.group.constant, pool.advantage)


def batch_std(pool: Pool) -> Tensor:
    """The standard deviation over the whole batch plus eps."""
    batch = pool.batch()
    return _stabilised(batch.std, batch.constant, pool.advantage)


def leave_one_out_std(pool: Pool) -> Tensor:
    """The standard deviation of the others; where it is 0 or only one other exists: not divided (NeMo-RL)."""
    which, first = _distinct(torch.where(pool.member, pool.values, torch.inf))
    number = torch.arange(int(which.max()) + 1 if which.numel() else 1, device=which.device)
    # Equal values leave the same others: [M, B, D, K] for D distinct values in place of K.
    removed = (which.unsqueeze(-2) == number.unsqueeze(-1)) & first.unsqueeze(-2)
    others = spread(pool.values.unsqueeze(-2), pool.member.unsqueeze(-2) & ~removed, (-1,), pool.advantage.ddof)
    return _stabilised(others.std, others.constant, pool.advantage).squeeze(-1).gather(-1, which)


def _distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return, along the last axis, the rank of each value among the distinct ones, and whether it is the first."""
    ordered, order = values.sort(dim=-1, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    which = torch.zeros_like(order).scatter(-1, order, new.cumsum(-1) - 1)
    return which, torch.zeros_like(new).scatter(-1, order, new)


SCALES: dict[str, Callable[[Pool], Tensor]] = {
    "group-std": group_std,
    "batch-std": batch_std,
    "leave-one-out-std": leave_one_out_std,
}


def normalise(values: Tensor, member: Tensor, advantage: Advantage, running: Tensor | None = None) -> Tensor:
    """Return baseline-free, scaled values, float64 [M, B, K], 0 where ``member`` (bool [M, B, K]) is false.

    Or what the user's own function makes of them, where ``advantage.function`` names one.

    A constant group, and a single value, gives exactly 0 under ``mean`` and ``leave-one-out``
    (Shao et al. 2024, DeepSeekMath, section 4.1.2, for ``mean`` with ``group-std``).

    >>> rewards = torch.tensor([[[1.0, 0.0, 1.0, 1.0]]], dtype=torch.float64)
    >>> [round(a, 6) for a in normalise(rewards, rewards >= 0, Advantage()).flatten().tolist()]
    [0.57735, -1.732051, 0.57735, 0.57735]
    """
    if advantage.function:
        return torch.where(member, own_advantages(values, member, advantage.function), 0.0)
    group = spread(values, member, (-1,), advantage.ddof)
    pool = Pool(values, member, group, advantage, running)
    result = BASELINES[advantage.baseline](pool)
    if advantage.scale != "none":
        result = result / SCALES[advantage.scale](pool)
    return torch.where(member, result, 0.0)


def outcome(shaped: Tensor, member: Tensor, batch: Batch, advantage: Advantage, running: Tensor | None) -> Tensor:
    """One advantage per response, repeated over its tokens, float64 [M, B, G, T]."""
    per_response = normalise(shaped, member, advantage, running)
    return per_response.unsqueeze(-1).expand(batch.token.shape)


def process(shaped: Tensor, member: Tensor, batch: Batch, advantage: Advantage, running: Tensor | None) -> Tensor:
    """The normalised scores of the steps that end at or after each token, summed, float64 [M, B, G, T].

    All step scores of a group are one pool (Shao et al. 2024, DeepSeekMath, section 4.1.3). A missing score
    (NaN) is no member of the pool; a group without scores gets 0.
    """
    steps = batch.steps
    if steps is None:
        raise ValueError("process supervision needs step scores")
    present = steps.present & member.unsqueeze(-1) & ~steps.score.isnan()
    scores = normalise(steps.score.flatten(-2), present.flatten(-2), advantage).view(steps.score.shape)
    ends = torch.where(present, steps.end, 0)
    at_end = torch.zeros(batch.token.shape, dtype=torch.float64, device=scores.device)
    return to_go(at_end.scatter_add(-1, ends, scores))


SUPERVISION: dict[str, Callable[[Tensor, Tensor, Batch, Advantage, Tensor | None], Tensor]] = {
    "outcome": outcome,
    "process": process,
}


def advantages(
    shaped: Tensor, member: Tensor, batch: Batch, advantage: Advantage, running_means: Tensor | None = None
) -> Tensor:
    """Return the advantage of every token, float64 [M, B, G, T], 0 where a token is not scored.

    ``shaped`` float64 [M, B, G]; ``member`` bool [M, B, G], the responses that enter the statistics;
    ``running_means`` float64 [M, P] over the prompt pool, for the ``ema`` baseline alone. Clipped to
    ``advantage_clip`` last.
    """
    running = None
    if running_means is not None and advantage.baseline == "ema":
        running = running_means.gather(1, batch.prompts).unsqueeze(-1)
    result = SUPERVISION[advantage.supervision](shaped, member, batch, advantage, running)
    if advantage.advantage_clip != "off":
        held = result.clamp(-advantage.advantage_clip, advantage.advantage_clip)
        # Rewards that left float64's range are a fault to be seen, not an advantage as large as any.
        result = torch.where(result.isinf(), torch.nan, held)
    return torch.where(batch.token & member.unsqueeze(-1), result, 0.0)


def initial_running_mean(members: int, prompts: int, advantage: Advantage) -> Tensor:
    """Return the running means before the first round, float64 [M, P]."""
    return torch.full((members, prompts), advantage.ema_initial, dtype=torch.float64)


def update_running_mean(running_means: Tensor, batch: Batch, shaped: Tensor, advantage: Advantage) -> Tensor:
    """Return the running means after a round, float64 [M, P]; the argument is left as it was.

    A prompt that had rewards this round moves to ``decay * old + (1 - decay) * mean of its shaped rewards``,
    however many groups it had; the others stay. ``shaped`` float64 [M, B, G], NaN where missing.
    """
    known = batch.present & ~shaped.isnan()
    totals = torch.where(known, shaped, 0.0).sum(-1)
    counts = known.sum(-1).double()
    zeros = torch.zeros_like(running_means)
    total = zeros.scatter_add(1, batch.prompts, totals)
    count = zeros.scatter_add(1, batch.prompts, counts)
    decay = advantage.ema_decay
    moved = decay * running_means + (1.0 - decay) * total / count.clamp(min=1.0)
    return torch.where(count > 0, moved, running_means)
