"""Advantages against printed tables, closed forms and exact enumeration of every group."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import comb

import pytest
import torch
from batches import file, rewards_batch, switches
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ablate.algorithm.advantages import (
    SMALLEST,
    advantages,
    initial_running_mean,
    normalise,
    update_running_mean,
)
from grpo_ablate.algorithm.records import Batch
from grpo_ablate.explain import explain

NAN = math.nan


def advantage(groups, **keys) -> list[list[float]]:
    """The advantages of groups of equal size, one per response; None or NaN is a missing reward."""
    values = torch.tensor([[NAN if r is None else r for r in group] for group in groups], dtype=torch.float64)
    chosen = switches(advantage=keys).advantage
    return normalise(values[None], ~values[None].isnan(), chosen)[0].tolist()


def one(rewards, **keys) -> list[float]:
    return advantage([rewards], **keys)[0]


MEAN_STD = {"baseline": "mean", "scale": "group-std"}
LEAVE_ONE_OUT = {"baseline": "leave-one-out", "scale": "none"}
# (settings, then the published four decimals for each group of rewards)
TABLE = {
    "trl": (
        {**MEAN_STD, "ddof": 1, "eps": 1e-4},
        [[1.4997, -0.4999, -0.4999, -0.4999], [0.8659, 0.8659, -0.8659, -0.8659], [0.7070, -0.7070],
         [1.3173, 0.1464, -1.0246, -0.4391]],
    ),
    "ddof 1": (
        {**MEAN_STD, "ddof": 1, "eps": 1e-6},
        [[1.5, -0.5, -0.5, -0.5], [0.8660, 0.8660, -0.8660, -0.8660], [0.7071, -0.7071],
         [1.3175, 0.1464, -1.0247, -0.4392]],
    ),
    "ddof 0": (
        {**MEAN_STD, "ddof": 0, "eps": 1e-4},
        [[1.7317, -0.5772, -0.5772, -0.5772], [0.9998, 0.9998, -0.9998, -0.9998], [0.9998, -0.9998],
         [1.5211, 0.1690, -1.1831, -0.5070]],
    ),
    "mean only": (
        {"baseline": "mean", "scale": "none"},
        [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5], [0.5, -0.5], [1.125, 0.125, -0.875, -0.375]],
    ),
    "leave-one-out": (
        LEAVE_ONE_OUT,
        [[1.0, -0.3333, -0.3333, -0.3333], [0.6667, 0.6667, -0.6667, -0.6667], [1.0, -1.0],
         [1.5, 0.1667, -1.1667, -0.5]],
    ),
    "leave-one-out std": (
        {"baseline": "leave-one-out", "scale": "leave-one-out-std", "ddof": 1, "eps": 1e-6},
        [[1.0, -0.5773, -0.5773, -0.5773], [1.1547, 1.1547, -1.1547, -1.1547], [1.0, -1.0],
         [3.0, 0.1601, -1.5275, -0.5]],
    ),
}  # fmt: skip
REWARDS = [[1.0, 0, 0, 0], [1.0, 1, 0, 0], [1.0, 0], [2.0, 1, 0, 0.5]]


@pytest.mark.parametrize("column", TABLE)
def test_the_published_table_of_library_conventions(column):
    keys, expected = TABLE[column]
    for rewards, printed in zip(REWARDS, expected, strict=True):
        assert one(rewards, **keys) == pytest.approx(printed, abs=5.1e-5)


def test_worked_groups_of_the_documents():
    assert one([1, 0, 1, 1]) == pytest.approx([0.577350, -1.732051, 0.577350, 0.577350], abs=5e-7)
    assert one([0.1, 0.2, 0.4, 0.9]) == pytest.approx([-0.973329, -0.648886, 0, 1.622214], abs=5e-7)


@pytest.mark.parametrize(
    ("eps", "inside", "expected"),
    [(1e-8, False, 0.7071), (1e-4, False, 0.6195), (1e-8, True, 0.7001), (1e-4, True, 0.0499)],
)
def test_the_place_of_the_stabiliser_decides_small_gaps(eps, inside, expected):
    found = one([0.5, 0.5 + 1e-3], ddof=1, eps=eps, eps_inside=inside)
    assert found[1] == pytest.approx(expected, abs=5e-5) and found[0] == pytest.approx(-expected, abs=5e-5)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_ddof_one_shrinks_by_the_root_of_one_minus_one_over_size(size):
    rewards = [float(i * i) for i in range(size)]
    shrunk = [a * math.sqrt((size - 1) / size) for a in one(rewards)]
    assert one(rewards, ddof=1) == pytest.approx(shrunk, rel=1e-12)


def test_conventions_change_the_step_size_with_the_group_size():
    assert math.sqrt(15 / 16) / math.sqrt(1 / 2) == pytest.approx(1.37, abs=5e-3)
    two, sixteen = 2 / 1, 16 / 15
    assert two / sixteen == pytest.approx(1.9, abs=5e-2)
    for size in (2, 16):
        rewards = [1.0] + [0.0] * (size - 1)
        assert one(rewards, **LEAVE_ONE_OUT)[0] == pytest.approx(
            size / (size - 1) * one(rewards, scale="none")[0], rel=1e-12
        )


@pytest.mark.parametrize("right", range(1, 8))
def test_binary_rewards_have_the_closed_form(right):
    share = right / 8
    found = one([1.0] * right + [0.0] * (8 - right))
    assert found[0] == pytest.approx(math.sqrt((1 - share) / share), rel=1e-12)
    assert found[-1] == pytest.approx(-math.sqrt(share / (1 - share)), rel=1e-12)


finite = st.floats(-1e3, 1e3, allow_nan=False)
groups = st.lists(finite, min_size=2, max_size=8)


@settings(max_examples=200, deadline=None)
@given(groups)
def test_normalised_groups_have_mean_zero_square_one_and_are_bounded(rewards):
    found = one(rewards)
    if max(rewards) - min(rewards) < SMALLEST:
        assert found == [0.0] * len(rewards)
        return
    assert math.fsum(found) == pytest.approx(0, abs=1e-9)
    assert math.fsum(a * a for a in found) / len(found) == pytest.approx(1, rel=1e-9)
    assert max(map(abs, found)) <= math.sqrt(len(rewards) - 1) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=8), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_positive_affine_maps_change_nothing_without_a_stabiliser(rewards, scale, shift):
    mapped = [scale * r + shift for r in rewards]
    assert one(mapped) == pytest.approx(one(rewards), abs=1e-8)


def test_nonlinear_maps_that_keep_the_ranking_change_the_advantages():
    rewards = [0.0, 0.35, 0.7, 1.0]
    assert one([r**4 for r in rewards]) != pytest.approx(one(rewards), abs=0.05)


def test_rewards_far_below_one_are_normalised_all_the_same():
    assert one([1e-200, 0.0, 0.0, 0.0]) == pytest.approx(one([1.0, 0, 0, 0]), rel=1e-12)
    above = math.nextafter(0.3, 1)
    assert one([0.3, above]) == [-1.0, 1.0]


@pytest.mark.parametrize("gap", [5e-324, 2.3e-308, 1e-291])
def test_rewards_that_differ_by_what_has_no_exact_mean_are_constant(gap):
    for keys in ({}, LEAVE_ONE_OUT, {"scale": "batch-std"}, {"scale": "leave-one-out-std"}):
        assert one([0.0] * 7 + [gap], **keys) == [0.0] * 8
    assert one([0.0] * 7 + [1e-289]) == pytest.approx(one([0.0] * 7 + [1.0]), rel=1e-12)


@pytest.mark.parametrize("gap", [1e-12, 0.1, 50.0])
def test_a_pair_gives_plus_and_minus_one_whatever_the_gap(gap):
    assert one([0.5 + gap, 0.5]) == [1.0, -1.0]


def test_a_constant_group_is_one_with_exactly_equal_rewards():
    copies = [float(torch.tensor(0.3, dtype=torch.float32))] * 6
    for baseline, scale in itertools.product(
        ["mean", "leave-one-out"], ["none", "group-std", "leave-one-out-std"]
    ):
        for size in (2, 6):
            found = one(copies[:size], baseline=baseline, scale=scale, ddof=1, eps=1e-9)
            assert found == [0.0] * size


def test_a_constant_group_keeps_its_difference_to_other_baselines_undivided():
    for scale in ("group-std", "leave-one-out-std"):
        assert one([0.7, 0.7], baseline="none", scale=scale) == [0.7, 0.7]
        assert one([0.5, 0.5], baseline="constant", constant=0.25, scale=scale) == [0.25, 0.25]
    found = advantage([[1.0, 1.0], [0.0, 1.0]], baseline="batch", scale="group-std")
    assert found == [[0.25, 0.25], [-1.5, 0.5]]


def test_the_winner_of_a_leave_one_out_std_is_not_divided_by_nothing():
    for ddof, rewards in itertools.product([0, 1], [[1.0, 0, 0, 0], [0.95] + [0.45] * 15]):
        keys = {"baseline": "leave-one-out", "scale": "leave-one-out-std", "ddof": ddof, "eps": 1e-6}
        found = one(rewards, **keys)
        assert found[0] == pytest.approx(rewards[0] - rewards[1], rel=1e-9)
        assert max(map(abs, found)) <= 4


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_leave_one_out_std_is_that_of_the_other_rewards_one_by_one(ddof):
    """Equal rewards, all distinct ones, missing ones and large offsets, by exact rationals."""
    rows = [
        [1, 0, 0, 1, 0.5, 1],
        [3, -1, 0.25, 8, 2, 7],
        [NAN, 1, 2, 2, NAN, 4],
        [1e6, 1e6, 1e6 + 0.5, 1e6, 1e6, 0],
    ]
    found = advantage(rows, baseline="leave-one-out", scale="leave-one-out-std", ddof=ddof)
    for rewards, row in zip(rows, found, strict=True):
        for i, reward in enumerate(rewards):
            others = [Fraction(r) for k, r in enumerate(rewards) if k != i and not math.isnan(r)]
            if math.isnan(reward):
                assert row[i] == 0
                continue
            mean = sum(others) / len(others)
            squares = sum((r - mean) ** 2 for r in others) / (len(others) - ddof)
            wanted = float(Fraction(reward) - mean) / (math.sqrt(squares) or 1.0)
            assert row[i] == pytest.approx(wanted, rel=1e-12, abs=1e-15)


def test_groups_of_unequal_size_are_normalised_by_themselves():
    entries = [
        {"group": g, "reward": r, "logp": [-1.0]}
        for g, rewards in enumerate([[1, 0, 0, 0], [5.0] * 3, [2, 1, 0, 0.5]])
        for r in rewards
    ]
    found = [row[0] for row in explain(entries, switches()).advantages]
    assert found[4:7] == [0.0, 0.0, 0.0]
    assert found[:4] == pytest.approx(one([1, 0, 0, 0])) and found[7:] == pytest.approx(one([2, 1, 0, 0.5]))


@pytest.mark.parametrize("missing", [None, NAN])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_a_missing_reward_leaves_its_siblings_alone(missing, baseline):
    found = one([1, 0, missing], baseline=baseline, scale="none")
    size = 0.5 if baseline == "mean" else 1.0
    assert found == [size, -size, 0.0]


def test_a_reward_of_zero_is_a_reward():
    assert one([0.0, 1.0], scale="none") == [-0.5, 0.5]


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
@pytest.mark.parametrize("scale", ["none", "group-std", "leave-one-out-std"])
def test_one_reward_alone_has_advantage_zero(baseline, scale):
    for ddof in (0, 1):
        assert one([1.0, None, None], baseline=baseline, scale=scale, ddof=ddof) == [0.0, 0.0, 0.0]
        assert one([None, None], baseline=baseline, scale=scale, ddof=ddof) == [0.0, 0.0]


def test_advantages_are_clipped_last():
    assert one([1, 0, 0, 0], advantage_clip=1.0, scale="none")[0] == 0.75
    batch = rewards_batch([[1.0, 0, 0, 0]])
    chosen = switches(advantage={"advantage_clip": 1.0}).advantage
    found = advantages(batch.reward, batch.present, batch, chosen).flatten().tolist()
    assert found == pytest.approx([1.0, -0.57735, -0.57735, -0.57735], abs=1e-5)


def test_batch_statistics_take_all_groups_of_a_member():
    found = advantage([[1.0, 0.0], [3.0, 4.0]], baseline="batch", scale="batch-std")
    spread = math.sqrt(2.5)
    assert found[0] == pytest.approx([-1 / spread, -2 / spread])
    assert found[1] == pytest.approx([1 / spread, 2 / spread])


def test_a_running_mean_is_the_one_before_the_round():
    chosen = switches(
        advantage={"baseline": "ema", "scale": "none", "ema_decay": 0.75, "ema_initial": 0.5}
    ).advantage
    batch = rewards_batch([[1.0, 0.0], [1.0, 1.0], [NAN, NAN]])
    before = initial_running_mean(1, 4, chosen)
    found = advantages(batch.reward, batch.present, batch, chosen, before)
    assert found.flatten().tolist()[:4] == [0.5, -0.5, 0.5, 0.5]
    after = update_running_mean(before, batch, batch.reward, chosen)
    assert after.tolist() == [[0.5, 0.625, 0.5, 0.5]] and before.tolist() == [[0.5] * 4]


def test_a_prompt_that_comes_twice_in_a_round_moves_its_mean_once():
    chosen = switches(advantage={"baseline": "ema", "ema_decay": 0.75}).advantage
    batch = rewards_batch([[1.0, 0.0], [1.0, 1.0]])
    twice = Batch(**{**vars(batch), "prompts": torch.tensor([[1, 1]])})
    after = update_running_mean(initial_running_mean(1, 2, chosen), twice, twice.reward, chosen)
    assert after.tolist() == [[0.0, 0.25 * 0.75]]


# Process supervision


def process(entries, **keys) -> list[list[float]]:
    return explain(entries, switches(advantage={"supervision": "process", **keys})).advantages


def step_response(group, steps, length):
    return {"group": group, "steps": steps, "logp": [-1.0] * length}


def test_process_supervision_of_the_worked_example():
    found = process([step_response(0, [[1, 1.0], [3, -1.0]], 4), step_response(0, [[2, 1.0]], 3)])
    assert found[0] == pytest.approx([-0.7071, -0.7071, -1.4142, -1.4142], abs=5e-5)
    assert found[1] == pytest.approx([0.7071, 0.7071, 0.7071], abs=5e-5)


def test_tokens_after_the_last_step_and_groups_without_steps_get_zero():
    entries = [
        step_response("a", [[0, 1.0]], 3),
        step_response("a", [[1, 0.0]], 2),
        step_response("b", [], 2),
        step_response("b", [], 1),
    ]
    assert process(entries) == [[1.0, 0.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [0.0]]
    metrics = explain(entries, switches(advantage={"supervision": "process"})).metrics
    assert metrics["train/groups_without_steps"] == 0.5


def test_equal_step_scores_and_missing_ones_give_zero():
    assert process([step_response(0, [[0, 2.0]], 1), step_response(0, [[0, 2.0]], 1)]) == [[0.0], [0.0]]
    with_missing = [step_response(0, [[0, None], [1, 1.0]], 2), step_response(0, [[0, 0.0]], 1)]
    assert process(with_missing) == [[1.0, 1.0], [-1.0]]


# Expectations, by enumeration of every group


def expected_update(probability, rewards, size, **keys) -> torch.Tensor:
    """E[(1/G) sum_i A_i (e_i - pi)] over all groups of responses drawn from softmax logits."""
    pi = torch.tensor(probability, dtype=torch.float64)
    group = torch.tensor(list(itertools.product(range(len(pi)), repeat=size)))
    chance = pi[group].prod(-1)
    values = torch.tensor(rewards, dtype=torch.float64)[group]
    A = normalise(
        values[None], torch.ones_like(values[None], dtype=torch.bool), switches(advantage=keys).advantage
    )[0]
    score = torch.eye(len(pi), dtype=torch.float64)[group] - pi
    return (chance[:, None] * (A[..., None] * score).mean(1)).sum(0)


def true_gradient(probability, rewards) -> torch.Tensor:
    pi, r = (torch.tensor(x, dtype=torch.float64) for x in (probability, rewards))
    return pi * (r - (pi * r).sum())


THIRDS, REWARD_3 = [1 / 3] * 3, [0.0, 1.0, 10.0]
SKEWED, REWARD_4 = [0.1, 0.2, 0.3, 0.4], [0.0, 2.0, -1.0, 5.0]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_group_mean_shrinks_the_gradient_and_leave_one_out_is_unbiased(size):
    for pi, r in ((THIRDS, REWARD_3), (SKEWED, REWARD_4)):
        gradient = true_gradient(pi, r)
        mean = expected_update(pi, r, size, baseline="mean", scale="none")
        torch.testing.assert_close(mean, (1 - 1 / size) * gradient, rtol=1e-10, atol=1e-12)
        unbiased = expected_update(pi, r, size, **LEAVE_ONE_OUT)
        torch.testing.assert_close(unbiased, gradient, rtol=1e-10, atol=1e-12)
        for keys in ({"baseline": "none"}, {"baseline": "constant", "constant": 3.0}):
            found = expected_update(pi, r, size, scale="none", **keys)
            torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "ninths", "cosine"),
    [
        (2, [-2, 0, 2], 0.9078),
        (3, [-2.4292, -0.3953, 2.8245], 0.9544),
        (4, [-2.4860, -0.7644, 3.2503], 0.9789),
    ],
)
def test_normalisation_turns_the_gradient_of_the_counterexample(size, ninths, cosine):
    gradient = true_gradient(THIRDS, REWARD_3)
    assert (gradient * 9).tolist() == pytest.approx([-11, -8, 19], rel=1e-12)
    found = expected_update(THIRDS, REWARD_3, size)
    assert (found * 9).tolist() == pytest.approx(ninths, abs=5.1e-5)
    assert torch.cosine_similarity(found, gradient, dim=0).item() == pytest.approx(cosine, abs=5.1e-5)


def binary_coefficient(p: float, size: int) -> float:
    """c_G(p): the expected normalised update over the gradient p (1 - p), by enumeration of success counts."""
    counts = torch.arange(size + 1)
    values = (torch.arange(size) < counts[:, None]).double()
    A = normalise(values[None], torch.ones_like(values[None], dtype=torch.bool), switches().advantage)[0]
    chance = [comb(size, c) * p**c * (1 - p) ** (size - c) for c in range(size + 1)]
    return math.fsum(c * u for c, u in zip(chance, (A * (values - p)).mean(1).tolist(), strict=True)) / (
        p * (1 - p)
    )


def test_binary_rewards_give_the_raw_gradient_for_pairs_and_the_arcsine_for_large_groups():
    for p in (0.05, 0.3, 0.5, 0.9):
        assert binary_coefficient(p, 2) == pytest.approx(1, rel=1e-12)
        assert binary_coefficient(p, 800) == pytest.approx(1 / math.sqrt(p * (1 - p)), rel=0.02)
    assert binary_coefficient(0.1, 8) == pytest.approx(2.3277, abs=5e-5)
    assert binary_coefficient(0.3, 16) == pytest.approx(2.0925, abs=5e-5)


def test_pairs_of_binary_rewards_have_the_expected_advantages():
    pairs = advantage([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    for p in (0.1, 0.6):
        assert p * pairs[0][0] + (1 - p) * pairs[1][0] == pytest.approx(1 - p)
        assert p * pairs[2][0] + (1 - p) * pairs[3][0] == pytest.approx(-p)


def test_large_groups_divide_each_prompts_gradient_by_its_spread():
    pi, rewards, size = [0.3, 0.7], [2.0, 7.0], 200
    gradient, spread = true_gradient(pi, rewards)[0].item(), 5.0 * math.sqrt(0.21)
    # Two responses only: enumerate by the count of the first.
    expected = sum(
        comb(size, c) * 0.3**c * 0.7 ** (size - c) * a for c, a in enumerate(_first_component(pi, rewards, size))
    )
    assert expected == pytest.approx(gradient / spread, rel=0.01)


def _first_component(pi, rewards, size) -> list[float]:
    counts = torch.arange(size + 1)
    first = torch.arange(size) < counts[:, None]
    values = torch.where(first, rewards[0], rewards[1]).double()
    A = normalise(values[None], torch.ones_like(values[None], dtype=torch.bool), switches().advantage)[0]
    return (A * (first.double() - pi[0])).mean(1).tolist()


def test_a_process_batch_of_padded_records_needs_its_steps():
    batch = file([{"group": 0, "reward": 1.0, "logp": [-1.0]}]).batch
    chosen = switches(advantage={"supervision": "process"}).advantage
    with pytest.raises(ValueError, match="step scores"):
        advantages(batch.reward, batch.present, batch, chosen)


@pytest.mark.parametrize("size", [1e-200, 1e-9, 1.0, 1e200])
def test_a_stabiliser_inside_the_root_keeps_its_range(size):
    """For the pair (size, 0) the advantage is (size / 2) / hypot(size / 2, sqrt(eps)), by exact rationals."""
    for eps in (1e-320, 1e-8, 1e300):
        half, inside = Fraction(size) / 2, Fraction(eps)
        with localcontext(Context(prec=60, Emin=-(10**6), Emax=10**6)):
            square = half**2 / (half**2 + inside)
            expected = float((Decimal(square.numerator) / Decimal(square.denominator)).sqrt())
        found = one([size, 0.0], eps=eps, eps_inside=True)
        assert found == pytest.approx([expected, -expected], rel=1e-14, abs=0)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_a_stabiliser_of_zero_is_nothing_inside_as_outside(size):
    rewards = [math.sin(i) * 10 ** (i % 7 - 3) * size for i in range(64)]
    assert one(rewards, eps_inside=True) == one(rewards)
    assert one([size, 0.0], eps_inside=True) == [1.0, -1.0]


def test_a_pair_whose_difference_overflows_has_no_advantage_rather_than_a_wrong_one():
    for keys in ({}, {"scale": "none"}, {"advantage_clip": 1.0}, {"baseline": "none"}):
        found = advantage([[1.7e308, -1.7e308], [1.0, 0.0]], **keys)
        assert not any(map(math.isfinite, found[0])) or keys.get("baseline") == "none"
        assert all(map(math.isfinite, found[1]))
