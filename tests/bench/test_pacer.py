"""A side works in slices of whole rounds and reports what it did in each, and in nothing else."""

import io
import json

import pytest
import torch

from grpo_ablate.bench.flops import TokenCost
from grpo_ablate.bench.pacer import Finished, Pacer, Round


def pacer(orders):
    replies = io.StringIO()
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    return Pacer(io.StringIO(lines), replies, cost=TokenCost(10, 0, 1), passes=2), replies


def messages(replies):
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def work(pace, sampling=0.25):
    """Two models, two prompts of three tokens, groups of two responses; one group of each learns nothing."""
    rounds = 0
    pace.ready()
    while True:
        rounds += 1
        prompts, responses = torch.full((2, 2), 3), torch.full((2, 2, 2), rounds)
        learns = torch.tensor([[True, False], [False, True]])
        pace.round(Round(prompts, responses, learns, sampling, None if sampling is None else 0.5))


def test_slices_hold_the_rounds_that_were_ordered_and_end_with_the_orders():
    pace, replies = pacer([{"rounds": 1}, {"rounds": 2}])
    with pytest.raises(Finished):
        work(pace)
    ready, first, second = messages(replies)
    assert ready == {"ready": True}
    assert [first["rounds"], second["rounds"]] == [1, 2]
    assert [first["updates"], second["updates"]] == [2, 4]  # a round of each model
    assert [first["tokens"], second["tokens"]] == [8, 16 + 24]
    assert [first["responses"], second["responses"]] == [8, 16]
    assert [second["sampling_seconds"], second["training_seconds"]] == [0.5, 1.0]
    assert first["seconds"] > 0 and first["peak_bytes"] > 1e6


def test_operations_count_prompts_once_and_no_training_of_groups_without_gradient():
    pace, replies = pacer([{"rounds": 1}, {"rounds": 1}])
    with pytest.raises(Finished):
        work(pace)
    second = messages(replies)[2]  # responses of two tokens: one is fed
    group = 10 * (3 + 2 * 1) + 1 * (1 + 2 * 1)
    assert second["sampling_flops"] == 4 * group
    assert second["training_flops"] == 2 * group * 3 * 2  # forwards, backwards twice; two passes


def test_a_side_that_cannot_tell_its_parts_apart_reports_none():
    pace, replies = pacer([{"rounds": 1}])
    with pytest.raises(Finished):
        work(pace, None)
    assert messages(replies)[1]["sampling_seconds"] is None


def test_an_evaluation_is_timed_between_slices():
    pace, replies = pacer([{"evaluate": [2, 16]}, {"rounds": 1}])
    asked = []
    pace.evaluate = asked.append
    with pytest.raises(Finished):
        work(pace)
    assert asked == [2, 2, 16]  # the first is not counted
    assert len(messages(replies)[1]["evaluation"]) == 2
