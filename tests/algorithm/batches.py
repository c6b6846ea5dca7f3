"""Small random batches and the switches to try on them."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch, RewardDraws
from grpo_ablate.explain.batch_file import BatchFile, parse
from grpo_ablate.spec.schema import Switches

# Every surrogate, with bounds near enough that clips act on a random batch.
SURROGATES: dict[str, dict[str, Any]] = {
    "clip": {"surrogate": "clip"},
    "clip-higher": {"surrogate": "clip", "clip_low": 0.2, "clip_high": 0.28},
    "unclipped": {"surrogate": "clip", "clip_low": "off", "clip_high": "off"},
    "clip-above": {"surrogate": "clip", "clip_low": "off", "clip_high": 0.1},
    "dual-clip": {"surrogate": "clip", "dual_clip": 1.5},
    "clamped": {"surrogate": "clip", "clip_high": 2.0, "clip_low": 0.9, "log_ratio_clamp": 0.3},
    "cispo": {"surrogate": "cispo"},
    "cispo-above": {"surrogate": "cispo", "clip_low": "off", "clip_high": 0.3},
    "sequence": {"surrogate": "sequence", "clip_low": 0.05, "clip_high": 0.05, "force": True},
    "geometric": {"surrogate": "geometric", "clip_low": 0.2, "clip_high": 0.2, "force": True},
    "geometric-open": {"surrogate": "geometric", "clip_low": "off", "clip_high": "off", "force": True},
    "soft": {"surrogate": "soft", "tau_pos": 1.0, "tau_neg": 1.05},
    "reinforce": {"surrogate": "reinforce"},
}
REDUCTIONS = ("sequence-mean", "token-mean", "constant", "sequence-sum")


def switches(**sections: dict[str, Any]) -> Switches:
    return Switches.model_validate(sections)


def responses(
    seed: int, sizes: tuple[int, ...] = (4, 3, 4), *, missing: bool = True, longest: int = 5
) -> list[Any]:
    """Groups of unequal size with interleaved ids, ragged lengths, truncated and missing ones among them."""
    rng = random.Random(seed)
    ids = [group for group, size in enumerate(sizes) for _ in range(size)]
    rng.shuffle(ids)
    batch = []
    for group in ids:
        length = rng.randint(1, longest)
        old = [-rng.expovariate(1.0) for _ in range(length)]
        batch.append(
            {
                "group": group,
                "reward": rng.choice([0.0, 0.35, 0.7, 1.0]),
                "steps": sorted(
                    [rng.randrange(length), rng.choice([-1.0, 0.5, 1.0])] for _ in range(rng.randint(0, 2))
                ),
                "logp": [x + rng.gauss(0, 0.4) for x in old],
                "old_logp": old,
                "ref_logp": [x + rng.gauss(0, 0.4) for x in old],
                "sampler_logp": [x + rng.gauss(0, 0.2) for x in old],
                "kl_exact": [rng.random() for _ in range(length)],
                "truncated": rng.random() < 0.3,
            }
        )
    if missing:
        batch[rng.randrange(len(batch))]["reward"] = None
    return batch


def file(batch: list[Any]) -> BatchFile:
    return parse(batch, "test")


def no_draws(batch: Batch) -> RewardDraws:
    groups = (*batch.reward.shape[:2], 2)
    return RewardDraws(
        *(torch.zeros(shape, dtype=torch.float64) for shape in (batch.reward.shape,) * 2),
        torch.zeros(groups).double(),
    )


def rewards_batch(rewards: list[list[float | None]]) -> Batch:
    """One member, one group per list, one token per response."""
    entries = [
        {"group": b, "reward": reward, "logp": [-1.0]} for b, group in enumerate(rewards) for reward in group
    ]
    return file(entries).batch


def mapped(batch: Batch, change: Any) -> Batch:
    """Return the batch with ``change`` applied to every tensor."""
    steps = batch.steps
    if steps is not None:
        steps = replace(steps, **{f.name: change(getattr(steps, f.name)) for f in fields(steps)})
    tensors = {f.name: change(value) for f in fields(Batch) if isinstance(value := getattr(batch, f.name), Tensor)}
    return replace(batch, **tensors, steps=steps, components={k: change(v) for k, v in batch.components.items()})
