"""Value and gradient of the loss against plain loops, and what a loss must not depend on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from batches import REDUCTIONS, SURROGATES, file, mapped, no_draws, responses, switches
from oracle import by_group, explained
from oracle import loss as plain_loss

from grpo_ablate.algorithm.objective import loss, minibatch, prepare
from grpo_ablate.algorithm.records import Policy
from grpo_ablate.explain import explain

KL = [
    *itertools.product(["k1", "k2", "k3"], ["pathwise", "ratio", "score-function"], ["loss"]),
    *itertools.product(["k1", "k2", "k3", "exact"], ["pathwise"], ["reward-before", "reward-after"]),
    ("exact", "pathwise", "loss"),
]
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def agrees(batch, chosen):
    ours, plain = explain(batch, chosen), explained(batch, chosen)
    for key, expected in plain.items():
        found = getattr(ours, key)
        rows = zip(found, expected, strict=True) if isinstance(expected, list) else [(found, expected)]
        for row, wanted in rows:
            assert row == pytest.approx(wanted, rel=1e-10, abs=1e-12), key


def graph(batch, chosen):
    """Round, current policy with random entropies, and the leaf of its log-probabilities."""
    read = file(batch)
    draws = no_draws(read.batch)
    prepared = prepare(read.batch, chosen, draws, torch.zeros(1, len(read.labels)).double())
    logprobs = read.logprobs.clone().requires_grad_()
    entropy = logprobs.exp() * 0.7 + 0.1
    return read, prepared, Policy(logprobs, entropy=entropy, kl_exact=read.kl_exact), logprobs


def value_and_gradient(read, prepared, policy, leaf, chosen):
    total = loss(read.batch, prepared, policy, chosen).loss.sum()
    return total.detach(), torch.autograd.grad(total, leaf, retain_graph=True)[0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_value_and_gradient_are_those_of_the_plain_formula(surrogate, reduction):
    chosen = switches(
        update={**SURROGATES[surrogate], "reduction": reduction},
        sampling={"max_tokens": 6},
        kl={"beta": 0.3, "estimator": "k3"},
    )
    for seed in range(3):
        agrees(responses(seed), chosen)


@pytest.mark.parametrize(("estimator", "gradient", "place"), KL)
def test_every_kl_penalty_is_the_plain_formula(estimator, gradient, place):
    kl = {"beta": 0.7, "estimator": estimator, "gradient": gradient, "place": place}
    for seed, reduction in enumerate(REDUCTIONS):
        agrees(responses(seed), switches(kl=kl, update={"reduction": reduction}))


@pytest.mark.parametrize("baseline", ["none", "constant", "mean", "leave-one-out", "batch", "ema"])
@pytest.mark.parametrize("scale", ["none", "group-std", "batch-std", "leave-one-out-std"])
@pytest.mark.parametrize("eps_inside", [False, True])
def test_every_advantage_is_the_plain_formula(baseline, scale, eps_inside):
    for seed, (ddof, eps) in enumerate(itertools.product([0, 1], [0.0, 0.01])):
        advantage = {
            "baseline": baseline,
            "scale": scale,
            "ddof": ddof,
            "eps": eps,
            "eps_inside": eps_inside,
            "constant": 0.4,
            "ema_initial": 0.3,
            "advantage_clip": 1.1 if seed % 2 else "off",
        }
        agrees(responses(seed), switches(advantage=advantage))


@pytest.mark.parametrize("baseline", ["none", "constant", "mean"])
@pytest.mark.parametrize("scale", ["none", "group-std"])
def test_process_supervision_is_the_plain_formula(baseline, scale):
    advantage = {"supervision": "process", "baseline": baseline, "scale": scale, "constant": 0.2, "ddof": 1}
    for seed, surrogate in enumerate(("clip", "cispo", "reinforce", "soft", "sequence", "geometric")):
        chosen = switches(advantage=advantage, update=SURROGATES[surrogate], reward={"overlong": "mask"})
        agrees(responses(seed), chosen)
        after = {"beta": 0.3, "place": "reward-after", "estimator": "k1"}
        agrees(responses(seed), switches(advantage=advantage, kl=after))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("in_baseline", [False, True])
@pytest.mark.parametrize("in_denominator", [False, True])
def test_masked_responses_count_where_the_switches_say(reduction, in_baseline, in_denominator):
    reward = {
        "overlong": "mask",
        "masked_in_baseline": in_baseline,
        "masked_in_denominator": in_denominator,
    }
    for seed in range(3):
        agrees(responses(seed), switches(reward=reward, update={"reduction": reduction}, kl={"beta": 0.1}))


@pytest.mark.parametrize("mode", ["none", "truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_mismatch_multiplies_the_policy_term_alone(mode, level):
    update = {"mismatch": mode, "mismatch_level": level, "mismatch_cap": 1.1}
    for seed in range(3):
        agrees(responses(seed), switches(update=update, kl={"beta": 0.5}))


@pytest.mark.parametrize(
    "reward",
    [
        {"transform": "affine", "scale": 10.0, "shift": 3.0},
        {"transform": "power", "power": 4.0},
        {"transform": "constant", "constant": 2.0},
        {"overlong": "soft", "overlong_buffer": 3},
    ],
    ids=str,
)
def test_shaped_rewards_enter_the_statistics(reward):
    for seed in range(3):
        agrees(responses(seed), switches(reward=reward, sampling={"max_tokens": 4}))


def test_the_entropy_bonus_has_the_weights_of_the_surrogate():
    chosen = switches(update={"entropy_coefficient": 0.4, "reduction": "token-mean"})
    batch = responses(1)
    read, prepared, policy, leaf = graph(batch, chosen)
    total, gradient = value_and_gradient(read, prepared, policy, leaf, chosen)
    logp = [[torch.tensor(x, requires_grad=True, dtype=torch.float64) for x in r["logp"]] for r in batch]
    entropy = [[torch.exp(x) * 0.7 + 0.1 for x in row] for row in logp]
    plain = plain_loss(batch, chosen, logp, entropy)["loss"]
    plain.backward()
    assert total.item() == pytest.approx(plain.item(), rel=1e-10)
    for row, wanted in zip(read.ragged(gradient), logp, strict=True):
        assert row == pytest.approx([0.0 if x.grad is None else x.grad.item() for x in wanted], rel=1e-10)


def splits(groups: int) -> list[list[list[int]]]:
    """1 x B, B x 1 and an uneven one."""
    return [[list(range(groups))], [[b] for b in range(groups)], [[1], [0, *range(2, groups)]]]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_splits_of_the_batch_change_neither_value_nor_gradient(surrogate, reduction):
    chosen = switches(
        update={**SURROGATES[surrogate], "reduction": reduction, "entropy_coefficient": 0.2},
        reward={"overlong": "mask"},
        kl={"beta": 0.3},
    )
    split_invariant(chosen)


@pytest.mark.parametrize(("estimator", "gradient", "place"), KL)
def test_splits_of_the_batch_do_not_change_the_kl(estimator, gradient, place):
    split_invariant(switches(kl={"beta": 0.7, "estimator": estimator, "gradient": gradient, "place": place}))


def split_invariant(chosen):
    read, prepared, policy, leaf = graph(responses(5, (4, 3, 4, 2)), chosen)
    value, gradient = value_and_gradient(read, prepared, policy, leaf, chosen)
    for parts in splits(4):
        total, summed = torch.zeros(()).double(), torch.zeros_like(leaf)
        for part in parts:
            groups = torch.tensor([part])
            batch, piece = minibatch(read.batch, prepared, groups, torch.ones_like(groups, dtype=torch.bool))
            says = Policy(*(x[:, part] for x in (policy.logprobs, policy.entropy, policy.kl_exact)))
            step = loss(batch, piece, says, chosen).loss.sum()
            total = total + step.detach()
            summed += torch.autograd.grad(step, leaf, retain_graph=True)[0]
        torch.testing.assert_close(total, value, **EXACT)
        torch.testing.assert_close(summed, gradient, **EXACT)


def test_a_minibatch_step_is_the_number_of_minibatches_times_its_part():
    chosen = switches(update={"reduction": "token-mean"}, kl={"beta": 0.3})
    read, prepared, policy, _ = graph(responses(2, (3, 3, 3, 3)), chosen)
    whole = loss(read.batch, prepared, policy, chosen)
    steps = []
    for part in ([0, 1], [2, 3]):
        groups = torch.tensor([part])
        batch, piece = minibatch(read.batch, prepared, groups, torch.ones(1, 2, dtype=torch.bool))
        says = Policy(policy.logprobs[:, part], kl_exact=policy.kl_exact[:, part])
        steps.append(loss(batch, piece, says, chosen, factor=2.0))
    for name in ("loss", "policy", "kl"):
        mean = (getattr(steps[0], name) + getattr(steps[1], name)) / 2
        torch.testing.assert_close(mean, getattr(whole, name), **EXACT)


def test_a_slot_that_is_not_valid_adds_nothing():
    chosen = switches(kl={"beta": 0.3})
    read, prepared, policy, _ = graph(responses(2), chosen)
    groups, valid = torch.tensor([[0, 1, 0]]), torch.tensor([[True, True, False]])
    batch, piece = minibatch(read.batch, prepared, groups, valid)
    padded = loss(batch, piece, Policy(policy.logprobs[:, [0, 1, 0]]), chosen)
    batch, piece = minibatch(read.batch, prepared, groups[:, :2], valid[:, :2])
    plain = loss(batch, piece, Policy(policy.logprobs[:, :2]), chosen)
    torch.testing.assert_close(padded.loss, plain.loss, **EXACT)
    assert not batch.present[:, 2:].any()


def pad(values, extra):
    """Widen axes G and T of [M, B, G, T] (G alone of [M, B, G]) by ``extra`` poisoned slots."""
    if values.ndim < 3:
        return values
    poison = torch.nan if values.is_floating_point() else 0
    widths = (0, extra, 0, extra) if values.ndim == 4 else (0, extra)
    return torch.nn.functional.pad(values, widths, value=poison)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_padding_and_nan_under_the_mask_change_neither_value_nor_gradient(surrogate):
    for kl in ({"beta": 0.3}, {"beta": 0.3, "estimator": "exact", "place": "reward-after"}):
        chosen = switches(update={**SURROGATES[surrogate], "entropy_coefficient": 0.1}, kl=kl)
        read, prepared, policy, leaf = graph(responses(3), chosen)
        policy = replace(policy, entropy=policy.entropy.detach())
        value, gradient = value_and_gradient(read, prepared, policy, leaf, chosen)
        assert gradient.isfinite().all()
        wide = mapped(read.batch, lambda values: pad(values, 3))
        wide = replace(wide, steps=None)
        again = prepare(wide, chosen, no_draws(wide))
        poisoned = pad(torch.where(read.batch.token, leaf.detach(), torch.nan), 3).requires_grad_()
        entropy = pad(torch.where(read.batch.token, policy.entropy, torch.nan), 3)
        says = Policy(poisoned, entropy=entropy, kl_exact=pad(policy.kl_exact, 3))
        total = loss(wide, again, says, chosen).loss.sum()
        (found,) = torch.autograd.grad(total, poisoned)
        size, width = leaf.shape[2:]
        torch.testing.assert_close(total.detach(), value, **EXACT)
        torch.testing.assert_close(found[:, :, :size, :width], gradient, **EXACT)
        assert found.sum().item() == pytest.approx(gradient.sum().item(), abs=1e-12)


def test_nan_log_probabilities_of_a_missing_or_masked_response_do_not_leak():
    chosen = switches(kl={"beta": 0.3}, reward={"overlong": "mask"})
    batch = responses(4)
    read, prepared, policy, leaf = graph(batch, chosen)
    value, gradient = value_and_gradient(read, prepared, policy, leaf, chosen)
    poisoned = torch.where(prepared.weights != 0, leaf.detach(), torch.nan).requires_grad_()
    total = loss(read.batch, prepared, Policy(poisoned, kl_exact=read.kl_exact), chosen).loss.sum()
    torch.testing.assert_close(total.detach(), value, **EXACT)
    torch.testing.assert_close(torch.autograd.grad(total, poisoned)[0], gradient, **EXACT)


def test_permuting_the_responses_permutes_the_answer():
    chosen = switches(kl={"beta": 0.3}, update={"reduction": "token-mean"}, reward={"overlong": "mask"})
    batch = responses(7)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0)).tolist()
    first, second = explain(batch, chosen), explain([batch[i] for i in order], chosen)
    assert second.loss == pytest.approx(first.loss, rel=1e-12)
    for key in ("advantages", "weights", "grad"):
        for found, i in zip(getattr(second, key), order, strict=True):
            assert found == pytest.approx(getattr(first, key)[i], rel=1e-10, abs=1e-14)


def test_interleaved_ids_are_the_same_groups():
    rewards = [1.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    neighbours = [
        {"group": g, "reward": r, "logp": [-1.0]} for g, r in zip([0, 0, 0, 1, 1, 1], rewards, strict=True)
    ]
    interleaved = [neighbours[i] for i in (0, 3, 1, 4, 2, 5)]
    together, apart = explain(neighbours, switches()), explain(interleaved, switches())
    assert [apart.advantages[i] for i in (0, 2, 4, 1, 3, 5)] == together.advantages


def stacked(first, second):
    """Two members of different shape as one batch; the smaller is padded with NaN."""
    groups = max(first.present.shape[1], second.present.shape[1])
    size = max(first.present.shape[2], second.present.shape[2])
    width = max(first.token.shape[3], second.token.shape[3])

    def joined(name):
        parts = []
        for batch in (first, second):
            values = getattr(batch, name)
            poison = torch.nan if values.is_floating_point() else 0
            grow = [0, groups - values.shape[1]]
            if values.ndim > 2:
                grow = [0, size - values.shape[2], *grow]
            if values.ndim > 3:
                grow = [0, width - values.shape[3], *grow]
            parts.append(torch.nn.functional.pad(values, grow, value=poison))
        return torch.cat(parts)

    names = [
        "prompts", "tokens", "token", "present", "truncated", "reward", "sampler_logprobs", "old_logprobs",
        "reference_logprobs", "old_kl_exact",
    ]  # fmt: skip
    return replace(first, **{name: joined(name) for name in names}, steps=None)


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out", "batch", "ema"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_members_are_independent(baseline, reduction):
    chosen = switches(
        advantage={"baseline": baseline, "scale": "batch-std"},
        update={"reduction": reduction},
        kl={"beta": 0.3},
        reward={"overlong": "mask", "masked_in_denominator": False},
    )
    files = [file(responses(1, (4, 3))), file(responses(2, (2, 5, 3, 3)))]
    both = stacked(*(f.batch for f in files))
    means = torch.tensor([[0.1, 0.2, 0.0, 0.0], [0.3, 0.4, 0.5, 0.6]], dtype=torch.float64)
    together = prepare(both, chosen, no_draws(both), means)
    logprobs = torch.where(both.token, both.old_logprobs * 0.9, torch.nan)
    leaf = logprobs.clone().requires_grad_()
    joint = loss(both, together, Policy(leaf), chosen).loss
    (gradient,) = torch.autograd.grad(joint.sum(), leaf)
    for m, f in enumerate(files):
        alone = prepare(f.batch, chosen, no_draws(f.batch), means[m : m + 1])
        mine = (f.batch.old_logprobs * 0.9).requires_grad_()
        single = loss(f.batch, alone, Policy(mine), chosen).loss
        (expected,) = torch.autograd.grad(single.sum(), mine)
        assert joint[m].item() == pytest.approx(single.item(), rel=1e-12)
        _, groups, size, width = mine.shape
        torch.testing.assert_close(gradient[m : m + 1, :groups, :size, :width], expected, **EXACT)


def test_a_member_may_be_empty():
    chosen = switches(kl={"beta": 0.3})
    files = [file(responses(1, (4, 3))), file(responses(2, (3, 3)))]
    both = stacked(*(f.batch for f in files))
    both = replace(both, present=both.present & torch.tensor([True, False])[:, None, None])
    prepared = prepare(both, chosen, no_draws(both))
    leaf = both.old_logprobs.clone().requires_grad_()
    step = loss(both, prepared, Policy(leaf), chosen)
    (gradient,) = torch.autograd.grad(step.loss.sum(), leaf)
    assert step.loss[1] == 0 and not gradient[1].any()
    assert step.loss[0] == loss(files[0].batch, prepare(files[0].batch, chosen, no_draws(files[0].batch)),
                                Policy(files[0].batch.old_logprobs), chosen).loss[0]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_batch_with_every_response_masked_has_loss_zero(reduction):
    reward = {"overlong": "mask", "masked_in_denominator": False, "masked_in_baseline": False}
    batch = [dict(r, truncated=True) for r in responses(1)]
    found = explain(batch, switches(reward=reward, update={"reduction": reduction}, kl={"beta": 0.3}))
    assert found.loss == 0 and not any(map(any, found.grad))


def test_the_oracle_groups_by_id():
    assert by_group([{"group": 0}, {"group": 1}, {"group": 0}]) == [[0, 2], [1]]
