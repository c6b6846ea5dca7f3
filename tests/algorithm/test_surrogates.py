"""Surrogates: plateaus, their flags, the first step of a round, published numbers."""

from __future__ import annotations

import math

import pytest
import torch
from batches import SURROGATES, responses, switches

from grpo_ablate.explain import explain


def one_token(advantage: float, ratio: float, **update):
    """Explain one token with the given advantage and ratio."""
    entry = {"group": 0, "reward": advantage, "logp": [math.log(ratio)], "old_logp": [0.0]}
    return explain([entry], switches(advantage={"baseline": "none", "scale": "none"}, update=update))


def test_a_token_far_above_the_bound_with_negative_advantage_needs_dual_clip():
    plain = one_token(-1, 5)
    assert plain.loss == pytest.approx(5) and plain.grad == [[pytest.approx(5)]]
    assert plain.clipped == [[None]]
    dual = one_token(-1, 5, dual_clip=3.0)
    assert dual.loss == pytest.approx(3) and dual.grad == [[0.0]] and dual.clipped == [["dual"]]
    assert one_token(1, 5, dual_clip=3.0).loss == pytest.approx(-1.2)


@pytest.mark.parametrize(
    ("advantage", "ratio", "clipped", "objective", "slope"),
    [
        (1, 1.5, "high", 1.2, 0),
        (1, 0.5, None, 0.5, 0.5),
        (-1, 1.5, None, -1.5, -1.5),
        (-1, 0.5, "low", -0.8, 0),
        (1, 1.1, None, 1.1, 1.1),
        (0, 1.5, None, 0, 0),
    ],
)
def test_clip_is_flat_only_where_the_sign_of_the_advantage_makes_it_so(
    advantage, ratio, clipped, objective, slope
):
    found = one_token(advantage, ratio)
    assert found.clipped == [[clipped]]
    assert found.objective == [[pytest.approx(objective)]]
    assert found.grad == [[pytest.approx(-slope)]]
    assert found.metrics["train/clip_fraction_high"] == (clipped == "high")
    assert found.metrics["train/clip_fraction_low"] == (clipped == "low")
    assert found.metrics["train/no_gradient"] == (slope == 0)


def test_clip_higher_moves_the_upper_plateau_alone():
    assert one_token(1, 1.25, clip_high=0.28).clipped == [[None]]
    assert one_token(1, 1.3, clip_high=0.28).objective == [[pytest.approx(1.28)]]
    assert one_token(-1, 0.7, clip_high=0.28).objective == [[pytest.approx(-0.8)]]


def test_a_bound_that_is_off_never_acts():
    assert one_token(1, 50, clip_high="off").objective == [[pytest.approx(50)]]
    assert one_token(-1, 0.01, clip_low="off").objective == [[pytest.approx(-0.01)]]


def test_the_log_ratio_clamp_holds_the_ratio_and_its_gradient():
    found = one_token(-1, math.exp(30), log_ratio_clamp=20.0)
    assert found.ratios == [[pytest.approx(math.exp(20))]] and found.grad == [[0.0]]
    assert found.metrics["train/no_gradient"] == 1


def test_cispo_holds_its_weight_and_keeps_its_gradient():
    cap = {"surrogate": "cispo", "clip_low": "off", "clip_high": 4.0}
    inside, outside = one_token(1, 3, **cap), one_token(-1, 9, **cap)
    assert inside.grad == [[pytest.approx(-3)]] and inside.clipped == [[None]]
    assert outside.grad == [[pytest.approx(5)]] and outside.clipped == [["high"]]
    assert outside.metrics["train/no_gradient"] == 0


def test_an_absolute_cap_is_the_upper_bound_plus_one():
    absolute = 2.0
    found = one_token(1, 3, surrogate="cispo", clip_low="off", clip_high=absolute - 1)
    assert found.grad == [[pytest.approx(-min(3, absolute))]]


def test_the_sequence_ratio_is_the_geometric_mean_of_the_token_ratios():
    entry = {"group": 0, "reward": 1.0, "logp": [0.3, 0.1, -0.1], "old_logp": [0.0] * 3}
    advantage = {"baseline": "none", "scale": "none"}
    tokens = explain([entry], switches(advantage=advantage)).ratios[0]
    assert tokens == pytest.approx([1.350, 1.105, 0.905], abs=5e-4)
    assert math.prod(tokens) == pytest.approx(1.350, abs=5e-4)
    sequence = explain([entry], switches(advantage=advantage, update={"surrogate": "sequence"}))
    assert sequence.ratios[0] == pytest.approx([1.105] * 3, abs=5e-4)
    open_bounds = {"surrogate": "sequence", "clip_high": "off"}
    unclipped = explain([entry], switches(advantage=advantage, update=open_bounds))
    assert unclipped.grad[0] == pytest.approx([-math.exp(0.1) / 3] * 3)


def test_geometric_holds_each_token_on_the_log_scale():
    entry = {"group": 0, "reward": 1.0, "logp": [1.0, 0.1, -1.0], "old_logp": [0.0] * 3}
    update = {"surrogate": "geometric", "clip_low": 0.4, "clip_high": 0.4}
    found = explain([entry], switches(advantage={"baseline": "none", "scale": "none"}, update=update))
    value = math.exp((0.4 + 0.1 - 1.0) / 3)
    assert found.objective[0] == pytest.approx([value] * 3)
    assert found.clipped == [["high", None, None]]
    assert found.grad[0] == pytest.approx([0.0, -value / 3, -value / 3])


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 1.05)])
def test_soft_is_a_gate_that_never_goes_flat(advantage, tau):
    found = one_token(advantage, 3, surrogate="soft")
    gate = 1 / (1 + math.exp(-tau * 2))
    assert found.objective == [[pytest.approx(advantage * 4 / tau * gate)]]
    assert found.grad == [[pytest.approx(-advantage * 4 * gate * (1 - gate) * 3)]]


def test_cispo_without_its_log_probability_would_have_no_gradient():
    assert one_token(1, 1, surrogate="cispo").grad == [[pytest.approx(-1)]]


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_at_the_old_policy_every_surrogate_has_the_plain_policy_gradient(surrogate):
    batch = [dict(r, old_logp=r["logp"]) for r in responses(3, missing=False)]
    found = explain(batch, switches(update=SURROGATES[surrogate]))
    assert all(ratio == 1.0 for row in found.ratios for ratio in row)
    assert not any(any(row) for row in found.clipped)
    for grad, advantage, weight in zip(found.grad, found.advantages, found.weights, strict=True):
        assert grad == pytest.approx(
            [-a * w for a, w in zip(advantage, weight, strict=True)], rel=1e-12, abs=1e-15
        )


def test_clipping_cannot_act_on_the_first_step_of_a_round():
    batch = [dict(r, old_logp=r["logp"]) for r in responses(3)]
    bounds = (
        {},
        {"clip_low": 0.01, "clip_high": 0.5, "dual_clip": 2.0},
        {"clip_low": "off", "clip_high": "off"},
    )
    grads = [explain(batch, switches(update=update)).grad for update in bounds]
    assert grads[0] == grads[1] == grads[2]


def test_the_upper_plateau_is_reachable_only_below_probability_one():
    """(1 + hi) pi_k(a) <= 1 is where a ratio above 1 + hi can exist at all."""
    for old in (0.5, 0.9):
        reachable = (1 + 0.2) * old <= 1
        ratio = 1.0 / old  # the largest there is
        assert (one_token(1, ratio).clipped == [["high"]]) == (reachable and ratio > 1.2)


def test_infinite_ratios_of_masked_responses_leave_the_others_alone():
    entries = [
        {"group": 0, "reward": r, "logp": [x], "old_logp": [-1.0], "truncated": t}
        for r, x, t in ((1.0, -1.0, False), (0.0, -1.0, False), (0.5, 2000.0, True))
    ]
    for surrogate in SURROGATES.values():
        found = explain(entries, switches(update=surrogate, reward={"overlong": "mask"}))
        assert all(math.isfinite(g) for row in found.grad for g in row)
        assert found.grad[2] == [0.0] and math.isfinite(found.loss)


def test_bounds_are_compared_in_double_precision():
    ratio = torch.tensor(1.2, dtype=torch.float64).item()
    assert one_token(1, ratio * (1 + 1e-12)).clipped == [["high"]]


HUGE = {"logp": [-0.1], "old_logp": [-800.0]}  # u = e^799.9, beyond float64
OPEN = {"clip_low": "off", "clip_high": "off", "force": True}


@pytest.mark.parametrize(
    ("update", "reward", "objective"),
    [
        ({}, 1, 1.2),
        ({"surrogate": "sequence"}, 1, 1.2),
        ({"dual_clip": 3.0}, -1, -3.0),
        ({"surrogate": "soft"}, 1, 4.0),
        ({"surrogate": "soft"}, -1, -4 / 1.05),
    ],
)
def test_a_flat_token_has_no_gradient_though_its_ratio_overflows(update, reward, objective):
    """The limits for u to infinity: (1 + hi) A, c A, and A 4 / tau, all with slope 0."""
    entries = [
        {"group": 0, "reward": reward, **HUGE},
        {"group": 0, "reward": 0.0, "logp": [-0.2], "old_logp": [-0.2]},
    ]
    found = explain(entries, switches(advantage={"baseline": "none", "scale": "none"}, update=update))
    assert found.objective[0] == [pytest.approx(objective, rel=1e-15)] and found.grad == [[0.0], [0.0]]
    assert found.metrics["train/no_gradient"] == 1
    assert found.loss == pytest.approx(-objective / 2)


@pytest.mark.parametrize("surrogate", [*SURROGATES, "sequence-open", "cispo-open"])
def test_an_advantage_of_zero_has_no_gradient_though_its_ratio_overflows(surrogate):
    name, is_open, _ = surrogate.partition("-open")
    update = SURROGATES[name if is_open else surrogate] | (OPEN if is_open else {})
    entries = [{"group": 0, "reward": 1.0, **HUGE}] * 2  # a constant group
    found = explain(entries, switches(update=update))
    assert found.objective == [[0.0], [0.0]] and found.grad == [[0.0], [0.0]] and found.loss == 0


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_token_taken_out_by_the_mismatch_mask_has_no_gradient_though_its_ratio_overflows(surrogate):
    """Its sampler was e^5 times less likely: factor 0, so the gradient is that of the other response alone."""
    other = {"group": 0, "reward": -1.0, "logp": [-0.3], "old_logp": [-0.3], "sampler_logp": [-0.3]}
    masked = {"group": 0, "reward": 1.0, **HUGE, "sampler_logp": [-805.0]}
    update = SURROGATES[surrogate] | {"mismatch": "mask"}
    found = explain([masked, other], switches(advantage={"baseline": "none", "scale": "none"}, update=update))
    assert found.mismatch == [[0.0], [1.0]]
    assert found.grad == [[0.0], [pytest.approx(0.5)]]  # - A u / 2 with u = 1
