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
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from grpo_ablate.errors import UserError, nearest

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

ARTIFACTS = "mlflow-artifacts"
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a lost server is noticed within seconds
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
Run = tuple[str, int]  # hash, seed


@dataclass(frozen=True)
class Store:
    """An absolute tracking URI, and the folder of its writers' lock; ``database`` is a SQLite store's file."""

    uri: str
    folder: Path
    database: Path | None


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
    address = str(results / "mlflow.db") if uri is None else uri
    scheme = urlsplit(address).scheme if uri else ""
    if scheme in ("http", "https", "databricks") or scheme.split("+")[0] in ("postgresql", "mysql", "mssql"):
        return Store(address.rstrip("/"), results, None)
    path = Path(address.removeprefix("sqlite:///")).resolve()
    if (scheme and not address.startswith("sqlite:///")) or path.suffix != ".db":
        raise UserError(
            f"MLflow address '{uri}': expected http://HOST:PORT, sqlite:///FILE.db or another SQL database's URI."
        )
    return Store(f"sqlite:///{path}", path.parent, path)


@contextmanager
def lock(store: Store) -> Iterator[None]:
    """Hold the one lock of this machine's writers to the store; freed by the kernel if the process dies.

    Raises:
        UserError: its folder cannot be written.
    """
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        handle = (store.folder / "mlflow.lock").open("a")
    except OSError as error:
        raise UserError(f"{store.folder}: cannot be written ({error.strerror or error}).") from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def opened(store: Store) -> Iterator[MlflowClient]:
    """MLflow's client of the store, quiet and impatient; what it raises becomes one sentence.

    Raises:
        UserError: the server cannot be reached or refuses, the file is no database, or there is none.
    """
    if store.database is not None and not store.database.is_file():
        raise UserError(
            f"{store.database}: there is no MLflow database; `grpo-ablate log EXPERIMENT.yaml` makes it."
        )
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import requests
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy import Engine, event
    from sqlalchemy.exc import SQLAlchemyError

    for name in ("mlflow", "alembic", "urllib3.connectionpool"):  # importing MLflow sets its own
        logging.getLogger(name).setLevel(logging.ERROR)
    if not event.contains(Engine, "connect", _without_waiting_for_the_disk):
        event.listen(Engine, "connect", _without_waiting_for_the_disk)
    try:
        yield MlflowClient(tracking_uri=store.uri, registry_uri=store.uri)
    except (MlflowException, requests.RequestException, SQLAlchemyError, ConnectionError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"MLflow at {store.uri} cannot be used ({reason[:300]}); the records in the results folder are "
            "intact, so the same command can be given again."
        ) from error


def _without_waiting_for_the_disk(connection: Any, _: Any) -> None:
    """Halve the time of a run's eight commits: a killed process loses nothing, a power cut costs a new import."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def create_store(results: Path, uri: str | None = None, testbeds: Iterable[str] = ()) -> None:
    """Create the database and one MLflow experiment per testbed where they are missing; repair a moved store.

    Idempotent, and safe in any number of processes at once. To be called once before parallel writers start.

    Raises:
        UserError: the server cannot be reached, or the folder cannot be written.
    """
    store = locate(results, uri)
    with lock(store):
        if store.database is not None and not relocate(store.database):
            _create_database(store.database)
        with opened(store) as client:
            for name in testbeds:
                _create_experiment(client, store, name)


def _create_database(database: Path) -> None:
    """Let MLflow make its schema in a file aside, then rename: a killed creation leaves no half-made store."""
    for leftover in database.parent.glob(f"{database.name}.new-*"):
        leftover.unlink()
    # A new name each time: MLflow remembers within a process what it has made under an address.
    aside = database.with_name(f"{database.name}.new-{uuid.uuid4().hex[:8]}")
    aside.touch()
    with opened(Store(f"sqlite:///{aside}", aside.parent, aside)) as client:
        client.search_experiments(max_results=1)
    aside.replace(database)


def _create_experiment(client: MlflowClient, store: Store, name: str) -> None:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        place = None if store.database is None else f"{(store.folder / ARTIFACTS).as_uri()}/{name}"
        try:
            client.create_experiment(name, artifact_location=place)
        except MlflowException:
            # Another machine may have created it on the server between the two calls.
            if client.get_experiment_by_name(name) is None:
                raise
    elif found.lifecycle_stage != "active":
        client.restore_experiment(found.experiment_id)


def relocate(database: Path) -> bool:
    """Point the artifact addresses of a SQLite store at the folder beside it; False where there is no database.

    MLflow stores them absolute, and has no call to change them: after a move the artifact lists would be
    silently empty and new files would go to the old place. Costs a millisecond when nothing moved.

    Raises:
        UserError: the file is no database.
    """
    if not database.is_file() or database.stat().st_size == 0:
        return False
    root = f"{(database.parent / ARTIFACTS).as_uri()}/"
    try:
        with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
            locations = connection.execute("SELECT artifact_location FROM experiments").fetchall()
            places = {text.rpartition("/")[0] + "/" for (text,) in locations if text}
            for old in sorted(places - {root}):
                if not old.endswith(f"/{ARTIFACTS}/"):
                    continue
                for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                        (root, len(old) + 1, len(old), old),
                    )
    except sqlite3.DatabaseError as error:
        raise UserError(f"{database}: the MLflow database cannot be used ({error}).") from error
    return True


def experiment_id(client: MlflowClient, testbed: str) -> str:
    """Return the id of a testbed's MLflow experiment.

    Raises:
        UserError: there is none.
    """
    found = client.get_experiment_by_name(testbed)
    if found is None:
        names = [experiment.name for experiment in client.search_experiments()]
        raise UserError(f"MLflow at {client.tracking_uri}: no experiment '{testbed}'; {nearest(testbed, names)}")
    return str(found.experiment_id)


def find_runs(client: MlflowClient, experiment: str, condition: str) -> dict[Run, list[MlflowRun]]:
    """Return the runs of an MLflow experiment that meet a condition and are ours, by (hash, seed)."""
    found: dict[Run, list[MlflowRun]] = {}
    token: str | None = None
    while token != "":
        page = client.search_runs([experiment], condition, max_results=1000, page_token=token)
        for run in page:
            tags = run.data.tags
            if "hash" in tags and tags.get("seed", "").isdecimal():
                found.setdefault((tags["hash"], int(tags["seed"])), []).append(run)
        token = page.token or ""
    return found


def complete(run: MlflowRun) -> str | None:
    """Return the fingerprint of the record that a run holds whole; None for a run half-written or streamed."""
    return run.data.tags.get("record") if run.info.status in ("FINISHED", "FAILED") else None


def discard(client: MlflowClient, run: MlflowRun) -> None:
    """Delete a run, as MLflow does: out of sight until ``mlflow gc``; one that was still running was killed."""
    if run.info.status == "RUNNING":
        client.set_terminated(run.info.run_id, "KILLED")
    client.delete_run(run.info.run_id)
