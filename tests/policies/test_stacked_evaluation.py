"""Evaluations of the stacked policy against what its own responses say, and against enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_task import Small
from stacked_specs import make, spec

from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose


def test_measures_are_those_of_the_keyed_responses() -> None:
    policy = make(spec(sampling={"temperature": 0.3, "top_k": 2}), 0, 9)
    found = policy.evaluate(6, 4)
    task = policy.task
    prompts = (task.prompt_count + torch.arange(task.held_out_count)).expand(2, -1)
    uniforms = policy.keyed(Draw(Purpose.EVALUATION, 4), torch.arange(8), 6)
    drawn = policy.generate(prompts, 6, uniforms, torch.ones(2, 8, dtype=torch.bool), plain=True)
    scores = task.score(prompts, drawn.tokens, drawn.token)
    length = drawn.token.sum(-1).double()
    torch.testing.assert_close(found["eval/reward"], scores.reward.mean((1, 2)))
    torch.testing.assert_close(found["eval/length"], length.mean((1, 2)))
    torch.testing.assert_close(found["eval/truncated"], drawn.truncated.double().mean((1, 2)))
    torch.testing.assert_close(found["eval/reward_odd"], scores.reward[:, 1::2].mean((1, 2)))
    torch.testing.assert_close(found["eval/length_even"], length[:, ::2].mean((1, 2)))
    right = scores.components["accuracy"] == 1
    some = [
        [
            sum(bool(answers[list(two)].any()) for two in itertools.combinations(range(6), 2)) / 15
            for answers in member
        ]
        for member in right
    ]
    torch.testing.assert_close(found["eval/pass_at_2"], torch.tensor(some, dtype=torch.float64).mean(1))
    greedy = policy.generate(prompts, 1, torch.full((2, 8, 1, 7), -1.0), torch.ones(2, 8).bool(), plain=True)
    best = task.score(prompts, greedy.tokens, greedy.token).components["accuracy"]
    torch.testing.assert_close(found["eval/greedy_accuracy"], best.mean((1, 2)))
    assert (found["eval/kl"] == 0).all()
    assert all(value.shape == (2,) and value.dtype == torch.float64 for value in found.values())


def test_responses_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make(spec(), 0, 9)
    whole = policy.evaluate(4, 0)
    monkeypatch.setattr("grpo_ablate.policies.stacked.evaluation.ROWS", 10)
    for name, value in policy.evaluate(4, 0).items():
        assert torch.equal(value, whole[name]), name


def test_rounds_and_purposes_draw_other_responses() -> None:
    policy = make(spec(), 0)
    slots = torch.arange(8)
    draws = [Draw(Purpose.EVALUATION, 0), Draw(Purpose.EVALUATION, 1), Draw(Purpose.EXHIBIT, 0)]
    numbers = [policy.keyed(draw, slots, 4) for draw in draws]
    for one, other in itertools.combinations(numbers, 2):
        assert not torch.equal(one, other)


def test_entropy_and_kl_of_a_response_agree_with_enumeration() -> None:
    """At one token a response, KL and entropy are sums over the vocabulary of the first token's law."""
    policy = make(spec(sampling={"max_tokens": 1}), 2, task=Small())
    with torch.no_grad():
        policy.flat += 0.1 * torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(0))
    found = policy.evaluate(2, 0)
    prompts = (policy.task.prompt_count + torch.arange(8)).expand(1, -1)
    every = torch.arange(11).expand(1, 8, -1)[..., None]
    says = policy.score_plainly(prompts, every, torch.ones_like(every, dtype=torch.bool))
    logprobs = says.logprobs[0, ..., 0].double()
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(8, dtype=torch.float64), atol=1e-6)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    torch.testing.assert_close(found["eval/entropy"][0], entropy, atol=1e-6, rtol=1e-5)
    current = policy.flat.detach().clone()
    with torch.no_grad():
        policy.flat.copy_(policy.reference)
    frozen = (
        policy.score_plainly(prompts, every, torch.ones_like(every, dtype=torch.bool)).logprobs[0, ..., 0].double()
    )
    with torch.no_grad():
        policy.flat.copy_(current)
    divergence = (logprobs.exp() * (logprobs - frozen)).sum(-1).mean()
    assert divergence > 1e-3
    torch.testing.assert_close(found["eval/kl"][0], divergence, atol=1e-6, rtol=1e-5)
