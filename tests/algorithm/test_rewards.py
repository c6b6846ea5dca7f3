"""Reward transforms and the overlong penalty."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scipy.stats
import torch
from batches import no_draws, rewards_batch, switches

from grpo_ablate.algorithm.records import RewardDraws
from grpo_ablate.algorithm.rewards import overlong_penalty, raw_reward, shape
from grpo_ablate.errors import UserError

REWARDS = [[0.0, 0.35, 0.7, 1.0], [0.5, 0.5, 1.0, None]]


def shaped(reward, rewards=REWARDS, draws=None, batch=None):
    batch = rewards_batch(rewards) if batch is None else batch
    chosen = switches(reward=reward)
    draws = no_draws(batch) if draws is None else draws
    return shape(batch, chosen.reward, chosen.sampling, chosen.kl, draws)[0]


def draws(normal=0.0, uniform=0.0, prompt=(0.0, 0.0)):
    shape_ = (1, 2, 4)
    return RewardDraws(
        torch.full(shape_, normal, dtype=torch.float64),
        torch.full(shape_, uniform, dtype=torch.float64),
        torch.tensor(prompt, dtype=torch.float64).expand(1, 2, 2),
    )


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ({}, [0, 0.35, 0.7, 1]),
        ({"transform": "affine", "scale": 10.0, "shift": 3.0}, [3, 6.5, 10, 13]),
        ({"transform": "power", "power": 4.0}, [0, 0.35**4, 0.7**4, 1]),
        ({"transform": "clip", "clip_low": 0.2, "clip_high": 0.8}, [0.2, 0.35, 0.7, 0.8]),
        ({"transform": "clip", "clip_high": 0.5}, [0, 0.35, 0.5, 0.5]),
        ({"transform": "constant", "constant": 2.0}, [2, 2, 2, 2]),
        ({"transform": "rank"}, [1, 2, 3, 4]),
    ],
    ids=str,
)
def test_transforms_of_one_group(reward, expected):
    assert shaped(reward)[0].tolist() == pytest.approx(expected)


def test_ranks_average_ties_within_the_group_and_leave_missing_rewards_missing():
    found = shaped({"transform": "rank"})[1].tolist()
    assert found[:3] == [1.5, 1.5, 3.0] and math.isnan(found[3])
    group = [0.3, 0.1, 0.3, 0.3, 0.9, 0.1]
    assert shaped({"transform": "rank"}, [group])[0].tolist() == scipy.stats.rankdata(group).tolist()


@pytest.mark.parametrize("transform", ["constant", "random", "rank", "noise", "power", "affine"])
def test_a_missing_reward_stays_missing(transform):
    assert shaped({"transform": transform}, draws=draws(1.0, 0.5)).isnan().tolist() == [
        [False] * 4,
        [False, False, False, True],
    ]


def test_noise_and_random_rewards_come_from_the_draws():
    assert shaped({"transform": "noise", "noise_std": 0.2}, draws=draws(normal=2.0))[0].tolist() == pytest.approx(
        [0.4, 0.75, 1.1, 1.4]
    )
    assert shaped({"transform": "random"}, draws=draws(uniform=0.25))[0].tolist() == [0.25] * 4


def test_a_prompt_has_its_own_scale_and_shift():
    reward = {
        "transform": "per-prompt-affine",
        "scale_low": 1.0,
        "scale_high": 3.0,
        "shift_low": -1.0,
        "shift_high": 1.0,
    }
    found = shaped(reward, draws=draws(prompt=(0.5, 0.25)))
    assert found[0].tolist() == pytest.approx([2 * r - 0.5 for r in (0, 0.35, 0.7, 1)])


def test_a_fractional_power_of_a_negative_reward_is_refused():
    assert shaped({"transform": "power", "power": 3.0}, [[-2.0, 1.0]]).tolist() == [[-8.0, 1.0]]
    with pytest.raises(UserError, match=r"reward.power: a negative reward has no power 0.5"):
        shaped({"transform": "power", "power": 0.5}, [[-2.0, 1.0]])


def test_components_are_weighted_and_a_missing_part_makes_the_reward_missing():
    parts = {
        "accuracy": torch.tensor([[[1.0, 0.0, 1.0]]]).double(),
        "format": torch.tensor([[[1.0, 1.0, math.nan]]]).double(),
    }
    batch = replace(rewards_batch([[9.0, 9.0, 9.0]]), components=parts)
    found = raw_reward(batch, switches(reward={"components": {"accuracy": 1.0, "format": 0.5}}).reward)[
        0, 0
    ].tolist()
    assert found[:2] == [1.5, 0.5] and math.isnan(found[2])
    with pytest.raises(UserError, match="did you mean 'format'"):
        raw_reward(batch, switches(reward={"components": {"formt": 1.0}}).reward)


def test_the_overlong_penalty_is_zero_then_linear_then_minus_one():
    lengths = torch.tensor([0, 16384, 16385, 18432, 20480, 20481, 40960])
    expected = [0, 0, -1 / 4096, -0.5, -1, -1, -1]
    assert overlong_penalty(lengths, 20480, 4096).tolist() == pytest.approx(expected)
    assert overlong_penalty(torch.tensor([4, 5]), 4, 0).tolist() == [0, -1]


def test_the_penalty_is_added_after_the_transform():
    batch = rewards_batch([[1.0, 0.5]])
    chosen = switches(
        reward={"transform": "affine", "scale": 10.0, "overlong": "soft", "overlong_buffer": 1},
        sampling={"max_tokens": 1},
    )
    found = shape(batch, chosen.reward, chosen.sampling, chosen.kl, no_draws(batch))
    assert found.flatten().tolist() == [9.0, 4.0]


def test_a_response_left_out_of_the_statistics_has_no_rank_to_give():
    batch = replace(rewards_batch([[0.1, 0.5, 0.9]]), truncated=torch.tensor([[[True, False, False]]]))
    reward = {"transform": "rank", "overlong": "mask", "masked_in_baseline": False}
    assert shaped(reward, batch=batch)[0].tolist()[1:] == [1.0, 2.0]
