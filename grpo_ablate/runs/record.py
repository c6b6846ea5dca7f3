"""A run's record on disk: what is in each file, how it is published, and how its numbers are read back.

``metrics.parquet`` one line per seed and evaluation, ``samples.jsonl`` a few responses with rewards,
``parameters.safetensors`` the final parameters, ``run.json`` spec, hash, status, budget spent and the
checksums of the others. Bytes are a function of spec, seeds and code. ``timing.json`` and
``provenance.json`` stand apart, outside checksums and comparisons.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import (
    BUDGET,
    CHECKED,
    read_checked,
    read_provenance,
    read_run,
    read_timing,
    sealed,
    unusable,
)

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ablate.spec.cells import Cell

COUNTERS = ("seed", "round", "updates", "rollouts", "tokens")


@dataclass(frozen=True)
class Record:
    """A record as read, its files verified against their checksums."""

    metrics: pa.Table
    run: dict[str, Any]
    timing: dict[str, Any]
    provenance: dict[str, Any]


def metrics_table(columns: Mapping[str, Tensor]) -> pa.Table:
    """Return int64 and float64 columns, in the order given, as a table; NaN stays NaN."""
    arrays = [
        # Not pa.array, which imports pandas to look whether it was given a series: 0.3 s in every job.
        pa.Array.from_buffers(
            pa.float64() if c.is_floating_point() else pa.int64(),
            len(c),
            [None, pa.py_buffer(c.contiguous().numpy())],
        )
        for c in columns.values()
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def metrics_bytes(table: pa.Table) -> bytes:
    """Return the table as Parquet, with every choice of the writer fixed."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, version="2.6", compression="zstd", compression_level=3, use_dictionary=False,
        write_statistics=False, store_schema=False, data_page_version="1.0",
    )  # fmt: skip
    return bytes(sink.getvalue())


def json_bytes(value: Any) -> bytes:
    """Return canonical JSON with a line end: sorted keys, ASCII; a number that is not finite becomes null."""
    text = json.dumps(_finite(value), sort_keys=True, indent=1, allow_nan=False)
    # Lists of plain values on one line each. No string holds a raw line break, so none can be changed here.
    flat = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", lambda found: "[" + re.sub(r"\n\s*", " ", found[1]) + "]", text)
    return (flat + "\n").encode()


def sealed_bytes(content: dict[str, Any]) -> bytes:
    """Return canonical JSON of an object with the checksum of what is written, where null stands for NaN."""
    finite = _finite(content)
    assert isinstance(finite, dict)
    return json_bytes(sealed(finite))


def json_lines(values: list[dict[str, Any]]) -> bytes:
    """Return one JSON object per line, keys in the order given, text as it is."""
    return "".join(
        json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n" for value in values
    ).encode()


def publish(
    folder: Path,
    aside: Path,
    metrics: pa.Table,
    samples: list[dict[str, Any]],
    parameters: dict[str, Tensor],
    run: dict[str, Any],
    apart: dict[str, dict[str, Any]],
) -> None:
    """Write the record in the folder ``aside`` and rename its files into ``folder``, run.json last.

    ``run`` gets the checksums; ``apart`` holds timing and provenance. A reader that finds run.json finds
    everything that it speaks of.
    """
    from safetensors.torch import save  # late: who reads records does without torch

    contents = {
        "metrics.parquet": metrics_bytes(metrics),
        "samples.jsonl": json_lines(samples),
        "parameters.safetensors": save({name: t.contiguous() for name, t in parameters.items()}),
    }
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents |= {f"{name}.json": json_bytes(value) for name, value in apart.items()}
    contents["run.json"] = sealed_bytes({**run, "checksums": checksums})
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, content in contents.items():
            (aside / name).write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)
        for name in contents:
            (aside / name).replace(folder / name)
        aside.rmdir()
    except OSError as error:
        raise UserError(f"{folder}: the record cannot be written: {error.strerror}.") from None


def check_writable(folder: Path) -> None:
    """Raise UserError where a record could not be published in ``folder``, before any work goes into it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{folder}: cannot be made: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written: no permission in {nearest}.")


def read_record(folder: Path) -> Record:
    """Return the record in ``folder``.

    Raises UserError that names the file at fault where one is missing, damaged, or does not match the
    checksum in run.json.
    """
    run = read_run(folder)
    content = {name: read_checked(folder, run, name) for name in CHECKED}
    metrics = _metrics(folder / "metrics.parquet", content["metrics.parquet"], run["seeds"])
    if _spent(metrics, run["seeds"]) != run["budget"]:
        raise unusable(folder / "run.json", "budget differs from the last lines of metrics.parquet")
    return Record(metrics, run, read_timing(folder), read_provenance(folder))


def _spent(metrics: pa.Table, seeds: list[int]) -> dict[str, list[int]]:
    """Return what each seed had spent at its last line; lines of a seed are in the order of rounds."""
    columns = [metrics.column(name).to_pylist() for name in ("seed", *BUDGET)]
    last = {seed: spent for seed, *spent in zip(*columns, strict=True)}
    return {name: [last[seed][place] for seed in seeds] for place, name in enumerate(BUDGET)}


def read_cell(results: Path, cell: Cell) -> Record:
    """Return the record of a cell. Raises UserError as `read_record`, and where it is of another spec or seeds."""
    folder = results / cell.folder
    record = read_record(folder)
    if record.run["hash"] != cell.hash or record.run["seeds"] != cell.seeds:
        raise unusable(folder / "run.json", "is of another spec or other seeds than its folder's name says")
    return record


def _metrics(path: Path, content: bytes, seeds: list[int]) -> pa.Table:
    """Parse the lines of ``seeds``: int64 counters, then float64 metrics, without nulls."""
    try:
        # By the calling thread: a reader thread that outlives its call can abort a process that is about to end.
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError):
        raise unusable(path, "is not a Parquet file") from None
    expected = {
        name: pa.int64() if name in COUNTERS else pa.float64() for name in (*COUNTERS, *table.column_names)
    }
    if dict(zip(table.column_names, table.schema.types, strict=True)) != expected:
        raise unusable(path, f"has not the columns {', '.join(COUNTERS)} and metrics")
    if any(column.null_count for column in table.columns):
        raise unusable(path, "has lines without a number")
    if set(table.column("seed").to_pylist()) != set(seeds):
        raise unusable(path, "has not the lines of the seeds in run.json")
    return table


def _finite(value: Any) -> Any:
    """Return the value with null in place of numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
