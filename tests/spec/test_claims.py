"""Claims, controls and learning rates of an experiment file: what they resolve to and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import experiment_cells, row_cells, tuning_cells
from grpo_ablate.spec.resolve import load_experiment

Write = Callable[..., Path]
ROWS = {"base": {}, "other": {"advantage": {"scale": "none"}}}


def claim(**test: Any) -> dict[str, Any]:
    stated = {"is": "better", "row": "other", "than": "base"} | test
    return {"id": "c", "statement": "s", "source": "p", "test": {k: v for k, v in stated.items() if v is not None}}


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ({"row": "othr"}, "test.row: no row 'othr'; did you mean 'other'?"),
        ({"than": "bas"}, "test.than: no row 'bas'; did you mean 'base'?"),
        ({"than": "other"}, "test.row and test.than are both 'other'; name two rows."),
        ({"is": "equivalent"}, "test.margin is missing: equivalent needs a margin above 0."),
        ({"is": "equivalent", "margin": 0}, "test.margin is 0: equivalent needs a margin above 0."),
        ({"is": "ratio", "margin": 0.1}, "test.is ratio needs the stated ratio as test.value."),
        ({"value": 2.0}, "test.is better reads no test.value."),
        ({"metric": "eval/rewrd"}, "test.metric: no metric 'eval/rewrd'; did you mean 'eval/reward'?"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused_by_name(
    write: Write, test: dict[str, Any], sentence: str
) -> None:
    path = write({"rows": ROWS, "claims": [claim(**test)]})
    with pytest.raises(UserError) as raised:
        load_experiment(path)
    assert str(raised.value) == f"{path}: claim 'c': {sentence}"


def test_two_claims_of_one_name_are_refused(write: Write) -> None:
    with pytest.raises(UserError, match="two claims have this id"):
        load_experiment(write({"rows": ROWS, "claims": [claim(), claim()]}))


def test_every_experiment_trains_its_controls_beside_its_rows(write: Write) -> None:
    experiment = load_experiment(write({"rows": ROWS}))
    again, random = experiment.controls
    base = experiment.row("base").effective
    assert again.effective.sampling.random_key == base.sampling.random_key + 1
    assert random.effective.reward.transform == "random"
    assert again.effective.model_copy(update={"sampling": base.sampling}) == base
    assert random.effective.model_copy(update={"reward": base.reward}) == base
    trained = set(experiment_cells(experiment))
    assert all(set(row_cells(experiment, row)) <= trained for row in (*experiment.rows, *experiment.controls))


def test_rates_are_tried_on_seeds_that_no_row_is_compared_on(write: Write) -> None:
    experiment = load_experiment(write({"rows": ROWS, "seeds": 3, "tune": {"learning_rate": [0.1, 0.3]}}))
    assert {name: [row.id for row in rows] for name, rows in experiment.tuned.items()} == {
        "base": ["base@0.1", "base@0.3"],
        "other": ["other@0.1", "other@0.3"],
    }
    assert [row.spec.optimizer.learning_rate for row in experiment.tuned["other"]] == [0.1, 0.3]
    compared = {
        seed for row in experiment.trained_rows for cell in row_cells(experiment, row) for seed in cell.seeds
    }
    tuning = {
        seed
        for rows in experiment.tuned.values()
        for r in rows
        for c in tuning_cells(experiment, r)
        for seed in c.seeds
    }
    assert tuning and not tuning & compared
    assert len(tuning) >= experiment.seeds


def test_one_rate_is_nothing_to_choose_from(write: Write) -> None:
    with pytest.raises(UserError, match=r"tune.learning_rate .* at least 2 entries"):
        load_experiment(write({"rows": ROWS, "tune": {"learning_rate": [0.1]}}))
    with pytest.raises(UserError, match="names a value twice"):
        load_experiment(write({"rows": ROWS, "tune": {"learning_rate": [0.1, 0.1]}}))


@pytest.mark.parametrize(
    ("policy", "evaluation", "sentence"),
    [
        (
            {"name": "tabular"},
            {"samples": 2},
            "policy.name tabular cannot write the responses of the task arithmetic",
        ),
        (
            {"name": "stacked", "heads": 3, "kv_heads": 2},
            {"samples": 2},
            "kv_heads 2 does not divide policy.heads 3",
        ),
        ({"name": "stacked"}, {}, "evaluation.samples exact needs a closed form"),
    ],
)
def test_policies_and_tasks_that_do_not_go_together_are_refused(
    write: Write, policy: dict[str, Any], evaluation: dict[str, Any], sentence: str
) -> None:
    testbed = {
        "description": "d",
        "task": {"name": "arithmetic"},
        "policy": policy,
        "evaluation": evaluation,
        "sampling": {"prompts": 2, "group_size": 2},
        "budget": {"rollouts": 8},
    }
    with pytest.raises(UserError, match=sentence):
        load_experiment(write({"rows": ROWS}, testbed))


def test_a_reference_that_moves_between_drawing_and_training_is_refused(write: Write) -> None:
    row = {"kl": {"beta": 0.1, "place": "reward-after", "refresh_reference": 2}, "update": {"staleness": 1}}
    with pytest.raises(UserError, match=r"kl.refresh_reference 2 with kl.place reward-after"):
        load_experiment(write({"rows": {"base": row}}))
    del row["kl"]["place"]  # in the loss it is measured when it trains
    load_experiment(write({"rows": {"base": row}}))
