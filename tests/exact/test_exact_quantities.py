"""Published and closed-form numbers of expected updates, gradients, baselines, filters and dynamics."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from ordered_groups import categorical_case, tree_case
from test_exact_expectation import sections

from grpo_ablate.exact import (
    UpdateField,
    accepted_law,
    along,
    expected_reward,
    expected_update,
    iterate,
    kl_gradient,
    normalised_mean_gradient,
    parse,
    population_limit,
    push,
    reference_kl,
    response_laws,
    reward_gradient,
    variance_minimising_baseline,
)
from grpo_ablate.exact.groups import coefficients, setting

COUNTEREXAMPLE = {"prompts": [{"responses": [{"logit": 0, "reward": reward} for reward in (0, 1, 10)]}]}
MEAN_ONLY = {"scale": "none", "reduction": "sequence-sum"}
LEAVE_ONE_OUT = {"baseline": "leave-one-out", **MEAN_ONLY}


def binary(success: float, **more) -> dict:
    return {
        "responses": [{"probability": success, "reward": 1}, {"probability": 1 - success, "reward": 0}],
        **more,
    }


def differences(value, policy, step: float = 1e-5) -> list[float]:
    """Central differences of a function of the policy."""
    result = []
    for d in range(len(policy.parameters)):
        shift = torch.zeros_like(policy.parameters)
        shift[d] = step
        up, down = value(policy.at(policy.parameters + shift)), value(policy.at(policy.parameters - shift))
        result.append((up - down) / (2 * step))
    return result


@pytest.mark.parametrize(
    ("size", "ninths", "cosine"),
    [
        (2, (-2, 0, 2), 0.9078),
        (3, (-2.4292, -0.3953, 2.8245), 0.9544),
        (4, (-2.4860, -0.7644, 3.2503), 0.9789),
        (8, None, 0.9991),
    ],
)
def test_group_std_turns_the_direction_of_the_gradient_for_rewards_0_1_10(size, ninths, cosine):
    found = expected_update(parse(COUNTEREXAMPLE), sections({}, size))
    assert (9 * found.gradient).tolist() == pytest.approx([-11, -8, 19], abs=1e-13)
    assert found.cosine == pytest.approx(cosine, abs=5e-5)
    if ninths is not None:
        assert (9 * found.expected_update).tolist() == pytest.approx(ninths, abs=5e-5 if size > 2 else 1e-13)


def factor(success: float, size: int, **row) -> float:
    """c_G(p): expected update divided by the gradient of p, for binary rewards."""
    found = expected_update(parse({"prompts": [binary(success)]}), sections(row, size))
    assert found.cosine == pytest.approx(1.0, abs=1e-14)
    return found.norm_ratio


@pytest.mark.parametrize(("success", "size", "published"), [(0.1, 8, 2.3277), (0.3, 16, 2.0925)])
def test_binary_rewards_scale_the_gradient_by_the_published_factor(success, size, published):
    assert factor(success, size) == pytest.approx(published, abs=5e-5)


@pytest.mark.parametrize("success", [0.01, 0.3, 0.99])
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64])
def test_the_binary_factor_is_the_expected_group_spread_over_the_variance(success, size):
    spread = sum(
        math.comb(size, c) * success**c * (1 - success) ** (size - c) * math.sqrt(c / size * (1 - c / size))
        for c in range(size + 1)
    )
    assert factor(success, size) == pytest.approx(spread / (success * (1 - success)), rel=1e-12)


@pytest.mark.parametrize("success", [0.01, 0.2, 0.5, 0.9])
def test_two_responses_with_binary_rewards_give_the_raw_gradient_back(success):
    assert factor(success, 2) == pytest.approx(1.0, abs=1e-13)


def test_ddof_1_shrinks_the_binary_factor_by_a_constant():
    assert factor(0.2, 8, ddof=1) == pytest.approx(factor(0.2, 8) * math.sqrt(7 / 8), rel=1e-13)


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("case", [categorical_case, tree_case])
def test_the_group_mean_shrinks_the_gradient_and_leave_one_out_does_not(size, case):
    if case is tree_case and size > 5:
        size = 5
    policy = parse(case(size)[0])
    gradient = reward_gradient(policy).tolist()
    shrunk = expected_update(policy, sections(MEAN_ONLY, size)).expected_update
    assert shrunk.tolist() == pytest.approx([(1 - 1 / size) * g for g in gradient], abs=1e-12)
    assert expected_update(policy, sections(LEAVE_ONE_OUT, size)).expected_update.tolist() == pytest.approx(
        gradient, abs=1e-12
    )


TWO_ACTIONS = {
    "prompts": [
        {
            "responses": [
                {"probability": 0.5, "reward": 0, "reference": 0.9},
                {"probability": 0.5, "reward": 0, "reference": 0.1},
            ]
        }
    ]
}


@pytest.mark.parametrize(
    ("estimator", "gradient", "slope"),
    [
        ("exact", "pathwise", -0.5493), ("k1", "pathwise", 0.0), ("k2", "pathwise", -0.5493),
        ("k3", "pathwise", -0.4000), ("k1", "ratio", -0.5493), ("k2", "ratio", -0.8299), ("k3", "ratio", -0.5493),
        ("k1", "score-function", -0.5493), ("k2", "score-function", -0.2806), ("k3", "score-function", -0.1493),
    ],
)  # fmt: skip
def test_kl_estimators_push_two_actions_as_tabulated(estimator, gradient, slope):
    row = sections({"estimator": estimator, "gradient": gradient, "beta": 1.0}, 2)
    found = expected_update(parse(TWO_ACTIONS), row).expected_update
    assert (-found).tolist() == pytest.approx([slope, -slope], abs=5e-5)


def test_the_kl_of_two_actions_and_its_gradient():
    policy = parse(TWO_ACTIONS)
    assert reference_kl(policy) == pytest.approx(0.5108, abs=5e-5)
    assert kl_gradient(policy).tolist() == pytest.approx([-0.5493, 0.5493], abs=5e-5)


@pytest.mark.parametrize("case", [categorical_case, tree_case])
def test_gradients_are_those_of_the_quantities(case):
    policy = parse(case(7)[0])
    assert reward_gradient(policy).tolist() == pytest.approx(differences(expected_reward, policy), abs=1e-8)
    assert kl_gradient(policy).tolist() == pytest.approx(differences(reference_kl, policy), abs=1e-8)


def test_process_supervision_gives_the_worked_weights():
    tree = {
        "vocabulary": ["a", "end"],
        "horizon": 4,
        "rewards": {},
        "other_reward": 0,
        "steps": {"a a a end": [[1, 1], [3, -1]], "a a end": [[2, 1]]},
    }
    policy = parse({"prompts": [{"tree": tree}]})
    prompt = policy.prompts[0]
    at = setting(prompt, sections({"supervision": "process", "reduction": "sequence-sum"}, 2), policy.parameters)
    group = torch.tensor([[prompt.names.index("a a a end"), prompt.names.index("a a end")]])
    slopes = -2 * coefficients(at, group).slopes[0]  # the weight of a token is 1/G
    edge = {
        f"{point}>{choice}": float(slopes[n * 2 + v])
        for n, point in enumerate(prompt.points)
        for v, choice in enumerate(prompt.choices)
    }
    assert edge[">a"] == edge["a>a"] == pytest.approx(-0.7071 + 0.7071, abs=1e-12)  # both responses
    assert edge["a a>a"] == pytest.approx(-math.sqrt(2), abs=1e-12)
    assert edge["a a a>end"] == pytest.approx(-math.sqrt(2), abs=1e-12)
    assert edge["a a>end"] == pytest.approx(math.sqrt(0.5), abs=1e-12)
    assert edge["a a a>a"] == edge[">end"] == 0.0


def test_the_fixed_point_of_mean_only_with_exact_kl_is_a_tilt_shrunk_by_the_group():
    beta, size, rewards, reference = 0.4, 4, [0.0, 0.35, 0.7, 1.0], [0.1, 0.4, 0.3, 0.2]
    tilted = [q * math.exp(r * (1 - 1 / size) / beta) for q, r in zip(reference, rewards, strict=True)]
    responses = [
        {"probability": t / sum(tilted), "reward": r, "reference": q}
        for t, r, q in zip(tilted, rewards, reference, strict=True)
    ]
    policy = parse({"prompts": [{"responses": responses}]})
    found = expected_update(policy, sections({**MEAN_ONLY, "beta": beta, "estimator": "exact"}, size))
    assert found.expected_update.tolist() == pytest.approx([0] * 4, abs=1e-12)


def test_gradient_ascent_on_reward_minus_kl_ends_at_the_tilted_reference():
    responses = [
        {"logit": x, "reward": r, "reference": q} for x, r, q in ((1, 0, 0.2), (0, 1, 0.5), (-1, 0.7, 0.3))
    ]
    policy = parse({"prompts": [{"responses": responses}]})
    beta = 0.5
    path = iterate(
        policy.parameters,
        lambda point: reward_gradient(policy.at(point)) - beta * kl_gradient(policy.at(point)),
        learning_rate=3.0,
        steps=600,
    )
    tilted = [0.2, 0.5 * math.exp(1 / beta), 0.3 * math.exp(0.7 / beta)]
    law = response_laws(policy.at(path[-1]))[0]
    assert law.tolist() == pytest.approx([t / sum(tilted) for t in tilted], abs=1e-9)


def test_the_variance_minimising_baseline_minimises_the_variance():
    policy = parse(categorical_case(5)[0])
    best = variance_minimising_baseline(policy)

    def variance(constant: float) -> float:
        row = {"baseline": "constant", "constant": constant, **MEAN_ONLY}
        return expected_update(policy, sections(row, 1)).variance

    here, above, below = variance(best), variance(best + 0.1), variance(best - 0.1)
    assert here < above
    assert above == pytest.approx(below, abs=1e-12)  # the vertex of a parabola
    assert variance(expected_reward(policy)) > here


def test_filtering_multiplies_a_prompt_alone_by_the_inverse_chance_of_a_mixed_group():
    policy, chance = parse({"prompts": [binary(0.1)]}), 1 - 0.1**4 - 0.9**4
    kept, every = (expected_update(policy, sections({"dynamic": d}, 4)) for d in (True, False))
    assert kept.accepted == kept.p_mixed == pytest.approx(chance, rel=1e-13)
    assert kept.expected_update.tolist() == pytest.approx((every.expected_update / chance).tolist(), rel=1e-12)
    # Constant groups move nothing under group-std: per response generated the two are one.
    assert kept.per_rollout.tolist() == pytest.approx(every.per_rollout.tolist(), rel=1e-12)


def test_filtering_shifts_the_law_of_the_prompts_to_uncertain_ones():
    policy = parse({"prompts": [binary(0.5, probability=0.3), binary(0.01, probability=0.7)]})
    mixed = [0.3 * (1 - 2 * 0.5**4), 0.7 * (1 - 0.01**4 - 0.99**4)]
    assert accepted_law(policy, 4) == pytest.approx([m / sum(mixed) for m in mixed], rel=1e-12)
    constant = replace(policy.prompts[0], reward=torch.ones(2, dtype=torch.float64))
    assert accepted_law(replace(policy, prompts=(constant, policy.prompts[1])), 4) == [0.0, pytest.approx(1.0)]


SHARED = {
    "prompts": [{"responses": [{"reward": 1}, {"reward": 0}]}, {"responses": [{"reward": 3}, {"reward": 0}]}],
    "features": [[[1, 0], [0, 0]], [[1, 1], [0, 0]]],
    "weights": [-1.0, 0.5],
}


def test_the_population_limit_is_the_gradient_over_sigma_and_not_the_gradient_of_the_ratio():
    policy = parse(SHARED)

    def ratio(moved) -> float:
        means = [law @ p.reward for law, p in zip(response_laws(moved), moved.prompts, strict=True)]
        spreads = [
            (law @ (p.reward - mean).square()).sqrt()
            for law, p, mean in zip(response_laws(moved), moved.prompts, means, strict=True)
        ]
        return float(sum(mean / spread for mean, spread in zip(means, spreads, strict=True))) / 2

    # Binary rewards 0 and c: grad mu / sigma = sqrt(p (1 - p)) grad logit, whatever c is.
    p, q = 1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(0.5))
    first, second = math.sqrt(p * (1 - p)), math.sqrt(q * (1 - q))
    limit = population_limit(policy)
    assert limit.tolist() == pytest.approx([(first + second) / 2, second / 2], abs=1e-13)
    assert normalised_mean_gradient(policy).tolist() == pytest.approx(differences(ratio, policy), abs=1e-8)
    gap = [
        float((expected_update(policy, sections({}, size)).expected_update - limit).norm())
        for size in (8, 32, 128)
    ]
    assert gap[0] > 3 * gap[1] > 9 * gap[2]  # falls as 1/G


def test_a_constant_prompt_adds_nothing_to_the_population_limit():
    policy = parse(
        {"prompts": [binary(0.3), {"responses": [{"logit": 0, "reward": 2}, {"logit": 1, "reward": 2}]}]}
    )
    assert population_limit(policy)[2:].tolist() == normalised_mean_gradient(policy)[2:].tolist() == [0, 0]


def test_push_is_the_change_of_each_log_probability_along_the_update():
    policy = parse(tree_case(8)[0])
    direction = expected_update(policy, sections({}, 3)).expected_update
    step = 1e-6
    before, after = (response_laws(policy.at(policy.parameters + s * direction))[0].log() for s in (-step, step))
    assert push(policy, direction)[0].tolist() == pytest.approx(((after - before) / (2 * step)).tolist(), abs=1e-7)


ROWS = {
    "cached": {"reduction": "token-mean", "beta": 0.2, "estimator": "exact"},
    "filtered": {"dynamic": True},
    "recomputed": {"beta": 0.2, "estimator": "k3"},
}


@pytest.mark.parametrize("name", ROWS)
def test_the_update_field_is_the_expected_update_at_every_point(name):
    policy = parse(tree_case(9)[0])
    field = UpdateField(policy, sections(ROWS[name], 3))
    for seed in range(3):
        noise = torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        expected = expected_update(policy.at(policy.parameters + noise), sections(ROWS[name], 3)).expected_update
        assert field(policy.parameters + noise).tolist() == pytest.approx(expected.tolist(), abs=1e-13)


def test_leave_one_out_dynamics_are_gradient_ascent():
    policy = parse({"prompts": [binary(0.1)]})
    updates = iterate(policy.parameters, UpdateField(policy, sections(LEAVE_ONE_OUT, 4)), 0.5, 50)
    exact = iterate(policy.parameters, lambda point: reward_gradient(policy.at(point)), 0.5, 50)
    assert updates.shape == (51, 2)
    assert torch.allclose(updates, exact, atol=1e-12, rtol=0)
    assert response_laws(policy.at(updates[-1]))[0][0] > 0.3


def test_a_clip_flattens_beyond_its_bounds_and_only_where_the_ratio_can_get_there():
    row = sections({"clip_low": 0.2, "clip_high": 0.5}, 2)
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64)
    likely, unlikely = (along(parse({"prompts": [binary(p)]}), row, direction, [0, 10]) for p in (0.9, 0.1))
    # Both laws end at p = 1. The loser's ratio is far below .8; the winner's, 1/p, passes 1.5 only from p = .1.
    assert unlikely[1].norm_ratio == 0.0
    assert likely[1].expected_update.norm() > 0
    assert likely[0].expected_update.norm() > 0
    assert torch.equal(likely[0].gradient, likely[1].gradient)


def test_the_law_really_sampled_is_differentiated():
    policy = parse(COUNTEREXAMPLE | {"prompts": [{"responses": [
        {"logit": 0, "reward": 0}, {"logit": 1, "reward": 1}, {"logit": 2, "reward": 3}]}]})  # fmt: skip
    row = sections(LEAVE_ONE_OUT, 3)
    law = row.sampling.model_copy(update={"temperature": 2.0, "top_k": 2})
    found = expected_update(policy, row.model_copy(update={"sampling": law}))
    p = 1 / (1 + math.exp(-0.5))  # of the last of the two that can be drawn
    slope = 2 * p * (1 - p) / 2
    assert found.gradient.tolist() == pytest.approx([0, -slope, slope], abs=1e-13)
    assert found.expected_update.tolist() == pytest.approx([0, -slope, slope], abs=1e-13)
