"""Members of the stacked policy do not influence one another, whatever happens to one of them."""

from __future__ import annotations

import pytest
import torch
from small_task import Small
from stacked_specs import drawn_batch, make, make_loop, spec
from torch import Tensor

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.spec.schema import Kl, Reward, Update

ROUNDS = 5


def trained(loop: Loop) -> dict[str, Tensor]:
    """Train to the end and return the policy's parameters."""
    loop.start()
    while not loop.finished:
        loop.advance()
    return loop.policy.parameters()


def assert_same(
    first: dict[str, Tensor], second: dict[str, Tensor], members: list[int], others: list[int]
) -> None:
    for name, value in first.items():
        assert torch.equal(value[members], second[name][others]), name


SWITCHES = {
    "plain": {},
    "dynamic": {"sampling": {"dynamic": "resample", "max_resample": 1}},
    "law": {"sampling": {"top_p": 0.8, "temperature": 1.2}},
    "kl": {"kl": Kl(beta=0.1, estimator="exact"), "update": Update(minibatches=3, entropy_coefficient=0.01)},
}


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_another_seed_of_one_member_changes_no_bit_of_the_others(switches: dict) -> None:
    settings = spec(ROUNDS, **switches)
    first, second = trained(make_loop(settings, 0, 1, 2)), trained(make_loop(settings, 0, 77, 2))
    assert_same(first, second, [0, 2], [0, 2])
    assert not torch.equal(first["head"][1], second["head"][1])


class Inverted(Small):
    """The second member is paid for the opposite, which changes its lengths too; NaN where ``missing``."""

    def __init__(self, *, missing: bool = False):
        super().__init__()
        self.missing = missing

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor):
        scores = super().score(prompts, tokens, token)
        if len(prompts) > 1:
            scores.reward[1] = torch.nan if self.missing else token[1].sum(-1).double()
        return scores


@pytest.mark.parametrize("missing", [False, True])
def test_other_rewards_of_one_member_change_no_bit_of_the_others(missing: bool) -> None:
    settings = spec(ROUNDS)
    first = trained(make_loop(settings, 0, 1, 2))
    second = trained(make_loop(settings, 0, 1, 2, task=Inverted(missing=missing)))
    assert_same(first, second, [0, 2], [0, 2])
    assert not torch.equal(first["head"][1], second["head"][1])


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_without_one_member_the_others_are_the_same(switches: dict) -> None:
    settings = spec(ROUNDS, **switches)
    first, second = trained(make_loop(settings, 0, 1, 2)), trained(make_loop(settings, 0, 2))
    assert_same(first, second, [0, 2], [0, 1])


def test_a_member_that_is_not_a_number_spreads_nowhere() -> None:
    settings = spec(ROUNDS)
    whole, broken = make_loop(settings, 0, 1, 2), make_loop(settings, 0, 1, 2)
    with torch.no_grad():
        broken.policy.flat[1] = torch.nan
    first, second = trained(whole), trained(broken)
    assert_same(first, second, [0, 2], [0, 2])
    assert broken.diverged.tolist() == [-1, 1, -1]
    assert broken.policy.finite().tolist() == [True, False, True]


def test_a_group_draws_different_responses_of_different_lengths() -> None:
    batch = drawn_batch(make(spec(sampling={"group_size": 8}), 0, 1))
    for member in range(2):
        for group in range(batch.tokens.shape[1]):
            responses = {tuple(row) for row in batch.tokens[member, group].tolist()}
            assert len(responses) >= 4  # a random model ends every tenth response at once
    assert not torch.equal(batch.tokens[0], batch.tokens[1])
    assert len(set(batch.token.sum(-1).flatten().tolist())) > 2


def test_a_seed_draws_the_same_whoever_stands_beside_it() -> None:
    """The same samples alone, among others, and as the first of a larger group."""
    among = drawn_batch(make(spec(), 9, 4, 2, 7))
    alone = drawn_batch(make(spec(), 2))
    assert torch.equal(among.tokens[2:3], alone.tokens)
    assert torch.equal(among.old_logprobs[2:3], alone.old_logprobs)
    larger = drawn_batch(make(spec(sampling={"group_size": 8}), 2))
    assert torch.equal(larger.tokens[:, :, :4], alone.tokens)
    assert not torch.equal(drawn_batch(make(spec(), 2), round=1).tokens, alone.tokens)


def test_a_resumed_run_continues_bit_by_bit() -> None:
    settings = spec(6, kl=Kl(beta=0.05, refresh_reference=2), sampling={"dynamic": "drop"})
    whole, interrupted = make_loop(settings, 0, 5), make_loop(settings, 0, 5)
    for loop in (whole, interrupted):
        loop.start()
        for _ in range(3):
            loop.advance()
    state = {name: tensor.clone() for name, tensor in interrupted.state().items()}
    resumed = make_loop(settings, 0, 5)
    resumed.load(state)
    for loop in (whole, resumed):
        while not loop.finished:
            loop.advance()
    first, second = whole.state(), resumed.state()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value.nan_to_num(-1), second[name].nan_to_num(-1)), name


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "exact"])
@pytest.mark.parametrize("place", ["reward-before", "reward-after"])
def test_a_policy_that_is_its_own_reference_is_at_no_distance_from_it(place: str, estimator: str) -> None:
    """Rounding must not tell the responses of a constant group apart: divided by its spread it would train."""
    settings = spec(
        rounds=1,
        reward=Reward(transform="constant", constant=0.4),
        kl=Kl(beta=0.05, estimator=estimator, place=place),
        update=Update(),
    )
    loop = make_loop(settings, 0, 1)
    before = {name: value.clone() for name, value in loop.policy.parameters().items()}
    after = trained(loop)
    assert all(torch.equal(before[name], after[name]) for name in before)
