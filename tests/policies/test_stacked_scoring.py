"""Scores and gradients of the stacked policy against transformers' Llama, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_task import WORDS, Small
from stacked_specs import drawn_batch, make, spec
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.policies.stacked import products
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.stacked.supervised import answer_loss
from grpo_ablate.policies.stacked.transformers_folder import configuration, to_llama

LAWS = {
    "model": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 3, "temperature": 1.3},
    "top-p": {"top_p": 0.7},
    "all": {"top_k": 6, "top_p": 0.8, "temperature": 0.9},
}


def llama(policy: Stacked, member: int, flat: Tensor | None = None) -> LlamaForCausalLM:
    """Return a member as transformers runs it."""
    # A pad token would lose its embedding's gradient, which a response may well need.
    config = LlamaConfig(**{**configuration(policy.architecture, policy.task), "pad_token_id": None})
    model = LlamaForCausalLM(config).eval()
    views = policy.architecture.views(policy.flat if flat is None else flat)
    weights = to_llama({name: view[member] for name, view in views.items()}, policy.architecture)
    model.load_state_dict(weights, strict=not policy.spec.policy.tied)
    return model


def law(policy: Stacked, logits: Tensor, support: Tensor | None) -> Tensor:
    logits = logits / policy.spec.sampling.temperature
    if support is not None:
        logits = logits.masked_fill(~support, -torch.inf)
    return logits.log_softmax(-1)


def by_hand(
    policy: Stacked, batch: Batch, member: int, model: LlamaForCausalLM, group: int, sample: int
) -> Tensor:
    """Return the law's log-probabilities [L, V] at every prefix of one response."""
    number = batch.prompts[member, group]
    prompt = policy.prompts[number][: policy.prompt_length[number]]
    response = batch.tokens[member, group, sample][batch.token[member, group, sample]]
    support = None if batch.support is None else batch.support[member, group, sample, : len(response)]
    logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    return law(policy, logits, support)


def expectation(logprobs: Tensor, values: Tensor) -> Tensor:
    return torch.where(logprobs > -torch.inf, logprobs.exp() * values, 0.0).sum(-1)


@pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize(
    "policy_section", [{}, {"kv_heads": 1, "tied": True}, {"heads": 4, "kv_heads": 2, "layers": 1}]
)
def test_scores_and_gradients_equal_transformers(sampling: dict, policy_section: dict) -> None:
    policy = make(spec(sampling=sampling, policy=policy_section), 3, 8)
    batch = drawn_batch(policy)
    with torch.no_grad():  # a policy off its samples, and a reference that is neither
        generator = torch.Generator().manual_seed(0)
        policy.flat += 0.05 * torch.randn(policy.flat.shape, generator=generator)
        policy.reference += 0.05 * torch.randn(policy.flat.shape, generator=generator)
    says = policy.logprobs(batch, kl_exact=True)
    reference = policy.reference_logprobs(batch)
    shape = says.logprobs.shape
    factors = [torch.randn(shape, generator=generator) for _ in range(3)]
    parts = (says.logprobs, says.entropy, says.kl_exact)
    loss = sum((factor * part).sum((1, 2, 3)) for factor, part in zip(factors, parts, strict=True))
    policy.accumulate(loss)

    for member in range(2):
        model, frozen = llama(policy, member), llama(policy, member, policy.reference)
        total = torch.zeros(())
        for group in range(shape[1]):
            for sample in range(shape[2]):
                logprobs = by_hand(policy, batch, member, model, group, sample)
                of_reference = by_hand(policy, batch, member, frozen, group, sample).detach()
                tokens = batch.tokens[member, group, sample, : len(logprobs)]
                chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
                finite = torch.where(logprobs > -torch.inf, logprobs, 0.0)
                far = torch.where(logprobs > -torch.inf, logprobs - of_reference, 0.0)
                mine = (chosen, -expectation(logprobs, finite), expectation(logprobs, far))
                where = (member, group, sample, slice(0, len(logprobs)))
                for factor, part, expected in zip(factors, parts, mine, strict=True):
                    torch.testing.assert_close(part[where], expected, atol=1e-5, rtol=1e-5)
                    total = total + (factor[where] * expected).sum()
                kept = of_reference.gather(-1, tokens[:, None])[:, 0]
                torch.testing.assert_close(reference[where], kept, atol=1e-5, rtol=1e-5)
        total.backward()
        views = policy.architecture.views(policy.gradient)
        gradient = to_llama({name: view[member] for name, view in views.items()}, policy.architecture)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradient[name], parameter.grad, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
def test_the_first_ratios_of_a_round_are_one_under_every_law(sampling: dict) -> None:
    policy = make(spec(sampling=sampling), 0, 1, 2)
    batch = drawn_batch(policy)
    ratio = (policy.logprobs(batch).logprobs - batch.old_logprobs).exp()
    assert (ratio - 1).abs().max() < 1e-5


def test_the_law_at_another_temperature_is_not_the_models() -> None:
    """Scored at temperature 1, what was drawn at .6 would start far from ratio 1."""
    warm, plain = make(spec(sampling={"temperature": 0.6}), 0), make(spec(), 0)
    with torch.no_grad():
        for policy in (warm, plain):  # away from an even law, which no temperature changes
            policy.flat += 0.2 * torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(0))
    batch = drawn_batch(warm)
    assert (plain.logprobs(batch).logprobs - batch.old_logprobs).abs().max() > 0.2


def test_a_support_stays_as_sampled() -> None:
    policy = make(spec(sampling={"top_k": 2}), 0)
    batch = drawn_batch(policy)
    assert batch.support is not None
    assert (batch.support.sum(-1)[batch.token] == 2).all()
    assert batch.support.gather(-1, batch.tokens[..., None])[..., 0][batch.token].all()
    with torch.no_grad():
        policy.flat += torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(1))
    says = policy.logprobs(batch)
    assert says.logprobs.isfinite().all()
    assert (says.entropy[batch.token] <= torch.tensor(2.0).log() + 1e-6).all()


def certain(policy: Stacked, following: dict[int, int]) -> None:
    """Make the policy certain that each token is followed by the given one, whatever came before."""
    views = policy.architecture.views(policy.flat.detach())
    for name, view in views.items():
        view.fill_(1.0 if name.endswith("norm") else 0.0)
    for token in range(len(WORDS)):
        views["embedding"][:, token, token] = 1.0
        views["head"][:, token, following.get(token, 0)] = 1000.0


@pytest.mark.parametrize("end_is_pad", [False, True])
def test_a_certain_model_gives_its_own_tokens_log_probability_zero(end_is_pad: bool) -> None:
    """A shift by one, a trained pad or an untrained end token would show as a large negative number."""
    task = Small(end_is_pad=end_is_pad)
    policy = make(spec(), 0, task=task)
    certain(policy, {**{4 + letter: 4 + (letter + 1) % 7 for letter in range(7)}, 10: 1})
    batch = drawn_batch(policy, prompts=torch.tensor([[3, 4, 5, 6, 20]]))
    first = policy.prompts[batch.prompts[0], policy.prompt_length[batch.prompts[0]] - 1]
    for group in range(5):
        walk = [*range(int(first[group]) + 1, 11), 1][:7]
        for sample in range(batch.tokens.shape[2]):
            token = batch.token[0, group, sample]
            assert batch.tokens[0, group, sample][token].tolist() == walk
            assert bool(batch.truncated[0, group, sample]) == (walk[-1] != 1)
    says = policy.logprobs(batch)
    assert (says.logprobs == 0).all() and (batch.old_logprobs == 0).all()
    moved = replace(batch, tokens=torch.where(batch.token, (batch.tokens - 4 + 1) % 7 + 4, batch.tokens))
    assert (policy.logprobs(moved).logprobs[..., :1] < -100).all()
    # A gradient reaches the end token's row: it is scored although it may be the pad token too.
    ends = (batch.tokens == task.end) & batch.token
    assert int(ends.sum()) == int((~batch.truncated).sum()) > 0


def test_groups_that_are_not_present_change_nothing() -> None:
    policy = make(spec(), 4)
    batch = drawn_batch(policy)
    present = batch.present.clone()
    present[0, 1] = False
    garbage = torch.where(present[..., None], batch.tokens, 999)
    says = policy.logprobs(replace(batch, tokens=garbage, present=present))
    whole = policy.logprobs(batch)
    torch.testing.assert_close(says.logprobs[:, 2:], whole.logprobs[:, 2:], atol=1e-6, rtol=1e-6)
    assert (says.logprobs[0, 1] == 0).all() and (says.entropy[0, 1] == 0).all()


def test_a_response_scores_alike_beside_longer_ones_and_alone() -> None:
    policy = make(spec(), 6)
    batch = drawn_batch(policy)
    whole = policy.logprobs(batch).logprobs
    for group in range(batch.tokens.shape[1]):
        present = torch.zeros_like(batch.present)
        present[0, group] = True
        alone = policy.logprobs(replace(batch, present=present)).logprobs
        torch.testing.assert_close(alone[0, group], whole[0, group], atol=1e-6, rtol=1e-6)


def test_the_supervised_loss_is_the_cross_entropy_of_answer_tokens() -> None:
    policy = make(spec(), 0, 5)
    shown = policy.task.demonstrations(6, 0)
    prompt_length, length = shown.prompt_length.expand(2, -1), shown.length.expand(2, -1)
    tokens = shown.tokens.expand(2, -1, -1)
    loss = answer_loss(policy.flat, policy.architecture, tokens, prompt_length, length)
    loss.sum().backward()
    for member in range(2):
        model = llama(policy, member)
        logprobs = model(shown.tokens).logits.log_softmax(-1)[:, :-1].gather(-1, shown.tokens[:, 1:, None])[..., 0]
        place = torch.arange(1, shown.tokens.shape[1])
        answer = (place >= shown.prompt_length[:, None]) & (place < shown.length[:, None])
        expected = -logprobs[answer].mean()
        torch.testing.assert_close(loss[member], expected)
        expected.backward()
        views = policy.architecture.views(policy.flat.grad)
        gradient = to_llama({name: view[member] for name, view in views.items()}, policy.architecture)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradient[name], parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("onednn", [False, True])
def test_members_at_once_and_one_by_one_give_the_same(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the members are one chunk, whatever their lengths and the groups they train on."""
    monkeypatch.setattr(products, "ONEDNN", onednn and products.ONEDNN)
    policies = [make(spec(sampling={"top_p": 0.9}), 3, 8, 5) for _ in range(2)]
    policies[1].chunk = 3
    policies[1].leaves = [policies[1]._leaf(0)]
    batch = drawn_batch(policies[0])
    present = batch.present.clone()
    present[0, 1:] = False
    present[1] = False
    batch = replace(batch, present=present)
    with torch.no_grad():
        for policy in policies:
            policy.reference += 0.05 * torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(1))
    factor = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(2))
    found = []
    for policy in policies:
        says = policy.logprobs(batch, kl_exact=True)
        policy.accumulate((factor * (says.logprobs + says.entropy * says.kl_exact)).sum((1, 2, 3)))
        found.append(
            (says.logprobs, says.entropy, says.kl_exact, policy.reference_logprobs(batch), policy.gradient)
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert (found[0][-1][1] == 0).all() and (found[1][-1][1] == 0).all()
