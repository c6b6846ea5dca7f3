"""Prompt orders: what each promises, for every member by itself."""

import pytest
import torch

from grpo_ablate.algorithm.orders import ORDERS, Cycle, EachOnce, Independent
from grpo_ablate.rng import Keys


def keys(*seeds):
    return Keys(torch.tensor(seeds))


def flags(rows):
    return torch.tensor(rows, dtype=torch.bool)


def every(members, prompts):
    return torch.ones(members, prompts, dtype=torch.bool)


def rounds(order, members, prompts, count):
    return [order.draw(k, 0, every(members, prompts), ~every(members, prompts)).clone() for k in range(count)]


def test_each_once_over_the_whole_pool_keeps_the_pool_order():
    for drawn in rounds(EachOnce(keys(3, 4), 5, 5), 2, 5, 3):
        assert drawn.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_each_once_gives_distinct_prompts_and_every_prompt_equally_often():
    drawn = torch.stack(rounds(EachOnce(keys(*range(50)), 3, 5), 50, 3, 100))
    assert (drawn.sort(-1).values.diff(dim=-1) > 0).all()
    counts = torch.bincount(drawn.flatten(), minlength=5) / drawn[..., 0].numel()
    assert (counts - 0.6).abs().max() < 4 * (0.24 / 5000) ** 0.5


def test_each_once_resampling_never_repeats_an_accepted_prompt_and_tries_new_ones_first():
    order = EachOnce(keys(7), 4, 6)
    first = order.draw(0, 0, every(1, 4), ~every(1, 4)).clone()
    kept = flags([[True, False, True, False]])
    second = order.draw(0, 1, ~kept, kept).clone()
    assert second[kept].tolist() == first[kept].tolist()
    assert set(second[~kept].tolist()) == set(range(6)) - set(first[0].tolist())
    kept2 = flags([[True, True, True, False]])
    third = order.draw(0, 2, ~kept2, kept2).clone()
    # The pool is used up: the prompts rejected first come back first.
    assert third[0, 3].item() in {first[0, 1].item(), first[0, 3].item()}
    assert len(set(third[0].tolist())) == 4


def test_each_once_with_the_whole_pool_tries_a_rejected_prompt_again():
    order = EachOnce(keys(7), 3, 3)
    order.draw(0, 0, every(1, 3), ~every(1, 3))
    kept = flags([[True, False, True]])
    for attempt in (1, 2, 3):
        assert order.draw(0, attempt, ~kept, kept).tolist() == [[0, 1, 2]]
    assert order.draw(1, 0, every(1, 3), ~every(1, 3)).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(("prompts", "pool"), [(2, 5), (8, 3), (4, 4)])
def test_cycle_hands_out_every_prompt_once_per_epoch_in_a_new_order_each_time(prompts, pool):
    drawn = torch.cat(rounds(Cycle(keys(1, 2), prompts, pool), 2, prompts, 300), 1)
    epochs = drawn[:, : drawn.shape[1] // pool * pool].reshape(2, -1, pool)
    assert (epochs.sort(-1).values == torch.arange(pool)).all()
    assert len({tuple(epoch) for epoch in epochs[0].tolist()}) > 4
    assert not torch.equal(epochs[0], epochs[1])


def test_cycle_members_with_different_rejections_move_on_independently():
    def run(seeds, rejections):
        order, found = Cycle(keys(*seeds), 4, 7), []
        for k in range(40):
            drawn = order.draw(k, 0, every(len(seeds), 4), ~every(len(seeds), 4))
            again = flags([[slot < rejected[k % len(rejected)] for slot in range(4)] for rejected in rejections])
            redrawn = order.draw(k, 1, again, ~again)
            found.append(torch.where(again, redrawn, drawn))
        return torch.stack(found, 1)

    together = run((5, 6), ([1, 0, 3], [4, 2]))
    assert torch.equal(together[:1], run((5,), ([1, 0, 3],)))
    assert torch.equal(together[1:], run((6,), ([4, 2],)))


def test_independent_draws_cover_the_pool_uniformly():
    drawn = torch.stack(rounds(Independent(keys(*range(20)), 6, 4), 20, 6, 200))
    shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    assert (shares - 0.25).abs().max() < 4 * (0.1875 / drawn.numel()) ** 0.5


@pytest.mark.parametrize("name", ORDERS)
def test_orders_do_not_depend_on_who_trains_beside(name):
    together = rounds(ORDERS[name](keys(8, 9), 3, 5), 2, 3, 80)
    alone = rounds(ORDERS[name](keys(9), 3, 5), 1, 3, 80)
    assert all(torch.equal(a[1:], b) for a, b in zip(together, alone, strict=True))
    assert len({tuple(row) for drawn in together for row in drawn.tolist()}) > 10


@pytest.mark.parametrize("name", ORDERS)
def test_orders_resume_where_they_stopped(name):
    whole = rounds(ORDERS[name](keys(8, 9), 3, 5), 2, 3, 30)
    first, second = ORDERS[name](keys(8, 9), 3, 5), ORDERS[name](keys(8, 9), 3, 5)
    rounds(first, 2, 3, 11)
    second.load(first.state())
    resumed = [second.draw(k, 0, every(2, 3), ~every(2, 3)) for k in range(11, 30)]
    assert all(torch.equal(a, b) for a, b in zip(whole[11:], resumed, strict=True))
