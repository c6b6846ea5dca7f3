"""Metrics: sums divided once, by the denominators they declare."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import file, no_draws, responses, rewards_batch, switches

from grpo_ablate.algorithm.monitoring import round_metrics
from grpo_ablate.algorithm.objective import loss, minibatch, prepare
from grpo_ablate.algorithm.records import Policy
from grpo_ablate.explain import explain
from grpo_ablate.metrics import METRICS, combine, divide


def of_round(batch, chosen=None, generated=None):
    chosen = switches() if chosen is None else chosen
    prepared = prepare(batch, chosen, no_draws(batch))
    return divide(round_metrics(batch, prepared, batch if generated is None else generated, chosen))


def test_constant_groups_are_told_apart_and_predicted_from_the_success_rate():
    found = of_round(rewards_batch([[0, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]))
    assert found["train/groups_all_wrong"].item() == found["train/groups_all_right"].item() == 0.25
    assert found["train/groups_constant_other"].item() == 0
    assert found["train/groups_constant_predicted"].item() == pytest.approx(2 * 0.5**3)
    graded = of_round(rewards_batch([[0.5, 0.5, 0.5], [0.2, 0.5, 1.0]]))
    assert graded["train/groups_constant_other"].item() == 0.5
    assert math.isnan(graded["train/groups_constant_predicted"].item())


def test_the_predicted_share_is_the_expected_one():
    """Groups drawn with one success rate: the prediction from their mean agrees with the count."""
    draws = (torch.rand(20000, 4, generator=torch.Generator().manual_seed(1)) < 0.1).double()
    batch = rewards_batch([[0.0, 1.0, 0.0, 0.0]])
    wide = type(batch)(
        **{
            name: value.expand(1, 20000, *value.shape[2:]) if isinstance(value, torch.Tensor) else value
            for name, value in vars(batch).items()
        }
        | {"reward": draws[None]}
    )
    found = of_round(wide)
    constant = found["train/groups_all_wrong"] + found["train/groups_all_right"]
    assert found["train/groups_constant_predicted"].item() == pytest.approx(0.9**4 + 0.1**4, abs=0.01)
    assert constant.item() == pytest.approx(found["train/groups_constant_predicted"].item(), abs=0.01)


def test_lengths_of_right_and_wrong_answers_and_their_spread():
    entries = [
        {"group": 0, "reward": r, "logp": [-1.0] * n, "truncated": n == 6}
        for r, n in ((1, 1), (0, 2), (0, 6), (0.5, 3))
    ]
    found = explain(entries, switches()).metrics
    assert found["train/length"] == 3 and found["train/length_right"] == 1 and found["train/length_wrong"] == 4
    assert found["train/length_std"] == pytest.approx(math.sqrt((4 + 1 + 9 + 0) / 4))
    assert found["train/truncated"] == 0.25


def test_rejected_responses_are_in_what_was_generated_and_not_in_what_trained():
    generated = rewards_batch([[1, 1], [1, 0]])
    keep = torch.tensor([[[False, False], [True, True]]])
    found = of_round(replace(generated, present=keep), generated=generated)
    assert found["train/reward_raw"].item() == 0.75 and found["train/reward_shaped"].item() == 0.5
    assert found["train/rollouts_discarded"].item() == found["train/groups_accepted"].item() == 0.5


def test_ratio_metrics_count_trained_tokens():
    entries = [
        {"group": 0, "reward": r, "logp": [math.log(u)], "old_logp": [0.0]}
        for r, u in ((1.0, 1.5), (0.0, 0.5), (None, 9.0))
    ]
    found = explain(entries, switches()).metrics
    assert found["train/ratio"] == pytest.approx(1.0) and found["train/ratio_max"] == pytest.approx(1.5)
    assert found["train/ratio_min"] == pytest.approx(0.5)
    assert found["train/effective_sample_size"] == pytest.approx(4 / (2 * (1.5**2 + 0.5**2)))
    assert found["train/clip_fraction_high"] == found["train/clip_fraction_low"] == 0.5
    assert found["train/no_gradient"] == 1.0


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_kl_to_the_old_policy_and_to_the_reference_are_unbiased_on_the_old_policys_samples():
    """Two actions, weighted by how often the old policy takes them."""
    old, new, reference = [0.25, 0.75], [0.5, 0.5], [0.75, 0.25]
    columns = {"logp": new, "old_logp": old, "ref_logp": reference}
    entries = [
        {"group": 0, "reward": 0.0} | {key: [math.log(law[a])] for key, law in columns.items()}
        for a in (0, 1, 1, 1)
    ]
    found = explain(entries, switches()).metrics
    assert found["train/kl_old"] == pytest.approx(divergence(old, new))
    assert found["train/kl_reference"] == pytest.approx(divergence(new, reference))


def test_metrics_of_microbatches_join_to_those_of_the_step():
    chosen = switches(kl={"beta": 0.3}, update={"reduction": "token-mean"})
    read = file(responses(1, (4, 3, 2)))
    prepared = prepare(read.batch, chosen, no_draws(read.batch))
    whole = loss(read.batch, prepared, Policy(read.logprobs, entropy=read.logprobs.exp()), chosen).metrics
    joined: dict = {}
    for b in range(3):
        groups = torch.tensor([[b]])
        batch, piece = minibatch(read.batch, prepared, groups, torch.ones(1, 1, dtype=torch.bool))
        says = Policy(read.logprobs[:, [b]], entropy=read.logprobs[:, [b]].exp())
        joined = combine(joined, loss(batch, piece, says, chosen).metrics, one_update=True)
    expected, found = divide(whole), divide(joined)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-14, msg=name)


def test_two_updates_average_their_losses_and_sum_their_tokens():
    chosen = switches()
    parts = []
    for seed, sizes in ((1, (4, 3)), (2, (3, 3, 5))):
        read = file(responses(seed, sizes))
        parts.append(
            loss(
                read.batch, prepare(read.batch, chosen, no_draws(read.batch)), Policy(read.logprobs), chosen
            ).metrics
        )
    both = divide(combine(*parts))
    mean = sum(part["train/loss"].total.item() for part in parts) / 2
    assert both["train/loss"].item() == pytest.approx(mean)
    total, count = (sum(getattr(p["train/ratio"], part).item() for p in parts) for part in ("total", "count"))
    assert both["train/ratio"].item() == pytest.approx(total / count)
    assert both["train/ratio_max"].item() == max(p["train/ratio_max"].total.item() for p in parts)
    assert both["train/ratio_min"].item() == min(p["train/ratio_min"].total.item() for p in parts)


def test_nothing_counted_is_not_a_number():
    batch = rewards_batch([[None, None]])
    chosen = switches()
    step = loss(batch, prepare(batch, chosen, no_draws(batch)), Policy(batch.old_logprobs), chosen)
    found = divide(step.metrics) | of_round(batch)
    for name in (
        "train/ratio",
        "train/ratio_max",
        "train/loss",
        "train/reward_raw",
        "train/effective_sample_size",
    ):
        assert math.isnan(found[name].item()), name
    assert found["train/reward_missing"].item() == 1 and step.loss.item() == 0


def test_every_metric_that_is_made_is_published():
    everything = explain(responses(1), switches(advantage={"supervision": "process"}, kl={"beta": 0.1})).metrics
    assert set(everything) <= set(METRICS)
    assert {"train/groups_without_steps", "train/kl_reference", "train/mismatch"} <= set(everything)
