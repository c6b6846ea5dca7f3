"""The keyed random numbers of a round's reward transforms."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import RewardDraws
from grpo_ablate.rng import Keys, Purpose, RoundUniforms, normal
from grpo_ablate.spec.schema import Reward


class RewardNumbers:
    """Draws for M members: noise per response and round, an affine map per prompt for the whole run.

    Only what the transform reads is computed; the rest is NaN, so that reading it by mistake shows.
    """

    def __init__(self, reward: Reward, keys: Keys, prompts: int, group_size: int, pool: int):
        shape = (prompts, group_size, 1)
        nothing = torch.full((len(keys.seeds), 1, 1), torch.nan, dtype=torch.float64)
        self.nothing = nothing.expand(-1, prompts, group_size)
        self.no_prompt = nothing.expand(-1, prompts, 2)
        self.normal = RoundUniforms(keys, Purpose.REWARD_NORMAL, shape) if reward.transform == "noise" else None
        self.uniform = RoundUniforms(keys, Purpose.REWARD_UNIFORM, shape) if reward.transform == "random" else None
        self.pool: Tensor | None = None  # float64 [M, P, 2]
        if reward.transform == "per-prompt-affine":
            self.pool = keys.uniform(
                Purpose.PROMPT_UNIFORM,
                slot=torch.arange(pool)[:, None],
                sample=torch.arange(2),
                dimensions=3,
            )

    def __call__(self, round: int, prompts: Tensor) -> RewardDraws:
        """Return the draws of one round for ``prompts`` int64 [M, B]."""
        return RewardDraws(
            normal=self.nothing if self.normal is None else normal(self.normal(round)[..., 0]),
            uniform=self.nothing if self.uniform is None else self.uniform(round)[..., 0],
            prompt_uniform=self.no_prompt
            if self.pool is None
            else self.pool.gather(1, prompts[..., None].expand(-1, -1, 2)),
        )
