"""KL estimators: values and gradients by enumeration of every action, and the places they enter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from batches import switches

from grpo_ablate.algorithm.kl import ESTIMATORS, GRADIENTS
from grpo_ablate.algorithm.objective import loss, prepare
from grpo_ablate.algorithm.records import Batch, Policy, RewardDraws
from grpo_ablate.explain import explain

PI, REFERENCE = [0.5, 0.5], [0.9, 0.1]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def expectation(estimator, gradient, pi, reference, old=None):
    """Mean over actions of the old policy of an estimator's value, and of its gradient in logit 0."""
    old = pi if old is None else old
    logits = tensor(pi).log().requires_grad_()
    logprobs = logits.log_softmax(-1)
    k = ESTIMATORS[estimator](tensor(reference).log() - logprobs)
    log_ratio = logprobs - tensor(old).log()
    mean = (tensor(old) * GRADIENTS[gradient](k, log_ratio, logprobs)).sum()
    return mean.item(), torch.autograd.grad(mean, logits)[0][0].item()


def exact(pi, reference):
    logits = tensor(pi).log().requires_grad_()
    logprobs = logits.log_softmax(-1)
    value = (logprobs.exp() * (logprobs - tensor(reference).log())).sum()
    return value.item(), torch.autograd.grad(value, logits)[0][0].item()


def test_the_exact_divergence_of_the_worked_example():
    value, slope = exact(PI, REFERENCE)
    assert value == pytest.approx(0.5108, abs=5e-5) and slope == pytest.approx(-0.5493, abs=5e-5)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5108), ("k2", 0.7339), ("k3", 0.5108)])
def test_values_on_policy(estimator, value):
    assert expectation(estimator, "pathwise", PI, REFERENCE)[0] == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(
    ("gradient", "slopes"),
    [
        ("pathwise", (0, -0.5493, -0.4000)),
        ("ratio", (-0.5493, -0.8299, -0.5493)),
        ("score-function", (-0.5493, -0.2806, -0.1493)),
    ],
)
def test_gradients_on_policy(gradient, slopes):
    for estimator, slope in zip(("k1", "k2", "k3"), slopes, strict=True):
        assert expectation(estimator, gradient, PI, REFERENCE)[1] == pytest.approx(slope, abs=5e-5)


LAWS = [([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]), ([0.7, 0.2, 0.1], [0.1, 0.8, 0.1])]


@pytest.mark.parametrize(("pi", "reference"), LAWS)
def test_which_gradient_is_that_of_which_divergence(pi, reference):
    reverse = exact(pi, reference)[1]
    logits = tensor(pi).log().requires_grad_()
    forward = (tensor(reference) * (tensor(reference).log() - logits.log_softmax(-1))).sum()
    forward = torch.autograd.grad(forward, logits)[0][0].item()
    right = [("ratio", "k1"), ("ratio", "k3"), ("score-function", "k1"), ("pathwise", "k2")]
    for gradient, estimator in itertools.product(GRADIENTS, ESTIMATORS):
        found = expectation(estimator, gradient, pi, reference)[1]
        assert (found == pytest.approx(reverse, rel=1e-9)) == ((gradient, estimator) in right)
    assert expectation("k3", "pathwise", pi, reference)[1] == pytest.approx(forward, rel=1e-9)
    assert expectation("k1", "pathwise", pi, reference)[1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("pi", "reference"), LAWS)
def test_off_policy_the_ratio_corrects_the_value(pi, reference):
    old = [0.1, 0.3, 0.6]
    value = divergence(pi, reference)
    assert expectation("k3", "ratio", pi, reference, old)[0] == pytest.approx(value, rel=1e-12)
    assert expectation("k3", "pathwise", pi, reference, old)[0] != pytest.approx(value, rel=1e-2)
    assert expectation("k3", "ratio", pi, reference, old)[1] == pytest.approx(exact(pi, reference)[1], rel=1e-9)


def test_k3_is_never_negative_and_zero_only_at_equality():
    z = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    assert (ESTIMATORS["k3"](z) >= 0).all() and ESTIMATORS["k3"](z)[500] == 0


def test_the_penalty_is_positive_away_from_the_reference():
    """A wrong sign would reward distance; the step of the loss must lower k3, k2 and the corrected k1."""
    entry = {"group": 0, "reward": 0.0, "logp": [-0.2], "ref_logp": [-2.0]}
    for estimator, gradient in (("k3", "pathwise"), ("k2", "pathwise"), ("k1", "score-function"), ("k3", "ratio")):
        found = explain([entry], switches(kl={"beta": 0.5, "estimator": estimator, "gradient": gradient}))
        assert found.kl_loss > 0 and found.grad[0][0] > 0


def batch_of(rewards, reference_logp=-1.5, old_logp=-1.0, **more):
    return [
        {"group": 0, "reward": r, "logp": [old_logp + 0.1 * i], "ref_logp": [reference_logp + 0.3 * i], **more}
        for i, r in enumerate(rewards)
    ]


def test_a_constant_group_keeps_its_kl_gradient():
    found = explain(batch_of([1.0, 1.0]), switches(kl={"beta": 0.1}))
    assert found.policy_loss == 0 and all(row[0] != 0 for row in found.grad)


def test_kl_before_the_statistics_wakes_a_constant_group_and_is_divided_by_its_spread():
    before = {"beta": 0.1, "place": "reward-before", "estimator": "k1"}
    found = explain(batch_of([1.0, 1.0]), switches(kl=before))
    assert [row[0] for row in found.advantages] == pytest.approx([-1.0, 1.0])
    assert found.kl_loss == 0
    after = explain(batch_of([1.0, 1.0]), switches(kl=before | {"place": "reward-after"}))
    assert [row[0] for row in after.advantages] == pytest.approx([-0.05, -0.03])


def test_exact_kl_before_the_statistics_is_one_constant_that_the_mean_removes():
    kl = {"beta": 0.7, "estimator": "exact", "place": "reward-before"}
    batch = [dict(r, kl_exact=[0.25]) for r in batch_of([1.0, 0.5, 0.0])]
    found, without = explain(batch, switches(kl=kl)), explain(batch, switches())
    for a, b in zip(found.advantages, without.advantages, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


def test_kl_after_the_statistics_is_summed_from_each_token_on():
    entry = {"group": 0, "reward": 1.0, "logp": [-1.0, -2.0, -3.0], "ref_logp": [-1.5, -2.1, -3.4]}
    kl = {"beta": 2.0, "estimator": "k1", "place": "reward-after"}
    found = explain([entry], switches(advantage={"baseline": "none", "scale": "none"}, kl=kl))
    assert found.advantages[0] == pytest.approx([1 - 2 * 1.0, 1 - 2 * 0.5, 1 - 2 * 0.4])


def test_the_gradient_switch_acts_in_the_loss_alone():
    for place in ("reward-before", "reward-after"):
        grads = [
            explain(batch_of([1.0, 0.3]), switches(kl={"beta": 0.4, "place": place, "gradient": g})).grad
            for g in GRADIENTS
        ]
        assert grads[0] == grads[1] == grads[2]


def expected_step(logits, rewards, size, chosen, reference):
    """The gradient of the loss in the logits, averaged over every group of one prompt, by enumeration."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    groups = torch.tensor(list(itertools.product(range(len(rewards)), repeat=size)))
    chance = logprobs.detach().exp()[groups].prod(-1)
    members = len(groups)
    shape = (members, 1, size, 1)
    old = logprobs.detach()[groups].view(shape)
    ones = torch.ones(shape, dtype=torch.bool)
    batch = Batch(
        prompts=torch.zeros(members, 1, dtype=torch.int64),
        tokens=groups.view(shape),
        token=ones,
        present=ones[..., 0],
        truncated=~ones[..., 0],
        reward=tensor(rewards)[groups].view(shape[:3]),
        components={},
        sampler_logprobs=old,
        old_logprobs=old,
        reference_logprobs=tensor(reference).log()[groups].view(shape),
    )
    zeros = torch.zeros(shape[:3], dtype=torch.float64)
    prepared = prepare(batch, chosen, RewardDraws(zeros, zeros, zeros[..., :1].expand(members, 1, 2)))
    divergence = (logprobs.exp() * (logprobs - tensor(reference).log())).sum().expand(shape)
    policy = Policy(logprobs[groups].view(shape), kl_exact=divergence)
    total = (chance * loss(batch, prepared, policy, chosen).loss).sum()
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize(
    ("baseline", "size", "factor"), [("mean", 2, 0.5), ("mean", 4, 0.75), ("leave-one-out", 3, 1.0)]
)
def test_the_fixed_point_is_the_tilted_reference(baseline, size, factor):
    """pi_ref exp(r / beta) for an unbiased gradient; the group mean tilts by (1 - 1/G) r / beta."""
    rewards, reference, beta = [0.0, 0.35, 1.0], [0.5, 0.3, 0.2], 0.4
    chosen = switches(
        advantage={"baseline": baseline, "scale": "none"},
        kl={"beta": beta, "estimator": "exact"},
    )
    optimum = tensor(reference).log() + factor * tensor(rewards) / beta
    assert expected_step(optimum, rewards, size, chosen, reference).abs().max() < 1e-12
    assert expected_step(tensor(reference).log(), rewards, size, chosen, reference).abs().max() > 1e-3


def test_scaling_rewards_needs_beta_scaled_without_a_std_and_not_with_one():
    rewards, reference = [0.0, 0.35, 1.0], [0.5, 0.3, 0.2]
    for scale, factor in (("none", 10.0), ("group-std", 1.0)):
        steps = [
            expected_step(
                tensor([0.2, 0.0, -0.1]),
                [a * r for r in rewards],
                3,
                switches(advantage={"scale": scale}, kl={"beta": beta, "estimator": "exact"}),
                reference,
            )
            for a, beta in ((1.0, 0.4), (10.0, 0.4 * factor))
        ]
        torch.testing.assert_close(steps[1], steps[0] * factor, rtol=1e-9, atol=1e-12)


def test_the_true_estimators_move_the_expected_step_like_the_exact_divergence():
    rewards, reference, logits = [0.5, 0.5, 0.5], [0.5, 0.3, 0.2], tensor([0.4, 0.0, -0.3])
    wanted = expected_step(logits, rewards, 2, switches(kl={"beta": 1.0, "estimator": "exact"}), reference)
    for estimator, gradient in (("k2", "pathwise"), ("k3", "ratio"), ("k1", "ratio"), ("k1", "score-function")):
        chosen = switches(kl={"beta": 1.0, "estimator": estimator, "gradient": gradient})
        found = expected_step(logits, rewards, 2, chosen, reference)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("estimator", "place"), [("k2", "loss"), ("k3", "loss")])
def test_a_kl_of_zero_stays_zero_whatever_the_ratio(estimator, place):
    """u k and its gradient u (k + k') are 0 where the policy equals the reference, u = e^800 included."""
    entry = {"group": 0, "reward": 1.0, "logp": [-0.1], "old_logp": [-800.1], "ref_logp": [-0.1]}
    found = explain(
        [entry], switches(kl={"beta": 0.1, "estimator": estimator, "gradient": "ratio", "place": place})
    )
    assert found.kl_loss == 0 and found.grad == [[0.0]]
