"""From MLflow's metric histories back to the lines of runs: a local database directly, a server by its API."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.runs.mlflow_lines import COUNTERS, Lines, Points, decode
from grpo_ablate.runs.mlflow_sqlite import Run, existing
from grpo_ablate.runs.mlflow_store import client, connection, experiment_ids, locate, reachable

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

ENDED = ("FINISHED", "FAILED")  # a run that is still written to, or was killed, is not read
RUNS_AT_ONCE = 100  # what the server's bulk endpoint accepts
POINTS_AT_ONCE = 25_000  # and what it returns at most


@dataclass(frozen=True)
class LoggedRun:
    """One run as MLflow has it."""

    lines: Lines
    tags: Mapping[str, str]


def read_runs(results: Path, uri: str | None, testbed: str, wanted: Iterable[Run]) -> dict[Run, LoggedRun]:
    """Return those of the ``wanted`` (hash, seed) pairs that MLflow holds complete, from parameters of no file.

    ``uri`` None is the store in ``results``; else a SQLite file's or a server's address.

    Raises:
        UserError: there is no such store or experiment, or it cannot be reached.
    """
    store, pairs = locate(results, uri), set(wanted)
    if store.database is None:
        with reachable(store.uri):
            return _from_server(client(store.uri), store.uri, testbed, pairs)
    with connection(store.database) as opened:
        ids = experiment_ids(opened)
        return _from_sqlite(opened, _known(testbed, ids, store.uri), pairs)


def _known(testbed: str, ids: Mapping[str, int], uri: str) -> int:
    if testbed not in ids:
        raise UserError(f"MLflow at {uri}: no experiment '{testbed}'; {nearest(testbed, ids)}")
    return ids[testbed]


def _from_sqlite(opened: sqlite3.Connection, experiment: int, pairs: set[Run]) -> dict[Run, LoggedRun]:
    found = {
        run: held[0]
        for run, held in existing(opened, experiment).items()
        if run in pairs and held[0].status in ENDED
    }
    histories = _sqlite_histories(opened, [held.identity for held in found.values()])
    return {
        run: LoggedRun(decode(histories[held.identity]), held.tags)
        for run, held in found.items()
        if held.identity in histories
    }


def _sqlite_histories(opened: sqlite3.Connection, identities: Sequence[str]) -> dict[str, Points]:
    histories: dict[str, Points] = {}
    for some in _chunks(sorted(identities), RUNS_AT_ONCE):
        rows = opened.execute(
            "SELECT run_uuid, key, value, timestamp, step, is_nan FROM metrics "
            f"WHERE run_uuid IN ({', '.join('?' * len(some))}) ORDER BY run_uuid",
            some,
        ).fetchall()
        if not rows:
            continue
        owners, keys, values, times, steps, missing = zip(*rows, strict=True)
        value = np.array(values, dtype=np.float64)
        value[np.array(missing, dtype=bool)] = np.nan
        time, step = np.array(times, dtype=np.int64), np.array(steps, dtype=np.int64)
        owner = np.array(owners)
        for identity, start, end in _groups(owner):
            histories[identity] = Points(keys[start:end], value[start:end], time[start:end], step[start:end])
    return histories


def _groups(owner: Any) -> Iterator[tuple[str, int, int]]:
    names, first = np.unique(owner, return_index=True)
    ends = np.append(first[1:], len(owner))
    yield from zip(names.tolist(), first.tolist(), ends.tolist(), strict=True)


def _chunks(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def server_runs(remote: MlflowClient, experiment: str, filters: Iterable[str]) -> dict[Run, list[MlflowRun]]:
    """Return the active runs of an MLflow experiment that match any filter, the one that has ended first."""
    found: dict[Run, dict[str, MlflowRun]] = {}
    for text in filters:
        token: str | None = None
        while True:
            page = remote.search_runs([experiment], filter_string=text, max_results=1000, page_token=token)
            for run in page:
                if "hash" in run.data.tags and run.data.tags.get("seed", "").isdecimal():
                    pair = (run.data.tags["hash"], int(run.data.tags["seed"]))
                    found.setdefault(pair, {})[run.info.run_id] = run
            token = page.token
            if not token:
                break
    return {
        pair: sorted(
            runs.values(),
            key=lambda run: (run.info.status not in ENDED, run.info.start_time, run.info.run_id),
        )
        for pair, runs in found.items()
    }


def _from_server(remote: MlflowClient, uri: str, testbed: str, pairs: set[Run]) -> dict[Run, LoggedRun]:
    experiment = remote.get_experiment_by_name(testbed)
    if experiment is None:
        names = {found.name: 0 for found in remote.search_experiments()}
        _known(testbed, names, uri)
    assert experiment is not None
    filters = sorted({f"tags.hash = '{digest}'" for digest, _ in pairs})
    found = {
        pair: runs[0]
        for pair, runs in server_runs(remote, experiment.experiment_id, filters).items()
        if pair in pairs and runs[0].info.status in ENDED
    }
    histories = server_histories(remote, uri, list(found.values()))
    return {pair: LoggedRun(decode(histories[run.info.run_id]), run.data.tags) for pair, run in found.items()}


def server_histories(remote: MlflowClient, uri: str, runs: Sequence[MlflowRun]) -> dict[str, Points]:
    """Return every metric point of the runs, by run id.

    Over HTTP through the endpoint behind MLflow's own charts, a hundred runs a call (under a millisecond a
    run and metric); a server without it, or an SQL address, is asked for each history by the public API.
    """
    rows: dict[str, list[tuple[str, float, int, int]]] = {run.info.run_id: [] for run in runs}
    by_key: dict[str, list[str]] = {}
    for run in runs:
        for key in run.data.metrics:
            if key in COUNTERS or key.startswith(("eval/", "train/")):
                by_key.setdefault(key, []).append(run.info.run_id)
    bulk = uri.startswith("http")
    for key, identities in by_key.items():
        for some in _chunks(identities, RUNS_AT_ONCE):
            answer = _bulk(uri, key, some) if bulk else None
            if answer is None:
                bulk = False
                answer = _singly(remote, key, some)
            for identity, value, time, step in answer:
                rows[identity].append((key, value, time, step))
    return {identity: _points(found) for identity, found in rows.items()}


Answer = list[tuple[str, float, int, int]]  # run id, value, timestamp, step


def _bulk(uri: str, key: str, identities: Sequence[str]) -> Answer | None:
    """Ask for one metric of many runs; None where the server has no such endpoint."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    response = http_request(
        get_default_host_creds(uri),
        "/ajax-api/2.0/mlflow/metrics/get-history-bulk",
        "GET",
        params={"run_id": list(identities), "metric_key": key, "max_results": POINTS_AT_ONCE},
    )
    if response.status_code != 200:
        return None
    found = response.json()["metrics"]
    if len(found) >= POINTS_AT_ONCE:
        if len(identities) == 1:
            return None
        half = len(identities) // 2
        parts = [_bulk(uri, key, identities[:half]), _bulk(uri, key, identities[half:])]
        return None if None in parts else [point for part in parts if part is not None for point in part]
    return [
        (point["run_id"], float(point["value"]), int(point["timestamp"]), int(point["step"])) for point in found
    ]


def _singly(remote: MlflowClient, key: str, identities: Sequence[str]) -> Answer:
    with ThreadPoolExecutor(8) as pool:
        histories = pool.map(lambda identity: remote.get_metric_history(identity, key), identities)
        return [
            (identity, point.value, point.timestamp, point.step)
            for identity, history in zip(identities, histories, strict=True)
            for point in history
        ]


def _points(rows: Sequence[tuple[str, float, int, int]]) -> Points:
    keys, values, times, steps = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Points(
        tuple(keys),
        np.array(values, dtype=np.float64),
        np.array(times, dtype=np.int64),
        np.array(steps, dtype=np.int64),
    )
