"""Whole runs to an MLflow server (or any SQL address) through the public client; a started run is continued."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grpo_ablate.runs.mlflow_content import RunContent
from grpo_ablate.runs.mlflow_lines import Lines, Points, decode, encode
from grpo_ablate.runs.mlflow_reader import server_histories
from grpo_ablate.runs.mlflow_sqlite import RUN_NAME, user

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

RECORD = "record"  # the tag set last: this run holds that record, whole


def complete(run: MlflowRun, record: str) -> bool:
    """Whether a run holds all of the record with this fingerprint."""
    return run.info.status in ("FINISHED", "FAILED") and run.data.tags.get(RECORD) == record


def write(remote: MlflowClient, uri: str, experiment: str, run: RunContent, started: MlflowRun | None) -> None:
    """Write one run; ``started`` is one of the same (hash, seed) to continue, or to replace if it disagrees."""
    from mlflow.entities import Param, RunTag

    points = [run.points()]
    identity: str | None = None
    if started is not None:
        history = server_histories(remote, uri, [started])[started.info.run_id]
        if _agrees(decode(history), run) and _same_parameters(started, run):
            identity, points = started.info.run_id, _rest(history, run)
        else:
            remote.delete_run(started.info.run_id)
    tags = {**run.tags, "mlflow.user": user()}
    record = tags.pop(RECORD)
    if identity is None:
        made = remote.create_run(experiment, start_time=run.start, tags=tags, run_name=tags[RUN_NAME])
        identity, tags = made.info.run_id, {}
    parameters = [Param(key, value) for key, value in run.parameters.items()]
    remote.log_batch(identity, metrics=[metric for part in points for metric in metrics(part)], params=parameters)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in run.artifacts.items():
            (Path(folder) / name).write_bytes(data)
        remote.log_artifacts(identity, folder)
    labels = [RunTag(key, value) for key, value in {**tags, RECORD: record}.items()]
    remote.log_batch(identity, tags=labels)
    remote.set_terminated(identity, run.status, run.end)


def metrics(points: Points) -> list[Metric]:
    """Return the points as MLflow's entities."""
    from mlflow.entities import Metric

    return [
        Metric(key, value, timestamp, step)
        for key, value, timestamp, step in zip(
            points.key, points.value.tolist(), points.timestamp.tolist(), points.step.tolist(), strict=True
        )
    ]


def _same_parameters(started: MlflowRun, run: RunContent) -> bool:
    return all(run.parameters.get(key) == value for key, value in started.data.params.items())


def _agrees(known: Lines, run: RunContent) -> bool:
    """Whether the lines already logged are the first lines of the run, number for number.

    A run that was streamed has no seconds yet.
    """
    count = len(known)
    if count > len(run.lines):
        return False
    first, absent = run.lines.part(0, count), np.full(count, np.nan)
    same = all(
        np.array_equal(getattr(known, name), getattr(first, name))
        for name in ("round", "updates", "rollouts", "tokens")
    ) and all(
        np.array_equal(known.metrics.get(name, absent), column, equal_nan=True)
        for name, column in first.metrics.items()
    )
    timed = np.isnan(known.seconds).all() or np.array_equal(known.seconds, first.seconds, equal_nan=True)
    return bool(same and timed and set(known.metrics) <= set(first.metrics))


def _rest(history: Points, run: RunContent) -> list[Points]:
    """The points that a run lacks: later lines, and the seconds of the lines it has."""
    known = decode(history)
    count, later = len(known), run.timestamp[len(known) :]
    if not count:
        return [run.points()]
    is_round = np.array([key == "round" for key in history.key])
    times = dict(zip(history.value[is_round].tolist(), history.timestamp[is_round].tolist(), strict=True))
    taken = np.array([times[float(number)] for number in known.round.tolist()], dtype=np.int64)
    later = np.maximum(later, taken.max() + 1 + np.arange(len(later)))
    parts = [encode(run.lines.part(count, len(run.lines)), later)]
    if np.isnan(known.seconds).all():
        timed = np.isfinite(run.lines.seconds[:count])
        parts.append(
            Points(
                ("seconds",) * int(timed.sum()),
                run.lines.seconds[:count][timed],
                taken[timed],
                known.updates[timed],
            )
        )
    return parts
