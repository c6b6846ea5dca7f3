"""The loop: members are independent, interruptions leave no trace, every response is charged."""

import math

import pytest
import torch
from training_specs import DEMANDING, demanding, finish, make_loop, make_spec

from grpo_ablate.errors import UserError


def same(first, second):
    """Equal to the bit, NaN equal to NaN."""
    if first.dtype.is_floating_point:
        return torch.equal(first.isnan(), second.isnan()) and torch.equal(first.nan_to_num(), second.nan_to_num())
    return torch.equal(first, second)


def columns_by_seed(loop, seeds):
    columns = loop.history.columns(list(seeds))
    return {seed: {n: v[columns["seed"] == seed] for n, v in columns.items()} for seed in seeds}


@pytest.mark.parametrize("name", DEMANDING)
def test_members_side_by_side_equal_members_alone_bitwise(name):
    spec, seeds = demanding(name), [3, 11, 4]
    together = finish(make_loop(spec, seeds))
    lines = columns_by_seed(together, seeds)
    for member, seed in enumerate(seeds):
        alone = finish(make_loop(spec, [seed]))
        assert torch.equal(together.policy.logits[member], alone.policy.logits[0])
        expected = columns_by_seed(alone, [seed])[seed]
        assert lines[seed].keys() == expected.keys()
        for column, values in expected.items():
            assert same(lines[seed][column], values), column
    if spec.sampling.dynamic != "off":  # the case is only a test where members did accept different groups
        accepted = [lines[seed]["train/groups_accepted"][1:].tolist() for seed in seeds]
        assert accepted[0] != accepted[1]


@pytest.mark.parametrize(
    "sections",
    [
        {"update": {"surrogate": "soft", "inner_passes": 3}},
        {"reward": {"transform": "power", "power": 0.37}, "qualities": [[i / 97 for i in range(1, 97)]] * 3},
        {"optimizer": {"name": "adamw", "learning_rate": 0.05}},
        {"advantage": {"eps": 0.01, "eps_inside": True}, "sampling": {"group_size": 7}},
    ],
    ids=["soft", "power", "adamw", "stabiliser"],
)
def test_a_seed_rounds_alike_wherever_it_stands_among_many(sections):
    """Vectorised kernels such as sigmoid and pow round the last few numbers of a tensor differently."""
    sections = {"sampling": {"prompts": 3, "group_size": 3}} | sections
    spec, seeds = make_spec(rounds=40, **sections), range(21)
    together = finish(make_loop(spec, seeds))
    lines = columns_by_seed(together, seeds)
    for first, last in ((0, 0), (7, 7), (20, 20), (8, 11)):
        block = range(first, last + 1)
        apart = finish(make_loop(spec, block))
        assert torch.equal(apart.policy.logits, together.policy.logits[first : last + 1])
        for seed, columns in columns_by_seed(apart, block).items():
            for column, values in columns.items():
                assert same(lines[seed][column], values), column


@pytest.mark.parametrize("name", DEMANDING)
def test_a_loop_restored_after_any_round_continues_bitwise(name):
    spec, seeds = demanding(name), [5, 6]
    whole = finish(make_loop(spec, seeds))
    expected = whole.history.columns(seeds)
    running = make_loop(spec, seeds)
    running.start()
    while not running.finished:
        restored = make_loop(spec, seeds)
        restored.load({n: t.clone() for n, t in running.state().items()})
        finish(restored, start=False)
        assert torch.equal(restored.policy.logits, whole.policy.logits)
        columns = restored.history.columns(seeds)
        assert list(columns) == list(expected)
        assert all(same(columns[n], expected[n]) for n in expected)
        running.advance()


def plain_training(spec, loop, rounds):
    """Section by section from the papers, one seed, one prompt after the other, gradients by hand."""
    qualities, lr, beta = loop.task.qualities, spec.optimizer.learning_rate, spec.kl.beta
    logits = torch.zeros_like(qualities)
    for k in range(rounds):
        uniforms = loop.policy.uniforms(k)[0, :, :, 0]
        gradient = torch.zeros_like(logits)
        for prompt in range(len(logits)):
            p = logits[prompt].softmax(-1)
            actions = [int((u >= p.cumsum(0)[:-1]).sum()) for u in uniforms[prompt]]
            rewards = [float(qualities[prompt, a]) for a in actions]
            mean = sum(rewards) / len(rewards)
            std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
            for action, reward in zip(actions, rewards, strict=True):
                advantage = (reward - mean) / (std + spec.advantage.eps) if std else 0.0
                score = -p.clone()
                score[action] += 1
                gradient[prompt] -= advantage * score / len(rewards)
            divergence = (p * (p * len(p)).log()).sum()
            gradient[prompt] += beta * p * ((p * len(p)).log() - divergence)
        logits = logits - lr * gradient / len(logits)
    return logits


def test_updates_are_those_of_the_plain_formula():
    qualities = [[0, 0.35, 0.7, 1], [1, 0, 0.2, 0.6], [0.1, 0.2, 0.3, 0.4]]
    spec = make_spec(
        qualities=qualities,
        rounds=30,
        sampling={"prompts": 3, "group_size": 8, "prompt_order": "each-once"},
        advantage={"eps": 1e-8},
        kl={"beta": 0.05, "estimator": "exact"},
        optimizer={"learning_rate": 0.3},
    )
    loop = finish(make_loop(spec, [9]))
    torch.testing.assert_close(
        loop.policy.logits[0].detach(), plain_training(spec, loop, 30), rtol=1e-12, atol=1e-13
    )


def test_evaluations_are_at_the_start_at_every_nth_round_and_at_the_end():
    loop = finish(make_loop(make_spec(rounds=7, evaluation={"every": 3}), [1]))
    columns = loop.history.columns([1])
    assert columns["round"].tolist() == [0, 3, 6, 7]
    assert columns["rollouts"].tolist() == [0, 48, 96, 112]
    assert columns["tokens"].tolist() == [0, 48, 96, 112]
    assert columns["updates"].tolist() == [0, 3, 6, 7]
    assert columns["train/loss"].isnan().tolist() == [True, False, False, False]


def test_thinning_the_evaluations_changes_no_sum():
    fine = finish(make_loop(make_spec(rounds=6, evaluation={"every": 1}), [1])).history.columns([1])
    coarse = finish(make_loop(make_spec(rounds=6, evaluation={"every": 6}), [1])).history.columns([1])
    assert coarse["train/reward_raw"][1].item() == pytest.approx(fine["train/reward_raw"][1:].mean().item())
    assert coarse["train/ratio_max"][1] == fine["train/ratio_max"][1:].max()
    assert coarse["train/gradient_norm"][1].item() == pytest.approx(fine["train/gradient_norm"][1:].mean().item())


@pytest.mark.parametrize("prompt_order", ["cycle", "each-once", "iid"])
def test_resampling_charges_everything_it_threw_away_and_ends_with_the_budget(prompt_order):
    spec = make_spec(rounds=40, sampling={"dynamic": "resample", "max_resample": 5, "prompt_order": prompt_order})
    loop = finish(make_loop(spec, range(4)))
    assert (loop.spent <= spec.budget.rollouts).all()
    assert (spec.budget.rollouts - loop.spent < spec.rollouts_per_round).all()
    columns = loop.history.columns(list(range(4)))
    discarded = columns["train/rollouts_discarded"]
    generated = columns["rollouts"].diff()
    assert (discarded.nan_to_num() > 0).any()
    # Within each seed what was generated since the last line is the accepted part plus the discarded part.
    for line in columns_by_seed(loop, range(4)).values():
        generated = line["rollouts"].diff().double()
        kept = generated * (1 - line["train/rollouts_discarded"][1:])
        assert (kept <= spec.rollouts_per_round + 1e-9).all()
        assert (generated >= spec.rollouts_per_round).all()
        assert line["rollouts"][-1] == line["tokens"][-1]  # one token each


def test_dynamic_sampling_on_a_solved_task_ends_and_takes_no_step():
    spec = make_spec(qualities=[[1, 1]] * 4, rounds=6, sampling={"dynamic": "resample", "max_resample": 3})
    loop = finish(make_loop(spec, [0, 1]))
    assert loop.updates.tolist() == [0, 0]
    assert loop.spent.tolist() == [spec.budget.rollouts] * 2
    assert loop.round == 2  # four times B G a round: the first draw and three more
    assert not loop.policy.logits.detach().any()
    assert all(math.isfinite(v) for v in loop.history.last("eval/reward"))


def test_on_exhausted_fail_names_seed_and_round():
    spec = make_spec(
        qualities=[[1, 1]] * 4, sampling={"dynamic": "resample", "max_resample": 1, "on_exhausted": "fail"}
    )
    with pytest.raises(UserError, match=r"seed 7 accepted 0 of 4 groups in round 1 after 1 further draws"):
        finish(make_loop(spec, [7]))


def test_the_end_of_the_budget_is_no_failure():
    sampling = {"dynamic": "resample", "max_resample": 50, "on_exhausted": "fail"}
    loop = finish(make_loop(make_spec(qualities=[[1, 0]] * 4, rounds=15, sampling=sampling), range(20)))
    kept = []
    for line in columns_by_seed(loop, range(20)).values():
        kept.append((line["rollouts"].diff() * (1 - line["train/rollouts_discarded"][1:])).round().tolist())
    # Every round but a seed's last has its four groups of four; some last rounds have fewer.
    assert all(count == 16 for counts in kept for count in counts[:-1])
    assert any(counts[-1] < 16 for counts in kept)


def test_constant_groups_move_nothing_but_the_run_goes_on():
    spec = make_spec(reward={"transform": "constant", "constant": 1.0})
    loop = finish(make_loop(spec, [0]))
    assert loop.updates.tolist() == [12]
    assert not loop.policy.logits.detach().any()


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_sampler_lags_the_trainer_by_the_staleness(staleness):
    spec = make_spec(rounds=8, update={"staleness": staleness, "clip_low": "off", "clip_high": "off"})
    loop = make_loop(spec, [2])
    loop.start()
    laws, seen = [], []
    while not loop.finished:
        laws.append(loop.policy.logits.detach().clone())
        loop.advance(lambda round: seen.append((round, loop.says(round.batch).logprobs)))
    assert loop.round == 8 and loop.spent.tolist() == [spec.budget.rollouts]
    for k, (observed, logprobs) in enumerate(seen):
        sampler = laws[max(0, k - staleness)].masked_fill(~loop.task.valid, -math.inf).log_softmax(-1)
        prompts, tokens = observed.batch.prompts[0], observed.batch.tokens[0, :, :, 0]
        expected = sampler[0][prompts].gather(1, tokens)
        torch.testing.assert_close(observed.batch.old_logprobs[0, :, :, 0], expected, rtol=0, atol=1e-15)
        unchanged = torch.equal(logprobs, observed.batch.old_logprobs)
        assert unchanged == (staleness == 0 or k == 0)


def test_refreshing_the_reference_makes_the_divergence_start_anew():
    def divergences(refresh):
        kl = {"beta": 0.1, "estimator": "exact", "refresh_reference": refresh}
        return finish(make_loop(make_spec(rounds=9, kl=kl), [2])).history.columns([2])["eval/kl"].tolist()

    fixed, refreshed = divergences(0), divergences(4)
    assert fixed[:5] == refreshed[:5]  # the fourth line still measures against the first reference
    assert refreshed[5] < refreshed[4] < fixed[8]


def test_minibatches_deal_every_accepted_group_once_in_sizes_that_differ_by_at_most_one():
    spec = make_spec(
        sampling={"prompts": 10, "dynamic": "drop"}, update={"minibatches": 3, "inner_passes": 2}, rounds=3
    )
    loop = make_loop(spec, range(6))
    seen = []
    loop.start()
    loop.advance(seen.append)
    batch = seen[0].batch
    orders = []
    for inner_pass in (0, 1):
        groups, valid = loop.deal(batch, inner_pass)
        orders.append(groups)
        for member in range(6):
            dealt = sorted(groups[member][valid[member]].tolist())
            assert dealt == batch.present[member].any(-1).nonzero()[:, 0].tolist()
            sizes = valid[member].sum(-1)
            assert sizes.max() - sizes.min() <= 1
    assert not torch.equal(*orders)


def test_minibatches_without_a_step_between_add_up_to_the_whole_gradient():
    # With a vanishing learning rate the parameters stay: the steps' gradients are the parts of one sum.
    def moved(update):
        spec = make_spec(
            rounds=1, update=update, optimizer={"learning_rate": 1e-9}, kl={"beta": 0.1, "estimator": "k3"}
        )
        return finish(make_loop(spec, [4])).policy.logits.detach()

    torch.testing.assert_close(moved({"minibatches": 4}), 4 * moved({}), rtol=1e-6, atol=1e-18)


def test_a_member_that_diverges_is_marked_and_the_others_go_on_bitwise():
    # Two rewards of 1e308 in a group with a third response overflow its mean; seeds meet that at different rounds.
    spec = make_spec(
        qualities=[[1] + [0] * 11],
        rounds=22,
        sampling={"prompts": 1, "group_size": 3},
        reward={"transform": "affine", "scale": 1e308},
        advantage={"scale": "none"},
        optimizer={"learning_rate": 1e-308},
        evaluation={"every": 10},
    )
    seeds = [0, 1, 2, 3, 4, 5]
    loop = finish(make_loop(spec, seeds))
    diverged = loop.diverged.tolist()
    assert -1 in diverged and len({*diverged} - {-1}) > 1
    lines = columns_by_seed(loop, seeds)
    for member, (seed, when) in enumerate(zip(seeds, diverged, strict=True)):
        alone = finish(make_loop(spec, [seed]))
        assert alone.diverged.tolist() == [when]
        assert same(alone.policy.logits[0].detach(), loop.policy.logits[member].detach())
        assert same(alone.history.columns([seed])["eval/reward"], lines[seed]["eval/reward"])
        assert lines[seed]["round"][-1] == (22 if when < 0 else when)
        assert lines[seed]["rollouts"][-1] == 3 * (22 if when < 0 else when)
        assert lines[seed]["eval/reward"][-1].isnan() == (when > 0)


@pytest.mark.parametrize(
    ("sections", "qualities"),
    [
        ({"reward": {"transform": "affine", "scale": 1e300}}, [[1e10, 1e10]]),
        ({"reward": {"transform": "affine", "scale": 1e300}, "advantage": {"baseline": "none", "scale": "none"}},
         [[1e10, 1e10]]),
        ({"reward": {"transform": "affine", "scale": 1e300},
          "advantage": {"baseline": "none", "scale": "none", "advantage_clip": 1.0}}, [[1e10, 1e10]]),
        ({"advantage": {"advantage_clip": 1.0}}, [[1.7e308, -1.7e308]]),
    ],
)  # fmt: skip
def test_a_reward_beyond_float64_ends_the_run_as_diverged(sections, qualities):
    spec = make_spec(qualities=qualities, rounds=20, sampling={"prompts": 1}, **sections)
    loop = finish(make_loop(spec, [0, 1, 2]))
    columns = loop.history.columns([0, 1, 2])
    for member, when in enumerate(loop.diverged.tolist()):
        assert 1 <= when < 20
        assert columns["round"][columns["seed"] == member][-1] == when
        assert columns["eval/reward"][columns["seed"] == member][-1].isnan()


def test_the_same_seed_meets_the_same_numbers_in_every_row():
    first = make_loop(make_spec(), [1])
    second = make_loop(make_spec(sampling={"group_size": 2}, advantage={"scale": "none"}), [1])
    assert torch.equal(first.policy.uniforms(3)[:, :, :2], second.policy.uniforms(3))
    wanted = torch.ones(1, 4, dtype=torch.bool)
    assert torch.equal(first.order.draw(0, 0, wanted, ~wanted), second.order.draw(0, 0, wanted, ~wanted))
