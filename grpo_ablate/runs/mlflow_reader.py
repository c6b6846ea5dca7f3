"""From MLflow's metric histories back to the lines of runs, through its public client, from any store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.runs.mlflow_lines import Lines, Point, decode
from grpo_ablate.runs.mlflow_store import Run, complete, experiment_id, find_runs, locate, opened

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

REQUESTS_AT_ONCE = 8  # to a server; a local file is read no faster by several threads


@dataclass(frozen=True)
class LoggedRun:
    """One run as MLflow has it."""

    lines: Lines
    tags: Mapping[str, str]


def read_runs(results: Path, uri: str | None, testbed: str, wanted: Iterable[Run]) -> dict[Run, LoggedRun]:
    """Return those of the ``wanted`` (hash, seed) pairs that MLflow holds complete; no file is read.

    ``uri`` None is the store in ``results``; else a SQLite file's or a server's address.

    Raises:
        UserError: there is no such store or experiment, or it cannot be reached.
    """
    store, pairs = locate(results, uri), set(wanted)
    with opened(store) as client, ThreadPoolExecutor(1 if store.database else REQUESTS_AT_ONCE) as pool:
        number = experiment_id(client, testbed)
        found = {
            pair: run
            for digest in sorted({digest for digest, _ in pairs})
            for pair, runs in find_runs(client, number, f"tags.hash = '{digest}'").items()
            for run in runs
            if pair in pairs and complete(run)
        }
        histories = pool.map(lambda run: _history(client, run), found.values())
        return {
            pair: LoggedRun(decode(points), run.data.tags)
            for (pair, run), points in zip(found.items(), histories, strict=True)
        }


def _history(client: MlflowClient, run: MlflowRun) -> list[Point]:
    return [
        Point(point.key, point.value, point.timestamp, point.step)
        for key in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, key)
    ]
