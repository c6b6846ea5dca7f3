"""Token weights: the worked example, what counts, and that splits cannot matter."""

from __future__ import annotations

import pytest
import torch
from batches import REDUCTIONS, file, no_draws, responses, switches

from grpo_ablate.algorithm.objective import loss, minibatch, prepare
from grpo_ablate.algorithm.records import Policy
from grpo_ablate.explain import explain

WORKED = [
    {"group": 0, "reward": 1.0, "logp": [-1.0]},
    {"group": 0, "reward": -1.0, "logp": [-1.0, -0.5, -0.2]},
]


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sequence-mean", 0), ("token-mean", 0.5), ("constant", 0.25), ("sequence-sum", 1)]
)
def test_the_worked_example_of_unequal_lengths(reduction, expected):
    found = explain(WORKED, switches(update={"reduction": reduction}, sampling={"max_tokens": 4}))
    assert found.advantages == [[1.0], [-1.0] * 3]
    assert found.loss == pytest.approx(expected, abs=1e-15)


def test_a_token_mean_per_microbatch_would_be_zero_and_is_not_what_we_do():
    chosen = switches(update={"reduction": "token-mean"})
    entries = [dict(r, group=i) for i, r in enumerate(WORKED)]
    wrong = sum(explain([entry], _raw(chosen)).loss for entry in entries) / 2
    assert wrong == pytest.approx(0, abs=1e-15)
    read = file(entries)
    prepared = prepare(read.batch, _raw(chosen), no_draws(read.batch))
    parts = [
        loss(*minibatch(read.batch, prepared, torch.tensor([[b]]), torch.ones(1, 1, dtype=torch.bool)),
             Policy(read.logprobs[:, [b]]), _raw(chosen)).loss.item()
        for b in (0, 1)
    ]  # fmt: skip
    assert sum(parts) == pytest.approx(0.5)


def _raw(chosen):
    return chosen.model_copy(
        update={"advantage": switches(advantage={"baseline": "none", "scale": "none"}).advantage}
    )


def test_equal_lengths_make_the_reductions_agree_up_to_a_constant():
    batch = [dict(r, logp=r["logp"][:1] * 4, old_logp=r["old_logp"][:1] * 4) for r in responses(1, missing=False)]
    batch = [{k: r[k] for k in ("group", "reward", "logp", "old_logp")} for r in batch]
    found = {r: explain(batch, switches(update={"reduction": r}, sampling={"max_tokens": 8})) for r in REDUCTIONS}
    assert found["token-mean"].loss == pytest.approx(found["sequence-mean"].loss)
    assert found["constant"].loss == pytest.approx(found["sequence-mean"].loss / 2)
    assert found["sequence-sum"].loss == pytest.approx(found["sequence-mean"].loss * 4)


def test_the_masked_numerator_of_a_token_mean():
    """Values [[1, 100], [1, -50]] with mask [[1, 0], [1, 0]]: mean 1, gradients [[.5, 0], [.5, 0]]."""
    read = file([{"group": g, "reward": 1.0, "logp": [1.0, x]} for g, x in ((0, 100.0), (1, -50.0))])
    token = torch.tensor([[[[True, False]], [[True, False]]]])
    batch = type(read.batch)(**{**vars(read.batch), "token": token})
    chosen = _raw(switches(update={"surrogate": "reinforce", "reduction": "token-mean"}))
    for hidden in (0.0, torch.nan):
        leaf = torch.where(token, read.logprobs, read.logprobs + hidden).requires_grad_()
        step = loss(batch, prepare(batch, chosen, no_draws(batch)), Policy(leaf), chosen).loss
        assert step.item() == -1.0
        assert torch.autograd.grad(step.sum(), leaf)[0].flatten().tolist() == [-0.5, 0.0, -0.5, 0.0]


TRUNCATED = [
    {"group": 0, "reward": r, "logp": [-1.0] * n, "truncated": n == 4} for r, n in ((1, 1), (0, 2), (0, 3), (0, 4))
]


@pytest.mark.parametrize(("counts", "baseline"), [(True, 0.25), (False, 1 / 3)])
def test_a_masked_response_counts_in_the_baseline_when_told_so(counts, baseline):
    reward = {"overlong": "mask", "masked_in_baseline": counts}
    found = explain(TRUNCATED, switches(reward=reward, advantage={"scale": "none"}))
    assert found.advantages[0] == [pytest.approx(1 - baseline)]
    assert found.advantages[1] == [pytest.approx(-baseline)] * 2


@pytest.mark.parametrize("counts", [True, False])
def test_a_masked_response_counts_in_the_denominators_when_told_so(counts):
    reward = {"overlong": "mask", "masked_in_denominator": counts}
    responses_, tokens = (4, 10) if counts else (3, 6)
    expected = {
        "sequence-mean": 1 / (responses_ * 2),
        "token-mean": 1 / tokens,
        "constant": 1 / (responses_ * 8),
        "sequence-sum": 1 / responses_,
    }
    for reduction, weight in expected.items():
        update, sampling = {"reduction": reduction}, {"max_tokens": 8}
        found = explain(TRUNCATED, switches(reward=reward, update=update, sampling=sampling))
        assert found.weights[1] == [pytest.approx(weight)] * 2 and found.weights[3] == [0.0] * 4


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_missing_reward_has_no_weight_no_kl_and_is_not_counted(reduction):
    batch = responses(2)
    for entry in batch:
        entry["truncated"] = False
    kept = [entry for entry in batch if entry["reward"] is not None]
    chosen = switches(update={"reduction": reduction}, kl={"beta": 0.4})
    whole, without = explain(batch, chosen), explain(kept, chosen)
    assert whole.loss == pytest.approx(without.loss, rel=1e-12)
    assert whole.kl_loss == pytest.approx(without.kl_loss, rel=1e-12)
    grads = [g for g, entry in zip(whole.grad, batch, strict=True) if entry["reward"] is not None]
    for found, expected in zip(grads, without.grad, strict=True):
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-14)
    assert whole.metrics["train/reward_missing"] == pytest.approx(1 / len(batch))


def test_an_explicit_constant_replaces_the_maximum_length():
    found = explain(WORKED, switches(update={"reduction": "constant", "constant": 8}, sampling={"max_tokens": 4}))
    assert found.weights == [[1 / 16], [1 / 16] * 3]


def test_length_weighting_breaks_even_a_constant_baseline():
    """E[S / L] over a two-response law of lengths 1 and 3 is not 0, where E[S] is."""
    pi, lengths = torch.tensor([0.3, 0.7]).double(), torch.tensor([1.0, 3.0]).double()
    scores = torch.eye(2, dtype=torch.float64) - pi
    assert (pi[:, None] * scores).sum(0).abs().max() < 1e-15
    assert (pi[:, None] * scores / lengths[:, None]).sum(0).abs().max() > 0.1


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_come_from_the_masks_and_not_from_the_shape(reduction):
    chosen = switches(update={"reduction": reduction}, sampling={"max_tokens": 8})
    small = file(responses(1, (3, 2), missing=False)).batch
    wide = type(small)(
        **{
            name: torch.nn.functional.pad(value, (0, 4))
            if value is not None and getattr(value, "ndim", 0) == 4
            else value
            for name, value in vars(small).items()
        }
    )
    first, second = (prepare(b, chosen, no_draws(b)).weights for b in (small, wide))
    torch.testing.assert_close(first, second[..., : first.shape[-1]], rtol=0, atol=0)
