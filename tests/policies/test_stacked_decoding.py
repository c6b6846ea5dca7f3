"""What is drawn follows the law, and a row's logits do not depend on the rows beside it."""

from __future__ import annotations

import pytest
import torch
from small_task import Small
from stacked_specs import drawn_batch, make, spec

from grpo_ablate.policies.stacked.decoder import ROWS, Cache, decode, decoder, prefill, shared_prompts
from grpo_ablate.policies.stacked.drawing import invert


def test_inversion_returns_tokens_at_their_frequencies_and_never_an_impossible_one() -> None:
    probability = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniform = (torch.arange(1000) + 0.5) / 1000
    tokens = invert(probability.expand(1000, -1), uniform)
    assert tokens.bincount(minlength=6).tolist() == [0, 250, 0, 500, 250, 0]
    edges = torch.tensor([0.0, 1 - 2.0**-24])
    assert invert(probability.expand(2, -1), edges).tolist() == [1, 4]


@pytest.mark.parametrize("members", [1, 4])
def test_logits_of_a_row_do_not_depend_on_how_many_rows_are_alive(members: int) -> None:
    policy = make(spec(policy={"hidden": 64, "intermediate": 128}), *range(members))
    model = decoder(policy.flat.detach(), policy.architecture, policy.turns)
    generator = torch.Generator().manual_seed(0)
    rows, width, step, size = 128, 16, 9, 8
    settings = policy.spec.policy
    shape = (members, rows, settings.kv_heads, width, settings.head_size)
    keys, values = ([torch.randn(shape, generator=generator) for _ in model.layers] for _ in range(2))
    tokens = torch.randint(0, 11, (members, rows), generator=generator)
    position = torch.full((members, rows), 5)
    numbers = (torch.arange(members * 16) * 5 % 40).view(members, 16)
    length = policy.prompt_length[numbers]
    _, of_prompts = prefill(model, policy.prompts[numbers], length)

    def logits(count: int) -> torch.Tensor:
        own = Cache(*(tuple(t[:, :count].flatten(0, 1).clone() for t in part) for part in (keys, values)))
        shared = shared_prompts(model, of_prompts, length, torch.arange(count).expand(members, -1), size)
        return decode(model, tokens[:, :count], position[:, :count], shared, own, step)

    whole = logits(rows)
    for count in (ROWS, 16, 24, 40, 64, 120):
        assert torch.equal(logits(count), whole[:, :count]), count


def test_prompts_are_read_alike_whatever_stands_beside_them() -> None:
    policy = make(spec(), 0, 1)
    model = decoder(policy.flat.detach(), policy.architecture, policy.turns)
    numbers = (torch.arange(48) * 5 % 40).view(2, 24)
    whole, _ = prefill(model, policy.prompts[numbers], policy.prompt_length[numbers])
    for count in (8, 16):
        some, _ = prefill(model, policy.prompts[numbers[:, :count]], policy.prompt_length[numbers[:, :count]])
        assert torch.equal(some, whole[:, :count])


def test_frequencies_of_first_tokens_follow_the_stated_probabilities() -> None:
    """5,120 draws of a prompt's first token, within five standard errors of what the sampler said of them."""
    policy = make(spec(sampling={"group_size": 1024, "temperature": 0.7, "top_k": 5}), 0)
    batch = drawn_batch(policy, prompts=torch.full((1, 5), 12))
    first, probability = batch.tokens[..., 0].flatten(), batch.old_logprobs[..., 0].exp().flatten()
    assert len(set(first.tolist())) == 5
    total = 0.0
    for token in set(first.tolist()):
        p = float(probability[first == token][0])
        share = float((first == token).double().mean())
        assert abs(share - p) < 5 * (p * (1 - p) / len(first)) ** 0.5
        total += p
    assert abs(total - 1) < 1e-5


def test_a_response_ends_with_its_end_token_or_at_the_limit() -> None:
    for end_is_pad in (False, True):
        policy = make(spec(), 0, 1, task=Small(end_is_pad=end_is_pad))
        batch = drawn_batch(policy)
        length = batch.token.sum(-1)
        place = torch.arange(batch.tokens.shape[-1])
        assert torch.equal(batch.token, place < length[..., None])
        last = batch.tokens.gather(-1, (length - 1)[..., None])[..., 0]
        assert torch.equal(batch.truncated, last != 1)
        assert (length[batch.truncated] == batch.tokens.shape[-1]).all()
        assert ((batch.tokens == 1) & batch.token).sum(-1).max() == 1
        assert (batch.tokens[~batch.token] == policy.task.pad).all()
        assert (batch.old_logprobs[~batch.token] == 0).all()
        assert 0 < int(batch.truncated.sum()) < batch.truncated.numel()


def test_slots_that_are_not_wanted_cost_no_response() -> None:
    policy = make(spec(), 0, 1)
    prompts = torch.arange(5).expand(2, -1)
    everyone = torch.ones(2, 5, dtype=torch.bool)
    some = everyone.clone()
    some[0, 1:] = False
    some[1, 2] = False
    uniforms = policy.uniforms(0)
    whole = policy.generate(prompts, 4, uniforms, everyone)
    part = policy.generate(prompts, 4, uniforms, some)
    assert torch.equal(part.tokens[some], whole.tokens[some])
    assert torch.equal(part.logprobs[some], whole.logprobs[some])
    assert not part.token[~some].any()


def test_greedy_takes_the_most_probable_token_each_time() -> None:
    policy = make(spec(), 3)
    prompts = torch.tensor([[0, 10, 20, 30, 40]])
    drawn = policy.generate(
        prompts, 1, torch.full((1, 5, 1, 7), -1.0), torch.ones(1, 5, dtype=torch.bool), plain=True
    )
    cold = make(spec(sampling={"temperature": 1e-4, "group_size": 1}), 3)
    again = cold.generate(prompts, 1, cold.uniforms(0), torch.ones(1, 5, dtype=torch.bool))
    assert torch.equal(drawn.tokens, again.tokens)
