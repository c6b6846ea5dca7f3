"""Every run of an experiment into MLflow, once, through its public client: idempotent by (hash, seed)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_content import fingerprint, identity_tags, parameters, record_tags
from grpo_ablate.runs.mlflow_lines import Lines, Point, encode, record_lines, timestamps
from grpo_ablate.runs.mlflow_store import (
    Run,
    complete,
    create_store,
    discard,
    experiment_id,
    find_runs,
    locate,
    lock,
    opened,
)
from grpo_ablate.runs.record import Record, json_bytes, json_lines, read_cell
from grpo_ablate.runs.record_files import has_record, read_samples
from grpo_ablate.spec.cells import Cell, cells, measured_runs
from grpo_ablate.spec.identity import from_canonical

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

    from grpo_ablate.spec.resolve import Experiment

LABELS = ("row.", "role.")  # tags by which experiments call a run
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 800, 100  # a call takes 1,000 entities, 100 of them parameters


class Names(NamedTuple):
    """The tags that say what a run is to an experiment."""

    label: str
    role: str


@dataclass(frozen=True)
class Logged:
    """What one call of `log_experiment` found to do, in runs: (hash, seed) pairs."""

    written: int
    unchanged: int


def log_experiment(experiment: Experiment, results: Path, uri: str | None = None) -> Logged:
    """Log every run of an experiment that has a record, and label it with its row; a second call adds nothing.

    ``uri`` None is ``mlflow.db`` in ``results``. Each (hash, seed) is one MLflow run in the MLflow experiment
    of its testbed, shared by all rows and experiments that state it: the tag ``row.<experiment>`` says which,
    and ``role.<experiment>`` whether as one of its rows, a control, or a row at a learning rate that was tried.
    A run that holds its record whole is left alone; one that was streamed, half-written or of an older record
    is deleted and written anew.

    Raises:
        UserError: there is no record at all (nothing is written then), the store cannot be used, a record is
            corrupt, or some are missing; the others then are logged.
    """
    store, blocks = locate(results, uri), cells([experiment])
    missing = [cell.folder for cell in blocks if not has_record(results / cell.folder)]
    present = [cell for cell in blocks if cell.folder not in missing]
    if not present:
        raise UserError(
            f"{experiment.path}: none of its {len(missing)} seed blocks has a record in {results}; train it first."
        )
    _read(results, present[0])  # a store is not made for a record that cannot be logged
    create_store(results, uri, [experiment.testbed.name])
    names = Names(f"row.{experiment.name}", f"role.{experiment.name}")
    roles, written, unchanged = _roles(experiment), 0, 0
    with lock(store), opened(store) as client:
        number = experiment_id(client, experiment.testbed.name)
        labelled = find_runs(client, number, f"tags.`{names.label}` LIKE '%'")
        for cell in blocks:
            pairs = [(cell.hash, seed) for seed in cell.seeds if (cell.hash, seed) in roles]
            known = {pair: labelled.pop(pair) for pair in pairs if pair in labelled}
            if cell.folder in missing:
                continue
            own = {pair: dict(zip(names, roles[pair], strict=True)) for pair in pairs}
            added = _log_block(client, number, _read(results, cell), own, known)
            written, unchanged = written + added, unchanged + len(pairs) - added
        for run in (run for runs in labelled.values() for run in runs):  # of a row or seed that is no more
            for tag in names:
                if tag in run.data.tags:
                    client.delete_tag(run.info.run_id, tag)
    if missing:
        raise UserError(
            f"{experiment.path}: {len(missing)} seed blocks have no record in {results} yet, the first is "
            f"{missing[0]}; the other runs are logged ({written} written, {unchanged} unchanged)."
        )
    return Logged(written, unchanged)


def log_batches(
    client: MlflowClient,
    identity: str,
    points: Sequence[Point] = (),
    parameters: Mapping[str, str] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log metric points and parameters in as few calls as MLflow allows; the tags come last."""
    from mlflow.entities import Metric, Param, RunTag

    metrics = [Metric(*point) for point in points]
    values = [Param(key, text) for key, text in parameters.items()]
    last = [RunTag(key, text) for key, text in tags.items()]
    while metrics or values or last:
        now, metrics = metrics[:METRICS_AT_ONCE], metrics[METRICS_AT_ONCE:]
        some, values = values[:PARAMETERS_AT_ONCE], values[PARAMETERS_AT_ONCE:]
        ended = not metrics and not values
        client.log_batch(identity, metrics=now, params=some, tags=last if ended else [])
        last = [] if ended else last


@dataclass(frozen=True)
class _Block:
    cell: Cell
    record: Record
    samples: Sequence[Mapping[str, Any]]


def _read(results: Path, cell: Cell) -> _Block:
    return _Block(cell, read_cell(results, cell), read_samples(results / cell.folder))


def _log_block(
    client: MlflowClient,
    experiment: str,
    block: _Block,
    labels: Mapping[Run, Mapping[str, str]],
    known: Mapping[Run, Sequence[MlflowRun]],
) -> int:
    """Log those runs of one record that MLflow does not hold, label the others; return how many were written.

    ``labels`` are the tags by which an experiment calls each run; ``known`` the block's runs that have some:
    where they are not enough, others are looked for.
    """
    mark, written = fingerprint(block.record.run, block.record.timing), 0
    if any(mark not in map(complete, known.get(pair, ())) for pair in labels):
        known = find_runs(client, experiment, f"tags.hash = '{block.cell.hash}'")
    recorded = record_lines(block.record)
    for pair, own in labels.items():
        seed, held = pair[1], known.get(pair, ())
        whole = next((run for run in held if complete(run) == mark), None)
        rows = {key: text for run in held for key, text in run.data.tags.items() if key.startswith(LABELS)}
        for run in held:
            if run is not whole:
                discard(client, run)
        if whole is None:
            _write(client, experiment, block, seed, recorded[seed], {**rows, **own}, {"record": mark})
            written += 1
        elif changed := {tag: text for tag, text in own.items() if whole.data.tags.get(tag) != text}:
            for tag, text in changed.items():
                client.set_tag(whole.info.run_id, tag, text)
            client.update_run(whole.info.run_id, name=_name(own, seed))
    return written


def _write(
    client: MlflowClient,
    experiment: str,
    block: _Block,
    seed: int,
    lines: Lines,
    labels: Mapping[str, str],
    mark: Mapping[str, str],
) -> None:
    """Write one run; only at the very end does it look complete."""
    cell, record = block.cell, block.record
    session = (record.provenance["interrupted"] or [record.provenance])[0]
    start = int(datetime.fromisoformat(session["started"]).timestamp() * 1000)
    stamps = timestamps(start, lines["seconds"] * len(record.run["seeds"]))
    tags = identity_tags(cell.spec_json, cell.hash, cell.testbed, cell.folder)
    tags |= record_tags(record, seed) | dict(labels)
    name = _name(labels, seed)
    identity = client.create_run(experiment, start_time=start, tags=tags, run_name=name).info.run_id
    samples = [dict(sample) for sample in block.samples if sample["seed"] == seed]
    client.log_text(identity, json_bytes(record.run).decode(), "run.json")
    client.log_text(identity, json_lines(samples).decode(), "samples.jsonl")
    log_batches(client, identity, encode(lines, stamps), parameters(from_canonical(cell.spec_json)), mark)
    client.set_terminated(identity, "FAILED" if "diverged" in tags else "FINISHED", int(stamps[-1]))


def _name(labels: Mapping[str, str], seed: int) -> str:
    """Return what MLflow calls a run: the row that the latest of the labels states first, and the seed."""
    row = [text for tag, text in labels.items() if tag.startswith("row.")][-1]
    return f"{row.partition(', ')[0]} seed {seed}"


def _roles(experiment: Experiment) -> dict[Run, tuple[str, str]]:
    """Return the rows that each (hash, seed) of an experiment belongs to, and its role: row, control or tuning."""
    named: dict[Run, dict[str, str]] = {}
    plain = {id(row): "row" for row in experiment.rows} | {id(row): "control" for row in experiment.controls}
    for row, seed in measured_runs(experiment):
        named.setdefault((row.hash, seed), {}).setdefault(row.id, plain.get(id(row), "tuning"))
    return {run: (", ".join(rows), next(iter(rows.values()))) for run, rows in named.items()}
