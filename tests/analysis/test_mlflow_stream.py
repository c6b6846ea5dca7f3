"""Long runs in MLflow while they train: resumed, cut off, killed, and completed from the record."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fabricated import client

from grpo_ablate.algorithm.history import History, Line
from grpo_ablate.analysis.collect import tidy
from grpo_ablate.runs import mlflow_stream
from grpo_ablate.runs.mlflow_store import Store
from grpo_ablate.runs.mlflow_stream import Stream, end_abandoned
from grpo_ablate.runs.mlflow_writer import Logged, log_experiment
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
    remote = client(results)
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
    assert runs[4].data.tags["spec.0"] == canonical_json(arguments["spec"])
    assert runs[4].data.tags["folder"] == "runs/tiny/0123abcd/seeds-4-7"
    assert runs[4].data.params["task.name"] == "selection"


def test_a_resumed_run_is_one_run_with_every_line_once(arguments, results):
    with pytest.raises(KeyboardInterrupt), Stream(**arguments) as stream:
        loop = fake_loop(3)
        stream(loop, loop.history.lines[-1])
        raise KeyboardInterrupt
    assert {run.info.status for run in logged(results)[1].values()} == {"KILLED"}
    with Stream(**arguments) as stream:
        loop = fake_loop(5)  # continues from a checkpoint of round 2
        stream(loop, loop.history.lines[-1])
    remote, runs = logged(results)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for name in ("round", "train/loss"):
        history = remote.get_metric_history(runs[7].info.run_id, name)
        assert [point.step for point in history] == ([0, 1, 2, 3, 4] if name == "round" else [1, 4])


def test_many_waiting_lines_are_logged_in_batches(arguments, results):
    with Stream(**arguments) as stream:
        loop = fake_loop(400)  # 5 points a line, where a call takes 1,000
        stream(loop, loop.history.lines[-1])
    remote, runs = logged(results)
    assert len(remote.get_metric_history(runs[4].info.run_id, "eval/reward")) == 400


def test_a_lost_server_delays_lines_and_stops_nothing(arguments, results, monkeypatch, capfd):
    monkeypatch.setattr(mlflow_stream, "create_store", lambda *_: None)
    stream = Stream(**arguments, patience=3600)
    known, stream._store = stream._store, Store("http://127.0.0.1:9", Path(), None)
    for rounds in (1, 2, 3):
        loop = fake_loop(rounds)
        stream(loop, loop.history.lines[-1])
    assert capfd.readouterr().err.count("streaming to MLflow waits") == 1  # patience: asked once
    monkeypatch.undo()
    stream._store = known
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


def test_a_streamed_run_is_replaced_from_its_record(experiment, results):
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
    assert sorted(logged(results)[1]) == [0, 1, 2, 3]
    assert log_experiment(experiment, results) == Logged(written=6, unchanged=0)
    remote = client(results)
    runs = remote.search_runs([remote.get_experiment_by_name("tiny").experiment_id])
    assert len(runs) == 6 + 1  # seed 3 of the last block was streamed, too; no row asks for it
    assert {run.info.status for run in runs} == {"FINISHED"}
    found = tidy(experiment, results, "mlflow").to_pandas()
    assert found.equals(tidy(experiment, results).to_pandas())
    assert found["seconds"].notna().all()
