"""The MLflow store: where it is, created once and whole, addressed absolutely, repaired when its folder moved.

A local store is a SQLite file ``mlflow.db`` with ``mlflow-artifacts`` beside it, in the results folder.
Addresses are always given explicitly, so that neither a working directory, nor MLFLOW_TRACKING_URI, nor an
old ``mlruns`` folder nearby redirects anything. MLflow is imported only when it is needed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
BUSY_SECONDS = 60.0  # how long a SQLite statement waits for another process's transaction


@dataclass(frozen=True)
class Store:
    """An absolute tracking URI; ``database`` is the file of a SQLite store, else None."""

    uri: str
    database: Path | None

    @property
    def artifacts(self) -> Path:
        """The artifact folder of a SQLite store."""
        assert self.database is not None
        return self.database.parent / ARTIFACTS


def locate(results: Path, uri: str | None = None) -> Store:
    """Return the store that ``uri`` names: None the one in ``results``, a SQLite path or URI, or a server's URI.

    >>> locate(Path("/data"), None).uri
    'sqlite:////data/mlflow.db'
    >>> locate(Path("/data"), "sqlite:////else/where.db").database
    PosixPath('/else/where.db')
    >>> locate(Path("/data"), "http://host:5000").database is None
    True

    Raises:
        UserError: the address is no SQLite file, server or SQL database.
    """
    if uri is None:
        return _sqlite(results / DATABASE)
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite" and uri.startswith("sqlite:///"):
        return _sqlite(Path(uri.removeprefix("sqlite:///")))
    if scheme in ("http", "https", "databricks") or scheme.split("+")[0] in ("postgresql", "mysql", "mssql"):
        return Store(uri.rstrip("/"), None)
    if not scheme and uri.endswith(".db"):
        return _sqlite(Path(uri))
    raise UserError(
        f"MLflow address '{uri}': expected http://HOST:PORT, sqlite:///FILE.db or another SQL database's URI."
    )


def _sqlite(path: Path) -> Store:
    absolute = path.resolve()
    return Store(f"sqlite:///{absolute}", absolute)


@contextmanager
def lock(results: Path) -> Iterator[None]:
    """Hold the one lock of this folder's MLflow writers; freed by the kernel if the process dies."""
    with _writable(results):
        results.mkdir(parents=True, exist_ok=True)
        handle = (results / "mlflow.lock").open("a")
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}).") from error


@contextmanager
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing SQLite store for one transaction at a time, begun by the caller.

    Raises:
        UserError: the file is missing, is no MLflow database, or cannot be used.
    """
    if not database.is_file():
        raise UserError(f"{database}: there is no MLflow database; `grpo-ablate log EXPERIMENT.yaml` makes it.")
    try:
        with closing(
            sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as opened:
            opened.execute("PRAGMA cache_size = -65536")
            yield opened
    except sqlite3.DatabaseError as error:
        raise UserError(f"{database}: the MLflow database cannot be used ({error}).") from error


@contextmanager
def transaction(opened: sqlite3.Connection) -> Iterator[None]:
    """Commit everything done inside, or nothing."""
    opened.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        opened.execute("ROLLBACK")
        raise
    opened.execute("COMMIT")


def client(uri: str) -> MlflowClient:
    """Return MLflow's client of that address, quiet and impatient: a lost server is noticed within seconds."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Turn what MLflow raises about a lost or refusing server into one sentence."""
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, requests.RequestException, SQLAlchemyError, ConnectionError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"MLflow at {uri} cannot be used ({reason[:300]}); the records in the results folder are intact, "
            "so the same command can be given again."
        ) from error


def create_store(results: Path, uri: str | None = None, testbeds: Iterable[str] = ()) -> None:
    """Create the database and one MLflow experiment per testbed where they are missing; repair a moved store.

    Idempotent, and safe in any number of processes at once. To be called once before parallel writers start.

    Raises:
        UserError: the server cannot be reached, or the folder cannot be written.
    """
    store = locate(results, uri)
    with lock(results):
        if store.database is None:
            _create_remote(store, testbeds)
            return
        if not relocate(store.database):
            _create_database(store)
        with connection(store.database) as opened, transaction(opened):
            for name in testbeds:
                _create_experiment(opened, store, name)


def experiment_ids(opened: sqlite3.Connection) -> dict[str, int]:
    """Return the id of every MLflow experiment of a SQLite store by name."""
    return dict(opened.execute("SELECT name, experiment_id FROM experiments").fetchall())


def relocate(database: Path) -> bool:
    """Point the artifact addresses of a SQLite store at the folder beside it; False where there is no database.

    MLflow stores them absolute: after a move the artifact lists would be silently empty and new files would
    go to the old place. Needs no MLflow and costs a millisecond when nothing moved.
    """
    if not database.is_file() or database.stat().st_size == 0:
        return False
    root = (database.parent / ARTIFACTS).as_uri()
    with connection(database) as opened:
        found = opened.execute("SELECT experiment_id, artifact_location FROM experiments").fetchall()
        moved = [
            (number, location.rpartition("/")[0])
            for number, location in found
            if location and location.rpartition("/")[0].endswith(f"/{ARTIFACTS}")
        ]
        moved = [(number, old) for number, old in moved if old != root]
        if moved:
            with transaction(opened):
                for number, old in moved:
                    for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                        opened.execute(
                            f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                            f"WHERE experiment_id = ? AND substr({column}, 1, ?) = ?",
                            (root, len(old) + 1, number, len(old) + 1, f"{old}/"),
                        )
    return True


def _create_database(store: Store) -> None:
    """Let MLflow make its schema in a file aside, then rename: a killed creation leaves no half-made store."""
    assert store.database is not None
    # A new name each time: MLflow remembers within a process what it has made under an address.
    aside = store.database.with_name(f"{DATABASE}.new-{uuid.uuid4().hex[:8]}")
    with _writable(store.database.parent):
        store.database.parent.mkdir(parents=True, exist_ok=True)
        for leftover in store.database.parent.glob(f"{DATABASE}.new-*"):
            leftover.unlink()
        aside.touch()
    with reachable(store.uri):
        made = client(f"sqlite:///{aside}")
        made._tracking_client.store.engine.dispose()
    with closing(sqlite3.connect(aside)) as opened, opened:
        opened.execute(
            "UPDATE experiments SET artifact_location = ? || experiment_id", (f"{store.artifacts.as_uri()}/",)
        )
    aside.replace(store.database)


def _create_experiment(opened: sqlite3.Connection, store: Store, name: str) -> None:
    found = opened.execute("SELECT lifecycle_stage FROM experiments WHERE name = ?", (name,)).fetchone()
    if found is None:
        now = int(time.time() * 1000)
        opened.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time) "
            "VALUES (?, ?, 'active', ?, ?)",
            (name, f"{store.artifacts.as_uri()}/{name}", now, now),
        )
    elif found[0] != "active":
        opened.execute("UPDATE experiments SET lifecycle_stage = 'active' WHERE name = ?", (name,))


def _create_remote(store: Store, testbeds: Iterable[str]) -> None:
    with reachable(store.uri):
        from mlflow.exceptions import MlflowException

        remote = client(store.uri)
        for name in testbeds:
            found = remote.get_experiment_by_name(name)
            if found is None:
                try:
                    remote.create_experiment(name)
                except MlflowException:
                    # Another machine may have created it between the two calls.
                    if remote.get_experiment_by_name(name) is None:
                        raise
            elif found.lifecycle_stage != "active":
                remote.restore_experiment(found.experiment_id)
        if not testbeds:
            remote.search_experiments(max_results=1)
