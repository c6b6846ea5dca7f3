"""Every side does the same work: the same prompts in every round, as many responses, as many optimiser steps."""

import io
import json
from importlib.util import find_spec

import pytest
import torch
from small_language import small_spec

from grpo_ablate.bench import ours, peak, transformers_side
from grpo_ablate.bench.flops import token_cost
from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Finished, Pacer
from grpo_ablate.runs.warmstart import train_start
from grpo_ablate.spec.identity import canonical_json
from grpo_ablate.spec.warmstart import start_of

WARM = {"steps": 3, "demonstrations": 64, "batch": 8, "learning_rate": 1e-3}
SIDES = {"grpo-ablate": ours, "transformers": transformers_side}
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")


def warm_spec(**sections):
    spec = small_spec(rounds=20, **sections)
    return spec.model_copy(
        update={"policy": spec.policy.model_copy(update={"warmstart": type(spec.policy.warmstart)(**WARM)})}
    )


class Remembering(Pacer):
    """A pacer that keeps every round."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.all = []

    def round(self, done):
        self.all.append(done)
        super().round(done)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    start = start_of(warm_spec(), 0, 0)
    train_start(start, folder)
    torch.set_flush_denormal(False)  # which training sets for the whole process
    return folder


def work(module, results, *orders, members=1, process=0, **sections):
    """Run a side in this process; return the rounds that it reported and its replies."""
    spec = warm_spec(**sections)
    job = Job("side", canonical_json(spec), str(results), members, process)
    replies = io.StringIO()
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    cost = token_cost(spec.policy, len(job.task.vocabulary))
    pace = Remembering(io.StringIO(lines), replies, cost=cost, passes=spec.update.inner_passes)
    with pytest.raises(Finished):
        module.run(job, pace)
    return pace.all, [json.loads(line) for line in replies.getvalue().splitlines()]


@pytest.mark.parametrize("other", ["transformers", pytest.param("trl", marks=needs_trl)])
def test_all_sides_meet_the_same_prompts_in_every_round(other, results):
    if other == "trl":
        from grpo_ablate.bench import trl_side as module
    else:
        module = SIDES[other]
    orders = {"rounds": 1}, {"rounds": 3}
    mine, _ = work(ours, results, *orders, members=2, process=1)  # seeds 2 and 3
    theirs, replies = work(module, results, *orders, process=2)
    assert len(mine) == len(theirs) == 4
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a.prompts[:1], b.prompts)
        assert a.responses.shape == (2, 4, 4) and b.responses.shape == (1, 4, 4)
        assert b.responses.min() >= 1 and b.responses.max() <= 6
    assert len({tuple(round.prompts.flatten().tolist()) for round in theirs}) > 1
    assert replies[-1]["updates"] == 3
    assert (replies[-1]["sampling_seconds"] is None) == (other == "trl")


@needs_trl
def test_trl_takes_this_projects_optimiser_steps_and_no_more(results):
    from transformers import Trainer

    from grpo_ablate.bench import trl_side

    steps, training_step = [], Trainer.training_step

    def counted(self, model, inputs, *rest):
        steps.append(self.state.global_step)
        return training_step(self, model, inputs, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", counted)
        work(trl_side, results, {"rounds": 2})
    assert steps == list(range(2 * 4))  # forward and backward passes: one each optimiser step


def test_ours_reports_its_parts_within_the_slice_and_times_evaluations(results):
    _, replies = work(ours, results, {"rounds": 1}, {"rounds": 2}, {"evaluate": [1, 2]}, {"rounds": 1}, members=3)
    whole = replies[2]
    assert whole["updates"] == 6 and whole["responses"] == 2 * 3 * 16
    assert 0 < whole["sampling_seconds"] + whole["training_seconds"] <= whole["seconds"]
    assert whole["sampling_flops"] > 0
    assert min(replies[3]["evaluation"]) > 0


def test_the_peak_is_a_product_a_round(results):
    _, replies = work(peak, results, {"rounds": 1})
    assert replies[1]["rounds"] == 1 and replies[1]["updates"] == 0
    assert 1e8 < peak.OPERATIONS / replies[1]["seconds"] < 1e15
