"""Lines of a long run to MLflow while it trains; a lost server costs the trainer seconds, and nothing is lost."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_content import parameters, spec_tags
from grpo_ablate.runs.mlflow_lines import LARGEST, Points, timestamps
from grpo_ablate.runs.mlflow_reader import ENDED, server_runs
from grpo_ablate.runs.mlflow_server import metrics
from grpo_ablate.runs.mlflow_sqlite import RUN_NAME, user
from grpo_ablate.runs.mlflow_store import client, create_store, locate, lock, reachable
from grpo_ablate.spec.identity import canonical_json, spec_hash

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from grpo_ablate.algorithm.history import Line
    from grpo_ablate.algorithm.loop import Loop
    from grpo_ablate.spec.schema import Spec


class Stream:
    """The trainer's ``on_evaluation``, and a context manager that ends the runs when training ends.

    Each (hash, seed) is one MLflow run, found again after a resume; rounds that it already has are not logged
    twice. The loop's own history is what waits while the server is away. `grpo-ablate log` completes the run
    from the record, or replaces it where they disagree. No call raises on account of the server; after a
    failure it is left alone for ``patience`` seconds.

    ``uri`` is a server's address; ``folder`` the run's, ``<results>/runs/<testbed>/<hash8>/seeds-<a>-<b>``.
    """

    def __init__(self, uri: str | None, spec: Spec, *, testbed: str, folder: Path, patience: float = 60):
        self._results, self._testbed, self._uri = folder.parents[3], testbed, uri
        self._store, self._patience, self._quiet_until = locate(self._results, uri), patience, 0.0
        self._hash, self._parameters = spec_hash(spec), parameters(spec)
        self._tags = {
            "hash": self._hash,
            "testbed": testbed,
            "folder": str(folder.relative_to(self._results)),
            **spec_tags(canonical_json(spec)),
        }
        self._seen: dict[int, int] = {}  # round -> when it was evaluated, milliseconds since 1970
        self._runs: dict[int, tuple[str, int]] = {}  # seed -> run id, last round logged
        self._remote: MlflowClient | None = None
        self._loop: Loop | None = None

    def __call__(self, loop: Loop, line: Line) -> None:
        """Log the lines that the server does not have yet, if it answers."""
        self._seen[line.round] = int(time.time() * 1000)
        self._loop = loop
        self._flush()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Log what waits and end the runs: FINISHED, or KILLED when training stopped before its end."""
        self._quiet_until = 0.0
        if not self._flush():
            return
        try:
            with reachable(self._store.uri):
                for identity, _last in self._runs.values():
                    self._client().set_terminated(identity, "FINISHED" if kind is None else "KILLED")
        except UserError as error:
            self._complain(error)

    def _flush(self) -> bool:
        """Log every line that is not logged; False if the server did not take them."""
        if self._loop is None or time.monotonic() < self._quiet_until:
            return False
        seeds = self._loop.keys.seeds.tolist()
        columns = {name: np.asarray(column.numpy()) for name, column in self._loop.history.columns(seeds).items()}
        try:
            with reachable(self._store.uri):
                for seed in seeds:
                    rows = columns["seed"] == seed
                    self._log(seed, {name: column[rows] for name, column in columns.items()})
        except UserError as error:
            self._complain(error)
            self._quiet_until = time.monotonic() + self._patience
            return False
        return True

    def _complain(self, error: UserError) -> None:
        print(f"streaming to MLflow waits: {error}", file=sys.stderr)

    def _client(self) -> MlflowClient:
        if self._remote is None:
            create_store(self._results, self._uri, [self._testbed])
            self._remote = client(self._store.uri)
        return self._remote

    def _log(self, seed: int, columns: dict[str, NDArray[Any]]) -> None:
        if seed not in self._runs:
            self._runs[seed] = self._start(seed)
        identity, logged = self._runs[seed]
        new = columns["round"] > logged
        if new.any():
            points = self._points({name: column[new] for name, column in columns.items()})
            self._client().log_batch(identity, metrics=metrics(points))
            self._runs[seed] = (identity, int(columns["round"].max()))

    def _points(self, columns: dict[str, NDArray[Any]]) -> Points:
        """Every number of the lines as a point; the seconds come with the record."""
        rounds = columns["round"].tolist()
        seen = [self._seen.get(number, min(self._seen.values())) for number in rounds]
        times = timestamps(0, np.array(seen) / 1000)
        names = [name for name in columns if name not in ("seed", "updates")]
        return Points(
            key=tuple(name for name in names for _ in rounds),
            value=np.clip(np.concatenate([columns[name] for name in names], dtype=np.float64), -LARGEST, LARGEST),
            timestamp=np.tile(times, len(names)),
            step=np.tile(columns["updates"], len(names)),
        )

    def _start(self, seed: int) -> tuple[str, int]:
        """Find or create the run of a seed; return its id and the last round it has."""
        from mlflow.entities import Param

        remote = self._client()
        with lock(self._results):
            experiment = remote.get_experiment_by_name(self._testbed)
            assert experiment is not None  # create_store has made it
            number = experiment.experiment_id
            found = server_runs(remote, number, [f"tags.hash = '{self._hash}' and tags.seed = '{seed}'"])
            runs = [run for run in found.get((self._hash, seed), []) if run.info.status not in ENDED]
            if runs:  # one that ended belongs to an earlier record; `grpo-ablate log` replaces it
                identity = runs[0].info.run_id
                remote.update_run(identity, status="RUNNING")
                rounds = [int(point.value) for point in remote.get_metric_history(identity, "round")]
                return identity, max(rounds, default=-1)
            tags = {**self._tags, "seed": str(seed), "mlflow.user": user()}
            name = f"{self._hash[:8]} seed {seed}"
            identity = remote.create_run(number, tags={**tags, RUN_NAME: name}, run_name=name).info.run_id
        remote.log_batch(identity, params=[Param(key, value) for key, value in self._parameters.items()])
        return identity, -1


def end_abandoned(results: Path, testbeds: Sequence[str], uri: str | None = None) -> int:
    """Mark as KILLED the streamed runs that nobody trains any more; return how many.

    A trainer holds the lock file of its scratch folder for as long as it lives.

    Raises:
        UserError: the store cannot be used.
    """
    store, count = locate(results, uri), 0
    if store.database is not None and not store.database.exists():
        return 0
    with reachable(store.uri):
        remote = client(store.uri)
        for name in testbeds:
            experiment = remote.get_experiment_by_name(name)
            if experiment is None:
                continue
            found = server_runs(remote, experiment.experiment_id, ["attributes.status = 'RUNNING'"])
            for run in (run for runs in found.values() for run in runs):
                folder = run.data.tags.get("folder", "")
                if folder.startswith("runs/") and not _locked(results / folder.replace("runs/", "scratch/", 1)):
                    remote.set_terminated(run.info.run_id, "KILLED")
                    count += 1
    return count


def _locked(scratch: Path) -> bool:
    try:
        with (scratch / "lock").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
