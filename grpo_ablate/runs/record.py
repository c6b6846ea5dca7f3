"""A run's record on disk: what is in each file, how it is published, and how it is read back.

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

if TYPE_CHECKING:
    from torch import Tensor

CHECKED = ("metrics.parquet", "samples.jsonl", "parameters.safetensors")
APART = ("timing.json", "provenance.json")


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
    contents["run.json"] = json_bytes({**run, "checksums": checksums})
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
    run = _json(folder / "run.json")
    if not isinstance(run.get("checksums"), dict) or set(run["checksums"]) != set(CHECKED):
        raise UserError(f"{folder / 'run.json'}: is not the record of a run; remove the folder to train it again.")
    for name, expected in run["checksums"].items():
        if hashlib.sha256(_bytes(folder / name)).hexdigest() != expected:
            raise UserError(
                f"{folder / name}: differs from the checksum in run.json; remove the folder to train it again."
            )
    try:
        metrics = pq.read_table(pa.BufferReader(_bytes(folder / "metrics.parquet")))
    except pa.ArrowException:
        raise UserError(f"{folder / 'metrics.parquet'}: is not a Parquet file.") from None
    timing, provenance = (_json(folder / name) for name in APART)
    return Record(metrics, run, timing, provenance)


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the responses that a run kept. Raises UserError where the file is missing or damaged."""
    path = folder / "samples.jsonl"
    try:
        return [json.loads(line) for line in _bytes(path).splitlines()]
    except ValueError:
        raise UserError(f"{path}: is not a file of JSON lines.") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; train the run again.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_bytes(path))
    except ValueError:
        raise UserError(f"{path}: is not JSON; remove the folder to train the run again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: is not the record of a run; remove the folder to train it again.")
    return value


def _finite(value: Any) -> Any:
    """Return the value with null in place of numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
