"""The filter on groups, the law of sampling, the mismatch between two engines."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from batches import no_draws, rewards_batch, switches

from grpo_ablate.algorithm.mismatch import factor, raw_ratio
from grpo_ablate.algorithm.objective import loss, prepare
from grpo_ablate.algorithm.records import Policy
from grpo_ablate.algorithm.sampling import accepted, law_logprobs, mixed_probability, supported_logprobs
from grpo_ablate.errors import UserError
from grpo_ablate.explain import explain


def kept(rewards, **sampling):
    chosen = switches(sampling={"dynamic": "drop", **sampling}).sampling
    return accepted(rewards_batch(rewards), chosen)[0].tolist()


def test_the_filter_tests_the_spread_and_not_the_mean():
    assert kept([[0.5] * 4, [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0.2, 0.2, 0.2, 0.3]]) == [
        False, True, False, False, True,
    ]  # fmt: skip


def test_a_missing_reward_is_no_contrast():
    assert kept([[1.0, None], [None, None], [1.0, 1.0]]) == [False, False, False]
    assert kept([[1.0, None, 0.0], [1.0, 1.0, None]]) == [True, False]


def test_without_a_filter_every_group_trains():
    assert kept([[1, 1], [0, 0]], dynamic="off") == [True, True]


def test_the_filter_looks_at_the_raw_component_and_not_at_a_shaped_reward():
    batch = replace(
        rewards_batch([[1.0, 0.9], [1.0, 0.0]]),
        components={"accuracy": torch.tensor([[[1.0, 1.0], [1.0, 0.0]]]).double()},
    )
    chosen = switches(sampling={"dynamic": "drop"}).sampling
    assert accepted(batch, chosen)[0].tolist() == [False, True]
    on_total = chosen.model_copy(update={"filter_on": "reward"})
    assert accepted(batch, on_total)[0].tolist() == [True, True]
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        accepted(batch, chosen.model_copy(update={"filter_on": "acuracy"}))


def test_a_length_penalty_does_not_hide_a_constant_group():
    entries = [{"group": 0, "reward": 1.0, "logp": [-1.0] * n} for n in (1, 4)]
    chosen = switches(
        reward={"overlong": "soft", "overlong_buffer": 2}, sampling={"dynamic": "drop", "max_tokens": 4}
    )
    found = explain(entries, chosen)
    assert found.weights == [[0.0], [0.0] * 4] and found.metrics["train/groups_accepted"] == 0


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_group_is_accepted_with_the_chance_that_it_is_mixed(size):
    groups = [list(map(float, group)) for group in itertools.product([0, 1], repeat=size)]
    for p in (0.01, 0.3, 0.9):
        chance = sum(
            p ** sum(group) * (1 - p) ** (size - sum(group))
            for group, keep in zip(groups, kept(groups), strict=True)
            if keep
        )
        assert chance == pytest.approx(mixed_probability(p, size), rel=1e-9)
    assert mixed_probability(0.01, 2) == pytest.approx(0.0198, abs=5e-5)
    assert mixed_probability(0.01, 16) == pytest.approx(0.1485, abs=5e-5)


@pytest.mark.parametrize("reduction", ["sequence-mean", "token-mean", "sequence-sum"])
def test_dropping_constant_groups_multiplies_the_update_by_one_over_the_accepted_share(reduction):
    entries = [
        {"group": g, "reward": r, "logp": [-1.0]}
        for g, group in enumerate([[1, 0], [1, 1], [0, 0], [0, 0]])
        for r in group
    ]
    whole = explain(entries, switches(update={"reduction": reduction}))
    dropped = explain(entries, switches(update={"reduction": reduction}, sampling={"dynamic": "drop"}))
    for a, b in zip(dropped.grad, whole.grad, strict=True):
        assert a[0] == pytest.approx(4 * b[0], abs=1e-15)
    assert dropped.metrics["train/rollouts_discarded"] == 0.75
    assert dropped.metrics["train/tokens_discarded"] == 0.75


# The law really sampled from


def test_log_probabilities_of_another_temperature_are_no_ratio():
    logits = torch.tensor([2.0, 0.0], dtype=torch.float64)
    warm, sampled = (law_logprobs(logits, switches(sampling={"temperature": t}).sampling) for t in (1.0, 0.6))
    assert (warm - sampled).exp().tolist() == pytest.approx([0.912, 3.461], abs=5e-4)


def test_the_neutral_law_is_the_models():
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(law_logprobs(logits, switches().sampling), logits.log_softmax(-1))


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        ({"top_k": 2}, [True, True, False, False]),
        ({"top_p": 0.5}, [True, False, False, False]),
        ({"top_p": 0.51}, [True, True, False, False]),
        ({"top_p": 0.8, "top_k": 1}, [True, False, False, False]),
        ({"top_k": 9}, [True] * 4),
    ],
)
def test_top_k_and_top_p_keep_the_most_probable_tokens(sampling, support):
    probability = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        found = law_logprobs(probability[order].log(), switches(sampling=sampling).sampling)
        assert (found > -torch.inf).tolist() == [support[i] for i in order]
        assert found.exp().sum().item() == pytest.approx(1)


def test_leaving_the_cut_out_of_the_log_probability_costs_the_kept_mass():
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64).log()
    sampled = law_logprobs(logits, switches(sampling={"top_p": 0.7}).sampling)
    mean_ratio = (sampled.exp() * (logits.log_softmax(-1) - sampled).exp()).nansum()
    assert mean_ratio.item() == pytest.approx(0.75)
    corrected = supported_logprobs(logits, sampled > -torch.inf, 1.0)
    torch.testing.assert_close(corrected, sampled)


def test_the_support_is_the_one_of_sampling_though_the_logits_moved():
    support = torch.tensor([True, True, False])
    moved = torch.tensor([0.0, 1.0, 9.0], dtype=torch.float64, requires_grad=True)
    found = supported_logprobs(moved, support, 0.5)
    assert found[2] == -torch.inf and found[:2].exp().sum().item() == pytest.approx(1)
    (gradient,) = torch.autograd.grad(found[0], moved)
    assert gradient.isfinite().all() and gradient[2] == 0


# Two engines


def engines(old, sampler):
    entry = {"group": 0, "reward": 1.0, "logp": old, "sampler_logp": sampler}
    return [entry, {"group": 0, "reward": 0.0, "logp": [-1.0]}]


@pytest.mark.parametrize(
    ("mode", "level", "expected"),
    [
        ("none", "token", [1, 1]),
        ("truncate", "token", [1.5, 0.5]),
        ("mask", "token", [0, 0.5]),
        ("truncate", "sequence", [1.0, 1.0]),
        ("mask", "sequence", [1.0, 1.0]),
    ],
)
def test_the_factor_of_an_engine_mismatch(mode, level, expected):
    old, sampler = [math.log(2.0), math.log(0.5)], [0.0, 0.0]
    update = {"mismatch": mode, "mismatch_level": level, "mismatch_cap": 1.5}
    found = explain(engines(old, sampler), switches(update=update))
    assert found.mismatch[0] == pytest.approx(expected) and found.mismatch[1] == [1.0]
    assert found.metrics["train/mismatch_max"] == pytest.approx(2.0 if level == "token" else 1.0)
    assert found.metrics["train/mismatch_over_cap"] == pytest.approx(1 / 3 if level == "token" else 0)


def test_nan_where_the_sampler_has_nothing_does_not_leak_into_the_factor():
    batch = rewards_batch([[1.0, 0.0]])
    batch = replace(
        batch,
        present=torch.tensor([[[True, False]]]),
        sampler_logprobs=torch.where(torch.tensor([[[[True], [False]]]]), batch.old_logprobs, torch.nan),
    )
    for level, mode in itertools.product(("token", "sequence"), ("truncate", "mask")):
        update = switches(update={"mismatch": mode, "mismatch_level": level}).update
        assert factor(batch, update).tolist() == raw_ratio(batch, update).tolist() == [[[[1.0], [1.0]]]]


def test_a_masked_factor_ends_the_policy_gradient_and_not_the_kl():
    batch = rewards_batch([[1.0, 0.0]])
    batch = replace(batch, sampler_logprobs=batch.old_logprobs - 5, reference_logprobs=batch.old_logprobs - 1)
    chosen = switches(update={"mismatch": "mask"}, kl={"beta": 0.5})
    leaf = batch.old_logprobs.clone().requires_grad_()
    step = loss(batch, prepare(batch, chosen, no_draws(batch)), Policy(leaf), chosen)
    assert step.policy.item() == 0 and step.kl.item() > 0
    assert step.metrics["train/no_gradient"].total.item() == 2
