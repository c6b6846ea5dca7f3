"""Expected updates against all ordered groups written as plain loops, and against Monte Carlo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ordered_groups import categorical_case, expectation, tree_case

from grpo_ablate.exact import expected_update, monte_carlo, parse
from grpo_ablate.exact.multisets import MultisetLaw, multiset_count, multisets
from grpo_ablate.spec.schema import Switches

BETA = {"beta": 0.3}
# name -> the row for the plain loops; `sections` translates it into switches.
ROWS: dict[str, dict[str, Any]] = {
    "group-std": {},
    "group-std ddof 1 eps": {"ddof": 1, "eps": 0.1},
    "group-std eps inside": {"eps": 0.1, "eps_inside": True},
    "mean only, token-mean": {"scale": "none", "reduction": "token-mean"},
    "mean only, constant": {"scale": "none", "reduction": "constant", "limit": 7},
    "leave-one-out": {"baseline": "leave-one-out", "scale": "none", "reduction": "sequence-sum"},
    "leave-one-out-std": {"baseline": "leave-one-out", "scale": "leave-one-out-std", "eps": 1e-3},
    "no baseline": {"baseline": "none", "scale": "none"},
    "no baseline, group-std": {"baseline": "none"},
    "constant": {"baseline": "constant", "constant": 0.4, "scale": "none", "reduction": "token-mean"},
    "reinforce": {"surrogate": "reinforce"},
    "cispo": {"surrogate": "cispo", "reduction": "token-mean"},
    "drop": {"dynamic": True, "reduction": "token-mean"},
    "entropy": {"entropy": 0.2},
    "affine": {"transform": lambda r: 2 * r - 1, "scale": "none"},
    **{
        f"{estimator} {gradient}": {
            "estimator": estimator,
            "gradient": gradient,
            **BETA,
            "reduction": "token-mean",
        }
        for estimator in ("k1", "k2", "k3")
        for gradient in ("pathwise", "ratio", "score-function")
    },
    "exact KL": {"estimator": "exact", **BETA},
    "k3 before": {"estimator": "k3", "place": "reward-before", **BETA},
    "k1 after": {"estimator": "k1", "place": "reward-after", **BETA},
    "exact after": {"estimator": "exact", "place": "reward-after", **BETA},
}
PROCESS = {
    "process": {"supervision": "process"},
    "process, mean only": {"supervision": "process", "scale": "none", "reduction": "token-mean"},
    "process, ddof 1 eps": {"supervision": "process", "ddof": 1, "eps": 0.1, "estimator": "k3", **BETA},
}
OFF_POLICY = {
    "clip-higher": {"clip_low": 0.2, "clip_high": 0.4},
    "cispo": {"surrogate": "cispo", "clip_low": 0.1, "clip_high": 0.1, "scale": "none"},
    "reinforce": {"surrogate": "reinforce"},
    "entropy": {"entropy": 0.2},
    "k3 ratio": {"estimator": "k3", "gradient": "ratio", **BETA},
    "k3 pathwise": {"estimator": "k3", **BETA},
    "k1 score": {"estimator": "k1", "gradient": "score-function", **BETA},
    "exact": {"estimator": "exact", **BETA},
    "k3 before": {"estimator": "k3", "place": "reward-before", **BETA},
}


def sections(row: dict[str, Any], size: int) -> Switches:
    """The same row as switches."""
    advantage = ("supervision", "baseline", "constant", "scale", "ddof", "eps", "eps_inside")
    update = ("surrogate", "clip_low", "clip_high", "reduction")
    kl = ("beta", "estimator", "gradient", "place")
    return Switches.model_validate(
        {
            "reward": {"transform": "affine", "scale": 2.0, "shift": -1.0} if "transform" in row else {},
            "sampling": {
                "group_size": size,
                "max_tokens": row.get("limit", 1),
                "dynamic": "drop" if row.get("dynamic") else "off",
            },
            "advantage": {key: row[key] for key in advantage if key in row},
            "update": {key: row[key] for key in update if key in row}
            | {"entropy_coefficient": row.get("entropy", 0.0)},
            "kl": {key: row[key] for key in kl if key in row},
        }
    )


def assert_equal(found, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        mine = getattr(found, key)
        mine = mine.numpy() if isinstance(mine, torch.Tensor) else mine
        assert mine == pytest.approx(value, abs=1e-12, rel=1e-12), key


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("seed", "size"), [(1, 2), (2, 3), (3, 4), (4, 5)])
def test_multisets_of_categoricals_give_the_expectation_over_all_ordered_groups(name, seed, size):
    document, prompts, _ = categorical_case(seed)
    found = expected_update(parse(document), sections(ROWS[name], size))
    assert_equal(found, expectation(prompts, size, ROWS[name]))


@pytest.mark.parametrize("name", {**ROWS, **PROCESS})
@pytest.mark.parametrize(("seed", "size"), [(5, 2), (6, 3)])
def test_multisets_of_tree_responses_give_the_expectation_over_all_ordered_groups(name, seed, size):
    document, prompts, _ = tree_case(seed)
    row = (ROWS | PROCESS)[name]
    assert_equal(expected_update(parse(document), sections(row, size)), expectation(prompts, size, row))


@pytest.mark.parametrize("name", OFF_POLICY)
@pytest.mark.parametrize("case", [categorical_case, tree_case])
def test_off_policy_groups_come_from_the_old_policy_and_slopes_from_the_present_one(name, case):
    document, prompts, now = case(11, moved=0.5)
    row = OFF_POLICY[name]
    found = expected_update(parse(document), sections(row, 3), at=torch.tensor(now))
    expected = expectation(prompts, 3, row)
    del expected["gradient"]  # the loops take it with the present scores
    assert_equal(found, expected)


@pytest.mark.parametrize("seed", range(10))
def test_monte_carlo_lies_within_four_standard_errors(seed):
    document, _, _ = categorical_case(seed) if seed % 2 else tree_case(seed)
    name = list(ROWS)[seed]
    switches = sections(ROWS[name], 4)
    exact = expected_update(parse(document), switches)
    estimate = monte_carlo(parse(document), switches, 20_000, seed=seed)
    gap = (estimate.expected_update - exact.expected_update).abs()
    assert bool((gap <= 4 * estimate.standard_error + 1e-12).all())
    assert estimate.variance == pytest.approx(exact.variance, rel=0.1)
    assert estimate.p_mixed == pytest.approx(exact.p_mixed, abs=4 * math.sqrt(0.25 / 20_000))


def test_a_transform_that_draws_is_estimated_and_keeps_its_mean():
    document, _, _ = categorical_case(3)
    row = sections({"scale": "none"}, 4)
    noisy = row.model_copy(
        update={"reward": row.reward.model_copy(update={"transform": "noise", "noise_std": 0.5})}
    )
    exact = expected_update(parse(document), row)
    estimate = monte_carlo(parse(document), noisy, 20_000)
    assert bool(((estimate.expected_update - exact.expected_update).abs() <= 4 * estimate.standard_error).all())
    assert estimate.variance > 1.05 * exact.variance


def test_an_estimate_depends_on_its_seed_alone():
    policy, switches = parse(categorical_case(1)[0]), sections({}, 4)
    first, again, other = (monte_carlo(policy, switches, 100, seed=s).expected_update for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("responses", "size"), [(1, 3), (2, 5), (4, 4), (3, 30)])
def test_multiset_probabilities_are_multinomial_and_sum_to_one(responses, size):
    probabilities = torch.rand(responses, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    probabilities /= probabilities.sum()
    index = torch.cat(list(multisets(responses, size, 7)))
    assert len({tuple(row) for row in index.tolist()}) == len(index) == multiset_count(responses, size)
    weights = MultisetLaw(probabilities, size)(index)
    for row, weight in zip(index.tolist(), weights.tolist(), strict=True):
        counts = [row.count(k) for k in range(responses)]
        coefficient = math.factorial(size) // math.prod(map(math.factorial, counts))
        product = math.prod(p**c for p, c in zip(probabilities.tolist(), counts, strict=True))
        assert weight == pytest.approx(coefficient * product, rel=1e-13)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-14)


def test_large_groups_neither_overflow_nor_lose_probability():
    index = torch.cat(list(multisets(2, 1500, 4000)))
    assert float(MultisetLaw(torch.tensor([0.5, 0.5]).double(), 1500)(index).sum()) == pytest.approx(
        1.0, abs=1e-12
    )
