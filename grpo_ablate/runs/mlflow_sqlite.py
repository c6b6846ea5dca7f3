"""Whole runs into a local MLflow database, a block at a time: all of a block's runs appear in one commit, or none.

MLflow's own calls cost some 20 ms a run and 80 microseconds a point, because each passes through an object
mapper and several transactions; this writes the same rows of the same tables directly, at a tenth of that. A
test compares every row with what MLflow's client writes. A database whose tables look different is left to
the client.
"""

from __future__ import annotations

import getpass
import hashlib
import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from grpo_ablate.runs.mlflow_content import RunContent
from grpo_ablate.runs.mlflow_store import transaction

TABLES = {
    "runs": (
        "run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id", "status", "start_time",
        "end_time", "source_version", "lifecycle_stage", "artifact_uri", "experiment_id", "deleted_time",
    ),
    "tags": ("key", "value", "run_uuid"),
    "params": ("key", "value", "run_uuid"),
    "metrics": ("key", "value", "timestamp", "run_uuid", "step", "is_nan"),
    "latest_metrics": ("key", "value", "timestamp", "step", "is_nan", "run_uuid"),
}  # fmt: skip
PER_RUN = ("tags", "params", "metrics", "latest_metrics")
RUN_NAME = "mlflow.runName"
Run = tuple[str, int]  # hash, seed


def understood(opened: sqlite3.Connection, experiment: int) -> bool:
    """Whether the tables are those this module fills, and the artifacts of the MLflow experiment are files."""
    return _artifact_folder(opened, experiment) is not None and all(
        {row[1] for row in opened.execute(f"PRAGMA table_info({table})")} == set(columns)
        for table, columns in TABLES.items()
    )


def _artifact_folder(opened: sqlite3.Connection, experiment: int) -> Path | None:
    location = opened.execute(
        "SELECT artifact_location FROM experiments WHERE experiment_id = ?", (experiment,)
    ).fetchone()[0]
    address = urlsplit(location or "")
    return Path(unquote(address.path)) if address.scheme in ("", "file") and address.path else None


def user() -> str:
    """The name MLflow shows as the creator of a run."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class Held(NamedTuple):
    """An active run that the database holds."""

    identity: str
    tags: Mapping[str, str]  # without the spec
    status: str


def existing(opened: sqlite3.Connection, experiment: int) -> dict[Run, list[Held]]:
    """Return the active runs of an MLflow experiment by (hash, seed); of several, the one that has ended first."""
    tags: dict[str, dict[str, str]] = {}
    status: dict[str, str] = {}
    rows = opened.execute(
        "SELECT runs.run_uuid, runs.status, tags.key, tags.value FROM runs JOIN tags USING (run_uuid) "
        "WHERE runs.experiment_id = ? AND runs.lifecycle_stage = 'active' AND tags.key NOT LIKE 'spec.%' "
        "ORDER BY runs.status NOT IN ('FINISHED', 'FAILED'), runs.start_time, runs.run_uuid",
        (experiment,),
    )
    for identity, state, key, value in rows:
        tags.setdefault(identity, {})[key] = value
        status[identity] = state
    found: dict[Run, list[Held]] = {}
    for identity, own in tags.items():
        if "hash" in own and own.get("seed", "").isdecimal():
            run = (own["hash"], int(own["seed"]))
            found.setdefault(run, []).append(Held(identity, own, status[identity]))
    return found


def write(
    opened: sqlite3.Connection,
    experiment: int,
    runs: Sequence[RunContent],
    found: Mapping[Run, Sequence[Held]],
) -> None:
    """Write whole runs in one transaction; a run in ``found`` is replaced under its id, its doubles deleted."""
    artifacts = _artifact_folder(opened, experiment)
    assert artifacts is not None
    name = opened.execute("SELECT name FROM experiments WHERE experiment_id = ?", (experiment,)).fetchone()[0]
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}
    doubles: list[str] = []
    creator = user()
    for run in runs:
        held = found.get((run.hash, run.seed), ())
        doubles.extend(double.identity for double in held[1:])
        identity = held[0].identity if held else _identity(name, run)
        folder = artifacts / identity / "artifacts"
        _write_artifacts(folder, run.artifacts)
        rows["runs"].append(
            (
                identity, run.tags[RUN_NAME], "UNKNOWN", "", "", creator, run.status, run.start,
                run.end, "", "active", folder.as_uri(), experiment, None,
            )
        )  # fmt: skip
        rows["tags"].extend((key, value, identity) for key, value in run.tags.items())
        rows["params"].extend((key, value, identity) for key, value in run.parameters.items())
        _append_metrics(rows, run, identity)
    # In the order of the primary key, so that its pages fill one after another.
    rows["metrics"].sort(key=lambda row: (row[0], row[2], row[3]))
    with transaction(opened):
        opened.executemany(
            "UPDATE runs SET lifecycle_stage = 'deleted', deleted_time = end_time WHERE run_uuid = ?",
            [(identity,) for identity in doubles],
        )
        for table in PER_RUN:
            opened.executemany(f"DELETE FROM {table} WHERE run_uuid = ?", [(row[0],) for row in rows["runs"]])
        for table, columns in TABLES.items():
            marks = ", ".join("?" * len(columns))
            opened.executemany(
                f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows[table]
            )


def set_tags(
    opened: sqlite3.Connection, changed: Iterable[tuple[str, str, str]], removed: Iterable[tuple[str, str]]
) -> None:
    """Set tags (run id, key, value) and remove tags (run id, key) in one transaction."""
    values = [(key, value, identity) for identity, key, value in changed]
    with transaction(opened):
        opened.executemany("INSERT OR REPLACE INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", values)
        opened.executemany(
            "UPDATE runs SET name = ? WHERE run_uuid = ?",
            [(value, identity) for key, value, identity in values if key == RUN_NAME],
        )
        opened.executemany("DELETE FROM tags WHERE run_uuid = ? AND key = ?", list(removed))


def _identity(experiment: str, run: RunContent) -> str:
    """The id of a new run: a function of what it is, so that it cannot be made twice."""
    return hashlib.sha256(f"{experiment}/{run.hash}/{run.seed}".encode()).hexdigest()[:32]


def _write_artifacts(folder: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _append_metrics(rows: dict[str, list[tuple[object, ...]]], run: RunContent, identity: str) -> None:
    points = run.points()
    missing = (points.value != points.value).astype(int).tolist()
    values = [0.0 if nan else value for nan, value in zip(missing, points.value.tolist(), strict=True)]
    times, steps = points.timestamp.tolist(), points.step.tolist()
    latest: dict[str, int] = {}
    for index, key in enumerate(points.key):
        best = latest.get(key)
        if best is None or (steps[index], times[index]) >= (steps[best], times[best]):
            latest[key] = index
        rows["metrics"].append((key, values[index], times[index], identity, steps[index], missing[index]))
    rows["latest_metrics"].extend(
        (key, values[index], times[index], steps[index], missing[index], identity) for key, index in latest.items()
    )
