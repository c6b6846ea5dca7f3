"""Long runs in MLflow while they train: resumed, cut off, killed, and completed from the record."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grpo_ablate.algorithm.history import History, Line
from grpo_ablate.analysis.collect import tidy
from grpo_ablate.runs import mlflow_stream
from grpo_ablate.runs.mlflow_content import joined_spec
from grpo_ablate.runs.mlflow_store import client, create_store, locate
from grpo_ablate.runs.mlflow_stream import Stream, end_abandoned
from grpo_ablate.runs.mlflow_writer import log_experiment
from grpo_ablate.runs.train import train
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import canonical_json


def fake_loop(rounds: int):
    """A loop of seeds 4 and 7 after so many evaluations."""
    history = History()
    for number in range(rounds):
        counters = torch.tensor([[number] * 2, [8 * number] * 2, [8 * number] * 2])
        values = {"eval/reward": torch.tensor([0.5 + number, float("nan")], dtype=torch.float64)}
        if number:
            values["train/loss"] = torch.tensor([float("inf"), -1.0], dtype=torch.float64)
        history.lines.append(Line(number, torch.tensor([True, True]), counters, values))
    return SimpleNamespace(keys=SimpleNamespace(seeds=torch.tensor([4, 7])), history=history)


@pytest.fixture
def arguments(experiment, results):
    folder = results / "runs" / "tiny" / "0123abcd" / "seeds-4-7"
    spec = experiment.row("base").effective
    return {"uri": None, "spec": spec, "testbed": "tiny", "folder": folder}


def logged(results):
    remote = client(locate(results).uri)
    runs = remote.search_runs([remote.get_experiment_by_name("tiny").experiment_id])
    by_seed = {int(run.data.tags["seed"]): run for run in runs}
    assert len(by_seed) == len(runs)
    return remote, by_seed


def test_lines_appear_while_training_and_the_run_ends_with_it(arguments, results):
    with Stream(**arguments) as stream:
        loop = fake_loop(2)
        stream(loop, loop.history.lines[-1])
        remote, runs = logged(results)
        assert {run.info.status for run in runs.values()} == {"RUNNING"}
        loop = fake_loop(4)
        stream(loop, loop.history.lines[-1])
    remote, runs = logged(results)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    history = remote.get_metric_history(runs[4].info.run_id, "eval/reward")
    assert sorted((point.step, point.value) for point in history) == [(n, 0.5 + n) for n in range(4)]
    assert all(np.isnan(p.value) for p in remote.get_metric_history(runs[7].info.run_id, "eval/reward"))
    assert joined_spec(runs[4].data.tags) == canonical_json(arguments["spec"])
    assert runs[4].data.params["task.name"] == "selection"


def test_a_resumed_run_is_found_again_and_has_no_step_twice(arguments, results):
    with pytest.raises(KeyboardInterrupt), Stream(**arguments) as stream:
        loop = fake_loop(3)
        stream(loop, loop.history.lines[-1])
        raise KeyboardInterrupt
    _, runs = logged(results)
    assert {run.info.status for run in runs.values()} == {"KILLED"}
    with Stream(**arguments) as stream:
        loop = fake_loop(5)  # continues from a checkpoint of round 2
        stream(loop, loop.history.lines[-1])
    remote, again = logged(results)
    assert {s: r.info.run_id for s, r in again.items()} == {s: r.info.run_id for s, r in runs.items()}
    for name in ("round", "train/loss"):
        steps = [point.step for point in remote.get_metric_history(again[7].info.run_id, name)]
        assert sorted(steps) == [0, 1, 2, 3, 4]


def test_a_lost_server_delays_lines_and_stops_nothing(arguments, results, monkeypatch, capfd):
    real = mlflow_stream.client
    monkeypatch.setattr(mlflow_stream, "create_store", lambda *_: None)
    monkeypatch.setattr(mlflow_stream, "client", lambda _: real("http://127.0.0.1:9"))
    stream = Stream(**arguments, patience=3600)
    for rounds in (1, 2, 3):
        loop = fake_loop(rounds)
        stream(loop, loop.history.lines[-1])
    assert capfd.readouterr().err.count("streaming to MLflow waits") == 1  # patience: asked once
    monkeypatch.undo()
    stream._remote = None
    stream.__exit__(None)
    remote, runs = logged(results)
    assert len(remote.get_metric_history(runs[4].info.run_id, "round")) == 3
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_a_server_that_never_comes_back_costs_the_run_nothing(arguments, capfd):
    with Stream(**{**arguments, "uri": "http://127.0.0.1:9"}) as stream:
        loop = fake_loop(2)
        stream(loop, loop.history.lines[-1])
    assert "records in the results folder are intact" in capfd.readouterr().err


def test_a_killed_trainers_runs_are_ended_and_a_living_ones_are_not(arguments, results):
    stream = Stream(**arguments)
    loop = fake_loop(2)
    stream(loop, loop.history.lines[-1])  # and the process is gone
    scratch = results / "scratch" / "tiny" / "0123abcd" / "seeds-4-7"
    scratch.mkdir(parents=True)
    with (scratch / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert end_abandoned(results, ["tiny"]) == 0
    assert end_abandoned(results, ["tiny", "no such testbed"]) == 2
    assert {run.info.status for run in logged(results)[1].values()} == {"KILLED"}
    assert end_abandoned(results, ["tiny"]) == 0


@pytest.mark.parametrize("direct", [True, False])
def test_a_streamed_run_is_completed_from_its_record(experiment, results, monkeypatch, direct):
    if not direct:
        monkeypatch.setattr("grpo_ablate.runs.mlflow_sqlite.understood", lambda *_: False)
    create_store(results, None, ["tiny"])
    row = replace(experiment, rows=experiment.rows[:1]).rows[0]
    for cell in cells([experiment]):
        folder = results / cell.folder
        scratch = results / cell.folder.replace("runs/", "scratch/", 1)
        spec = next(row.effective for row in experiment.rows if row.hash == cell.hash)
        seeds = range(cell.first_seed, cell.last_seed + 1)
        if cell.hash == row.hash:
            with Stream(None, spec, testbed="tiny", folder=folder) as stream:
                train(spec, seeds, folder, scratch, testbed="tiny", on_evaluation=stream)
        else:
            train(spec, seeds, folder, scratch, testbed="tiny")
    before = {seed: run.info.run_id for seed, run in logged(results)[1].items()}
    assert sorted(before) == [0, 1, 2]
    assert log_experiment(experiment, results).written == 6
    remote = client(locate(results).uri)
    runs = remote.search_runs([remote.get_experiment_by_name("tiny").experiment_id])
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED"}
    streamed = {run.info.run_id for run in runs if run.data.tags["hash"] == row.hash}
    assert streamed == set(before.values())  # the same runs, not copies
    found = tidy(experiment, results, "mlflow").to_pandas()
    assert found.equals(tidy(experiment, results).to_pandas())
    assert found["seconds"].notna().all()
