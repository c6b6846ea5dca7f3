"""Rates are sums over processes, ratios are taken slice by slice, and a run's shares count its evaluations."""

import pytest
from small_language import followed, small_spec

from grpo_ablate.bench.measure import Result, Side
from grpo_ablate.bench.pacer import Slice
from grpo_ablate.bench.peak import OPERATIONS
from grpo_ablate.bench.summary import evaluations_of, peak_gflops, summarise

EVALUATION = {"every": 5, "samples": 2, "final_samples": 16}


def done(seconds, updates, **more):
    parts = {"sampling_seconds": seconds / 4, "training_seconds": seconds / 2}
    return Slice(2, seconds, updates, tokens=60, responses=10, **parts | more)


OURS = Result(
    Side("grpo-ablate", 4, 2, (2, 16)),
    (3.0, 3.5),
    (
        (done(2.0, 8, sampling_flops=1e9, training_flops=8e9), done(4.0, 8)),
        (done(1.0, 8), done(1.0, 8)),
        (done(2.0, 8), done(2.0, 8)),
    ),
    ((0.5, 4.0), (0.7, 4.0)),
)
THEIRS = Result(
    Side("trl", 1, 2),
    (9.0, 9.5),
    tuple((done(t, 2, sampling_seconds=None, training_seconds=None),) * 2 for t in (2.0, 1.0, 4.0)),
)


def test_rates_are_summed_over_processes_and_ratios_taken_within_a_slice():
    found = summarise(OURS, 100.0, [THEIRS], small_spec(evaluation=EVALUATION))
    assert found.models == 8
    assert found.updates_per_second.slices == (8 / 2 + 8 / 4, 16.0, 8.0)
    assert found.updates_per_second.median == 8.0
    assert found.updates_per_second_per_model == 1.0
    assert found.times["trl"].slices == (6 / 2, 16 / 4, 8 / 1)
    assert found.response_length == 6.0
    assert found.start_up_seconds == 3.5
    assert found.evaluation_seconds == {"2 samples": pytest.approx(0.6), "16 samples": 4.0}


def test_shares_of_the_peak_divide_operations_by_the_seconds_of_their_part():
    found = summarise(OURS, 100.0, [], small_spec(evaluation=EVALUATION))
    seconds = 2 + 4 + 1 + 1 + 2 + 2
    assert found.gflops == {
        "sampling": pytest.approx(1 / (seconds / 4)),
        "training": pytest.approx(8 / (seconds / 2)),
    }
    assert found.share_of_peak["training"] == pytest.approx(8 / (seconds / 2) / 100)
    parts = found.seconds_per_round
    assert parts == {
        k: pytest.approx(seconds * s / 12) for k, s in (("sampling", 0.25), ("training", 0.5), ("rest", 0.25))
    }
    matmul = Result(Side("matmul", 0, 8), (1.0,), ((Slice(8, 2.0),), (Slice(8, 1.0),)))
    assert peak_gflops(matmul).high == pytest.approx(8 * OPERATIONS / 1e9)


def test_a_side_that_does_not_tell_its_parts_has_a_rate_alone():
    found = summarise(THEIRS, 100.0, [], small_spec())
    assert found.updates_per_second.median == 2.0
    assert found.gflops is None and found.seconds_per_round is None and found.sampled_tokens_per_second is None


@pytest.mark.parametrize(
    "evaluation",
    [
        {"every": 3, "samples": 1, "final_samples": 2, "final_evaluations": 2},
        {"every": 1, "samples": 2},
        {"every": 100, "samples": 1, "final_samples": 2, "final_evaluations": 9},
    ],
)
def test_a_run_makes_as_many_evaluations_as_are_counted(evaluation):
    spec = small_spec(rounds=7, evaluation=evaluation)
    loop = followed(spec.model_copy(update={"budget": spec.budget.model_copy(update={"rollouts": 1})}))
    asked = {}
    loop.spec = spec
    evaluate = loop.policy.evaluate
    loop.policy.evaluate = lambda samples, round: (
        asked.update({samples: asked.get(samples, 0) + 1}) or evaluate(1, round)
    )
    loop.start()
    while not loop.finished:
        loop.advance()
    assert asked == {samples: count for samples, count in evaluations_of(spec).items() if count}


def test_shares_of_a_run_weigh_rounds_and_evaluations():
    spec = small_spec(rounds=10, evaluation=EVALUATION)
    found = summarise(OURS, 100.0, [], spec)
    rounds = 10 * 12.0 / 12  # ten rounds of a second each
    total = rounds + 2 * 0.6 + 1 * 4.0
    assert found.share_of_run["evaluation"] == pytest.approx((2 * 0.6 + 4.0) / total)
    assert sum(found.share_of_run.values()) == pytest.approx(1)
