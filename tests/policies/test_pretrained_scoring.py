"""Scores and gradients of a pretrained policy against autograd of the plain formula, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_specs import drawn_batch, make, pair, saved, scattered, spec
from stacked_specs import make as make_stacked
from stacked_specs import spec as stacked_spec
from torch import Tensor
from transformers import LlamaForCausalLM

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface import weights
from grpo_ablate.policies.huggingface.memory import within_memory
from grpo_ablate.policies.huggingface.passes import dealt, laid_out, units
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.huggingface.requests import unpacked
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import Kl

KL = Kl(beta=0.1, estimator="exact")
LAWS: dict[str, dict[str, Any]] = {
    "model": {},
    "temperature": {"temperature": 0.6},
    "all": {"top_k": 6, "top_p": 0.8, "temperature": 0.9},
}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "one response at a time": {"microbatch_tokens": 1},
    "uneven": {"microbatch_tokens": 37},
    "shared": {"share_prompts": True},
    "shared and uneven": {"share_prompts": True, "microbatch_tokens": 23},
    "checkpointed": {"gradient_checkpointing": True, "microbatch_tokens": 37},
}


def plain(model: Any, policy: HuggingFace, batch: Batch, group: int, sample: int) -> Tensor:
    """Return the law's log-probabilities [L, V] at every prefix of one response."""
    prompt = torch.tensor(policy.prompts[int(batch.prompts[0, group])])
    token = batch.token[0, group, sample]
    logits = model(torch.cat([prompt, batch.tokens[0, group, sample][token]])[None]).logits[
        0, len(prompt) - 1 : -1
    ]
    logits = logits.float() / policy.spec.sampling.temperature
    if batch.support is not None:
        known = unpacked(batch.support[0, group, sample][token], logits.shape[-1])
        logits = logits.masked_fill(~known, -torch.inf)
    return logits.log_softmax(-1)


def expectation(logprobs: Tensor, values: Tensor) -> Tensor:
    return torch.where(logprobs > -torch.inf, logprobs.exp() * values, 0.0).sum(-1)


def moved(policy: HuggingFace, spread: float = 0.05, seed: int = 1) -> HuggingFace:
    """Move the policy's weights away from where they are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for leaf in policy.weights.leaves.values():
            leaf += spread * torch.randn(leaf.shape, generator=generator)
        policy.weights._round()
    policy.stepped = True
    return policy


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
def test_scores_and_gradients_equal_autograd_of_the_plain_formula(tmp_path: Path, sampling: Any, way: Any) -> None:
    _, policy = pair(tmp_path, way, {"heads": 4, "kv_heads": 2, "tied": True}, sampling=sampling, kl=KL)
    batch = drawn_batch(policy)
    model, frozen = (LlamaForCausalLM.from_pretrained(tmp_path).eval() for _ in range(2))
    moved(policy)
    model.load_state_dict(policy.model.state_dict())
    model.get_input_embeddings().padding_idx = None  # it would take the gradient of an input that pads elsewhere
    generator = torch.Generator().manual_seed(0)
    says = policy.logprobs(batch, kl_exact=True)
    reference = policy.reference_logprobs(batch)
    parts = (says.logprobs, says.entropy, says.kl_exact)
    factors = [torch.randn(says.logprobs.shape, generator=generator) for _ in parts]
    factors[0][0, 2] = factors[1][0, 2] = factors[2][0, 2] = 0  # a group of which the loss says nothing
    policy.accumulate(sum((factor * part).sum((1, 2, 3)) for factor, part in zip(factors, parts, strict=True)))

    total = torch.zeros(())
    for group in range(batch.tokens.shape[1]):
        for sample in range(batch.tokens.shape[2]):
            logprobs = plain(model, policy, batch, group, sample)
            with torch.no_grad():
                of_reference = plain(frozen, policy, batch, group, sample)
            tokens = batch.tokens[0, group, sample, : len(logprobs)][:, None]
            finite = torch.where(logprobs > -torch.inf, logprobs, 0.0)
            far = torch.where(logprobs > -torch.inf, logprobs - of_reference, 0.0)
            mine = (logprobs.gather(1, tokens)[:, 0], -expectation(logprobs, finite), expectation(logprobs, far))
            where = (0, group, sample, slice(0, len(logprobs)))
            for factor, part, expected in zip(factors, parts, mine, strict=True):
                torch.testing.assert_close(part[where], expected, atol=1e-5, rtol=1e-5)
                total = total + (factor[where] * expected).sum()
            torch.testing.assert_close(
                reference[where], of_reference.gather(1, tokens)[:, 0], atol=1e-5, rtol=1e-5
            )
    total.backward()
    for name, parameter in model.named_parameters():
        gradient = policy.weights.leaves[name].grad
        assert gradient is not None
        torch.testing.assert_close(gradient[0], parameter.grad, atol=5e-5, rtol=1e-3)


def test_what_is_not_present_has_no_value_no_gradient_and_no_cost(tmp_path: Path) -> None:
    _, policy = pair(tmp_path, {"microbatch_tokens": 1})
    batch = drawn_batch(policy)
    absent = torch.zeros_like(batch.present)
    absent[0, 1], absent[0, 3, 2] = True, True
    fed: list[int] = []
    policy.model.register_forward_hook(lambda module, given, found: fed.append(len(given[0])))
    says = policy.logprobs(replace(batch, present=batch.present & ~absent))
    assert len(fed) == 20 - 5
    assert (says.logprobs[absent] == 0).all() and (says.logprobs[~absent][..., 0] < 0).all()
    policy.accumulate((says.logprobs[:, 0]).sum((1, 2)))
    assert len(fed) <= 15 + 4  # the four responses of the one group that the loss speaks of


def test_values_that_no_one_asks_a_gradient_of_keep_no_graph(tmp_path: Path) -> None:
    _, policy = pair(tmp_path)
    batch = drawn_batch(policy)
    with torch.no_grad():
        assert not policy.logprobs(batch).logprobs.requires_grad
    assert policy.pending is None


@pytest.mark.parametrize("way", [{}, {"share_prompts": True}, {"microbatch_tokens": 20}], ids=str)
def test_bfloat16_gives_float32_values_of_its_own_logits(tmp_path: Path, way: Any) -> None:
    stacked = scattered(make_stacked(stacked_spec(), 5))
    saved(tmp_path, stacked)
    policy = make(spec(tmp_path, policy={"dtype": "bfloat16", **way}))
    assert all(parameter.dtype == torch.bfloat16 for parameter in policy.model.parameters())
    batch = drawn_batch(policy)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    said = policy.logprobs(batch).logprobs
    assert said.dtype == torch.float32
    errors = []
    for group in range(5):
        with torch.no_grad():
            logprobs = plain(model, policy, batch, group, 1)
        tokens = batch.tokens[0, group, 1, : len(logprobs)][:, None]
        errors.append((said[0, group, 1, : len(logprobs)] - logprobs.gather(1, tokens)[:, 0]).abs())
    error = torch.cat(errors)
    assert error.mean() < 0.02 and error.max() < 0.1  # the rounding of bfloat16 in another order of sums
    exact = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert (plain(exact, policy, batch, 0, 1) - plain(model, policy, batch, 0, 1)).abs().max() < 0.2


def test_steps_too_small_for_bfloat16_add_up(tmp_path: Path) -> None:
    """A weight of about 1 cannot move by 1e-4 in bfloat16; a hundred such steps must move it by 1e-2."""
    stacked = scattered(make_stacked(stacked_spec(), 5))
    saved(tmp_path, stacked)
    sgd = stacked_spec().optimizer.model_copy(
        update={"name": "sgd", "learning_rate": 1e-4, "max_grad_norm": "off"}
    )
    policy = make(spec(tmp_path, policy={"dtype": "bfloat16"}, optimizer=sgd))
    name = "model.norm.weight"
    parameter, leaf = policy.weights.parameters[name], policy.weights.leaves[name]
    before = leaf.detach().clone()
    for step in range(100):
        parameter.grad = torch.ones_like(parameter)
        policy.weights.collect()
        policy.step(torch.ones(1, dtype=torch.bool))
        if step == 0:
            assert torch.equal(parameter, before[0].bfloat16())
    torch.testing.assert_close(leaf.detach(), before - 1e-2, atol=1e-5, rtol=0)
    assert torch.equal(parameter, leaf[0].detach().bfloat16())
    assert not torch.equal(parameter, before[0].bfloat16())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_those_of_torchs_adamw(tmp_path: Path, dtype: str) -> None:
    stacked = scattered(make_stacked(stacked_spec(), 5))
    saved(tmp_path, stacked)
    settings = stacked_spec().optimizer.model_copy(update={"weight_decay": 0.1, "max_grad_norm": 0.5})
    policy = make(spec(tmp_path, policy={"dtype": dtype, "microbatch_tokens": 30}, optimizer=settings))
    theirs = [leaf.detach().clone().requires_grad_() for leaf in policy.weights.leaves.values()]
    adamw = torch.optim.AdamW(theirs, settings.learning_rate, tuple(settings.betas), weight_decay=0.1)
    batch = drawn_batch(policy)
    for _ in range(3):
        policy.accumulate(policy.logprobs(batch).logprobs.sum((1, 2, 3)))
        for mine, other in zip(policy.weights.leaves.values(), theirs, strict=True):
            assert mine.grad is not None and mine.grad.dtype == torch.float32
            other.grad = mine.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        adamw.step()
        found = policy.step(torch.ones(1, dtype=torch.bool))
        torch.testing.assert_close(found[0], norm.double(), rtol=1e-5, atol=0)
        for mine, other in zip(policy.weights.leaves.values(), theirs, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)
            assert mine.grad is None


def test_a_member_that_takes_no_step_keeps_its_weights(tmp_path: Path) -> None:
    _, policy = pair(tmp_path)
    batch, before = drawn_batch(policy), policy.weights.copies()
    policy.accumulate(policy.logprobs(batch).logprobs.sum((1, 2, 3)))
    policy.step(torch.zeros(1, dtype=torch.bool))
    assert all(torch.equal(now, before[name]) for name, now in policy.weights.copies().items())
    assert all(not gradient.any() for gradient in policy.gradients())


def test_the_reference_is_the_start_until_it_is_refreshed(tmp_path: Path) -> None:
    _, policy = pair(tmp_path, kl=KL)
    batch = drawn_batch(policy)
    start = batch.old_logprobs
    moved(policy)
    after = policy.logprobs(batch).logprobs.detach()
    assert (after - start).abs().max() > 0.01
    torch.testing.assert_close(policy.reference_logprobs(batch), start, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        policy.logprobs(batch).logprobs.detach(), after, atol=0, rtol=0
    )  # nothing was swapped
    policy.refresh_reference(torch.zeros(1, dtype=torch.bool))
    torch.testing.assert_close(policy.reference_logprobs(batch), start, atol=1e-5, rtol=0)
    policy.refresh_reference(torch.ones(1, dtype=torch.bool))
    torch.testing.assert_close(policy.reference_logprobs(batch), after, atol=1e-5, rtol=0)
    moved(policy, seed=2)
    torch.testing.assert_close(policy.reference_logprobs(batch), after, atol=1e-5, rtol=0)


def test_a_policy_that_is_its_own_reference_has_a_kl_of_exactly_zero_in_the_reward(tmp_path: Path) -> None:
    """Rounding must not tell the responses of a group apart: a division by the group's spread would blow it up."""
    in_reward = Kl(beta=0.1, estimator="k1", place="reward-before")
    _, policy = pair(tmp_path, {"microbatch_tokens": 30}, kl=in_reward)
    batch = drawn_batch(policy)
    some = replace(batch, present=batch.present & (torch.arange(5) != 1)[:, None])
    assert torch.equal(policy.reference_logprobs(some), batch.old_logprobs)
    exact = in_reward.model_copy(update={"estimator": "exact"})
    _, policy = pair(tmp_path / "exact", {"microbatch_tokens": 30}, kl=exact)
    wanted = torch.ones(1, 5, dtype=torch.bool)
    drawn = policy.sample(batch.prompts, 4, Draw(Purpose.RESPONSE, 0), wanted=wanted, kl_exact=True)
    assert (drawn.old_kl_exact == 0).all()


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
@pytest.mark.parametrize("share", [False, True])
def test_microbatches_keep_to_their_tokens_and_lose_no_response(budget: int, share: bool) -> None:
    prompts = [[1] * length for length in (3, 5, 1, 9)]
    rows = [[[2] * n for n in lengths] for lengths in ([4, 0, 2], [1, 1], [0], [6, 3, 8])]
    whole = units(prompts, rows, budget, share=share)
    batches = list(dealt(whole, budget))
    for batch in batches:
        laid = laid_out(batch, 0, share=share)
        assert laid.tokens.numel() <= budget or (len(batch) == 1 and len(batch[0].rows) == 1)
    scored = sorted(
        (row, step)
        for batch in batches
        for laid in [laid_out(batch, 0, share=share)]
        for row, step in zip(laid.row.tolist(), laid.step.tolist(), strict=True)
    )
    lengths = [len(response) for group in rows for response in group]
    assert scored == [(row, step) for row, length in enumerate(lengths) for step in range(length)]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),  # a driver's, which has no type of its own
    ],
    ids=str,
)
def test_running_out_of_memory_names_the_setting_to_lower(error: Exception) -> None:
    with (
        pytest.raises(
            UserError, match=r"out of memory while training: lower policy\.microbatch_tokens, which is 512"
        ),
        within_memory(512, "training"),
    ):
        raise error
    for other in (
        RuntimeError("shapes do not match"),
        NotImplementedError("no such layer"),
        RecursionError("deep"),
    ):
        with pytest.raises(type(other), match=str(other)), within_memory(512, "training"):
            raise other


def test_a_cpu_without_memory_is_a_sentence_too() -> None:
    with pytest.raises(UserError, match="out of memory while scoring"), within_memory(512, "scoring"):
        torch.empty(1 << 50)


def test_no_memory_for_what_training_keeps_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = scattered(make_stacked(stacked_spec(), 5))
    saved(tmp_path, stacked)

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(weights, "StackedOptimizer", full)
    with pytest.raises(
        UserError, match=r"no memory for what training keeps .*: use policy\.lora, or a smaller model"
    ):
        make(spec(tmp_path))


def test_a_batch_that_waited_for_its_round_is_not_of_the_reference_taken_since(tmp_path: Path) -> None:
    """With a KL in the reward: stale responses are of older weights than a reference that was just refreshed."""
    in_reward = Kl(beta=0.1, estimator="k1", place="reward-before", refresh_reference=1)
    stale = stacked_spec().update.model_copy(update={"staleness": 1})
    _, policy = pair(tmp_path, kl=in_reward, update=stale)
    batch = drawn_batch(policy)
    assert torch.equal(policy.reference_logprobs(batch), batch.old_logprobs)  # both are of the start
    moved(policy)
    policy.refresh_reference(torch.ones(1, dtype=torch.bool))
    now = policy.logprobs(batch).logprobs.detach()
    assert (now - batch.old_logprobs).abs().max() > 0.01
    torch.testing.assert_close(policy.reference_logprobs(batch), now, atol=1e-5, rtol=0)
