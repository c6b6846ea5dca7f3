"""All sides start from one checkpoint: the testbed's own where it is trained, else a short one, which is said."""

import json
from pathlib import Path

import pytest
import torch
from small_language import POLICY, TASK

from grpo_ablate.bench.workload import SHORT, model_folder, prepared, spec_of_testbed
from grpo_ablate.runs.warmstart import train_start
from grpo_ablate.spec.warmstart import start_of


@pytest.fixture
def testbed(tmp_path, monkeypatch):
    """Return a function that writes a testbed of that many warm-start steps into an empty project."""
    monkeypatch.chdir(tmp_path)

    def write(steps, **warmstart):
        warm = {"steps": steps, "demonstrations": 64, "batch": 4, **warmstart}
        stated = {
            "description": "very small",
            "seeds_per_job": 2,
            "task": TASK,
            "policy": POLICY | {"warmstart": warm},
            "evaluation": {"every": 2, "samples": 1, "final_samples": 2, "final_evaluations": 2},
            "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 6},
            "budget": {"rollouts": 96},
        }
        Path("experiments/testbeds").mkdir(parents=True)
        Path("experiments/testbeds/tiny.yaml").write_text(json.dumps(stated))

    yield write
    torch.set_flush_denormal(False)  # which training sets for the whole process


def test_the_testbeds_own_warm_start_is_used_where_it_is_trained(testbed):
    testbed(2, per_seed=True)  # the sides share one start, whatever the testbed's seeds do
    start = start_of(spec_of_testbed("tiny"), 0, 0)
    assert start.seeds is None
    train_start(start, Path("results"))
    work = prepared("tiny", Path("results"), 10, Path("scratch"))
    assert work.origin == f"the testbed's warm start, results/{start.folder}"
    assert work.results == Path("results") and not Path("scratch").exists()
    assert (model_folder(work.results, work.spec) / "config.json").exists()
    assert work.whole.rounds == 6 and work.whole.evaluation.final_samples == 2
    assert work.spec.rounds == 11  # one more, so that no side ends by itself
    assert work.spec.evaluation.every > work.spec.rounds


def test_a_short_warm_start_stands_in_and_is_named(testbed):
    testbed(SHORT + 1)
    work = prepared("tiny", Path("results"), 10, Path("scratch"))
    assert work.origin == (
        f"a warm start of {SHORT} steps made for this; the testbed's own, of {SHORT + 1} steps, is not trained"
    )
    assert work.spec.policy.warmstart.steps == SHORT
    assert (model_folder(Path("scratch"), work.spec) / "model.safetensors").exists()
    assert not Path("results").exists()
