"""Every run of an experiment into MLflow, once: idempotent by (hash, seed), one writer at a time on a machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.errors import UserError
from grpo_ablate.runs import mlflow_server, mlflow_sqlite
from grpo_ablate.runs.mlflow_content import RunContent, contents, fingerprint
from grpo_ablate.runs.mlflow_reader import ENDED, server_runs
from grpo_ablate.runs.mlflow_sqlite import RUN_NAME, Run
from grpo_ablate.runs.mlflow_store import (
    client,
    connection,
    create_store,
    experiment_ids,
    locate,
    lock,
    reachable,
)
from grpo_ablate.runs.record import read_record
from grpo_ablate.spec.cells import Cell, cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

__all__ = ["Logged", "create_store", "log_experiment"]

Tags = Mapping[str, str]
ARTIFACTS = ("run.json", "provenance.json", "samples.jsonl")


@dataclass(frozen=True)
class Logged:
    """What one call of `log_experiment` found to do; the numbers are of (hash, seed) pairs."""

    written: int
    unchanged: int
    missing: tuple[str, ...]  # folders without a record, relative to the results


@dataclass(frozen=True)
class _Target:
    """A store that is open for writing: what it holds, and how to change it."""

    found: Mapping[Run, tuple[Tags, str]]  # tags and status
    write: Callable[[list[RunContent]], None]
    tag: Callable[[list[tuple[Run, str, str]], list[tuple[Run, str]]], None]  # set, remove


def log_experiment(
    experiment: Experiment, results: Path, uri: str | None = None, *, partial: bool = False
) -> Logged:
    """Log every run of an experiment that has a record, and label it with its row; a second call adds nothing.

    ``uri`` None is ``mlflow.db`` in ``results``. Each (hash, seed) is one MLflow run in the MLflow experiment
    of its testbed, shared by all rows and experiments that state it: the tag ``row.<experiment>`` says which.

    Raises:
        UserError: the store cannot be used, a record is corrupt, or (unless ``partial``) some are missing;
            what could be logged then is.
    """
    labels = _labels(experiment)
    create_store(results, uri, [experiment.testbed.name])
    written, unchanged, missing = 0, 0, []
    with lock(results), _opened(experiment, results, uri) as target:
        wanted: set[Run] = set()
        for cell in cells([experiment]):
            block = {(cell.hash, seed) for seed in range(cell.first_seed, cell.last_seed + 1)}
            wanted |= block
            record = _recorded(results / cell.folder)
            if record is None:
                missing.append(cell.folder)
                continue
            todo = {run for run in block if not _holds(target.found.get(run), record)}
            if todo:
                target.write(_contents(cell, results, todo, target.found, experiment.name, labels))
            written += len(todo)
            unchanged += len(block - todo)
            target.tag(*_relabelled(block - todo, target.found, experiment.name, labels))
        target.tag(*_relabelled(target.found.keys() - wanted, target.found, experiment.name, {}))
    if missing and not partial:
        raise UserError(
            f"{experiment.path}: {len(missing)} seed blocks have no record in {results} yet, the first is "
            f"{missing[0]}; the other runs are logged ({written} new, {unchanged} unchanged)."
        )
    return Logged(written, unchanged, tuple(missing))


def _labels(experiment: Experiment) -> dict[str, str]:
    """Return hash -> row id; twins share a run, and their ids are joined."""
    labels: dict[str, list[str]] = {}
    for row in experiment.rows:
        labels.setdefault(row.hash, []).append(row.id)
    return {digest: ", ".join(ids) for digest, ids in labels.items()}


def _recorded(folder: Path) -> str | None:
    """Return the fingerprint of the record in a folder without reading its data; None where there is none."""
    if not (folder / "run.json").exists():
        return None
    try:
        run = json.loads((folder / "run.json").read_text())
        timing = json.loads((folder / "timing.json").read_text())
        return fingerprint(run, timing)
    except (ValueError, KeyError, TypeError, OSError):
        read_record(folder)  # says which file is at fault
        raise


def _holds(found: tuple[Tags, str] | None, record: str) -> bool:
    return found is not None and found[1] in ENDED and found[0].get(mlflow_server.RECORD) == record


def _contents(
    cell: Cell,
    results: Path,
    todo: set[Run],
    found: Mapping[Run, tuple[Tags, str]],
    experiment: str,
    labels: Mapping[str, str],
) -> list[RunContent]:
    folder = results / cell.folder
    record = read_record(folder)
    if record.run["hash"] != cell.hash:
        raise UserError(
            f"{folder / 'run.json'}: holds another spec than its folder's name says; delete the folder."
        )
    files = {name: (folder / name).read_bytes() for name in ARTIFACTS if (folder / name).exists()}
    result = []
    for run in contents(record, cell.folder, files, [seed for _, seed in todo]):
        earlier = found[run.hash, run.seed][0] if (run.hash, run.seed) in found else {}
        rows = {key: value for key, value in earlier.items() if key.startswith("row.")}
        rows[f"row.{experiment}"] = labels[run.hash]
        result.append(replace(run, tags={**run.tags, **rows, RUN_NAME: _name(rows, run.hash, run.seed)}))
    return result


def _name(rows: Tags, digest: str, seed: int) -> str:
    """The name MLflow shows: the first row that states the run, by experiment name, and the seed."""
    first = rows[min(rows)].partition(", ")[0] if rows else digest[:8]
    return f"{first} seed {seed}"


def _relabelled(
    runs: set[Run], found: Mapping[Run, tuple[Tags, str]], experiment: str, labels: Mapping[str, str]
) -> tuple[list[tuple[Run, str, str]], list[tuple[Run, str]]]:
    """Return the tags to set and to remove so that these runs carry the experiment's present row ids."""
    changed: list[tuple[Run, str, str]] = []
    removed: list[tuple[Run, str]] = []
    key = f"row.{experiment}"
    for run in sorted(runs):
        tags = found[run][0]
        if tags.get(key) == labels.get(run[0]):
            continue
        rows = {name: value for name, value in tags.items() if name.startswith("row.") and name != key}
        if run[0] in labels:
            rows[key] = labels[run[0]]
            changed.append((run, key, rows[key]))
        else:
            removed.append((run, key))
        changed.append((run, RUN_NAME, _name(rows, *run)))
    return changed, removed


@contextmanager
def _opened(experiment: Experiment, results: Path, uri: str | None) -> Iterator[_Target]:
    store, name = locate(results, uri), experiment.testbed.name
    if store.database is not None:
        with connection(store.database) as opened:
            number = experiment_ids(opened)[name]
            if mlflow_sqlite.understood(opened, number):
                yield _sqlite_target(opened, number)
                return
    with reachable(store.uri):
        yield _server_target(store.uri, experiment)


def _sqlite_target(opened: Any, experiment: int) -> _Target:
    found = mlflow_sqlite.existing(opened, experiment)
    identities = {run: held[0].identity for run, held in found.items()}
    return _Target(
        {run: (held[0].tags, held[0].status) for run, held in found.items()},
        lambda runs: mlflow_sqlite.write(opened, experiment, runs, found),
        lambda changed, removed: mlflow_sqlite.set_tags(
            opened,
            [(identities[run], key, value) for run, key, value in changed],
            [(identities[run], key) for run, key in removed],
        ),
    )


def _server_target(uri: str, experiment: Experiment) -> _Target:
    remote = client(uri)
    known = remote.get_experiment_by_name(experiment.testbed.name)
    assert known is not None  # create_store has made it
    number = known.experiment_id
    filters = {f"tags.hash = '{row.hash}'" for row in experiment.rows}
    runs = server_runs(remote, number, [*sorted(filters), f"tags.`row.{experiment.name}` LIKE '%'"])

    def write(wanted: list[RunContent]) -> None:
        for run in wanted:
            same = runs.get((run.hash, run.seed), [])
            for other in same[1:]:
                remote.delete_run(other.info.run_id)
            started = same[0] if same else None
            mlflow_server.write(remote, uri, number, run, started)

    def tag(changed: list[tuple[Run, str, str]], removed: list[tuple[Run, str]]) -> None:
        for run, key, value in changed:
            remote.set_tag(runs[run][0].info.run_id, key, value)
        for run, key in removed:
            remote.delete_tag(runs[run][0].info.run_id, key)

    return _Target({run: (some[0].data.tags, some[0].info.status) for run, some in runs.items()}, write, tag)
