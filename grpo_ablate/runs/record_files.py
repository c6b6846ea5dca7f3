"""The files of a run's record as every reader takes them: whole, of the right shape, true to their checksums.

Light: whoever asks only whether and how a run ended pays for no library. A file that is missing, damaged or no
part of a record is a UserError which names it and says what to do.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator
from pydantic_core import PydanticCustomError

from grpo_ablate.errors import UserError
from grpo_ablate.spec.reading import checked

CHECKED = ("metrics.parquet", "samples.jsonl", "parameters.safetensors")
APART = ("timing.json", "provenance.json")
BUDGET = ("rollouts", "tokens", "updates")
RECORD = (*CHECKED, *APART, "run.json")

Whole = Annotated[int, Field(ge=0)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]


class Shape(BaseModel):
    """What a JSON object must hold; it may hold more, and a number in quotation marks is no number."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StartOfRun(Shape):
    """The warm start that a run began from: its hash, and the checksum of its parameters."""

    hash: str
    sha256: str


class RunFile(Shape):
    """``run.json``: ``checksum`` is its own; ``start`` is there where the run began from a warm start."""

    schema_version: int
    hash: str
    spec: dict[str, Any]
    testbed: str
    seeds: Annotated[list[Whole], Field(min_length=1)]
    status: Literal["finished", "diverged"]
    diverged: dict[str, Whole]
    digest: str
    budget: dict[str, list[Whole]]
    checksums: dict[str, str]
    checksum: str
    start: StartOfRun | None = None


class TimingFile(Shape):
    """``timing.json``; the curve is a list of [round, seconds so far]."""

    seconds: Seconds
    parts: dict[str, Seconds]
    curve: list[Annotated[list[Seconds], Field(min_length=2, max_length=2)]]
    peak_memory_bytes: Whole
    updates: Whole
    machine: str
    devices: list[str] = []  # GPUs of the last session. Early records do not have this, nor what follows
    device_hours: Seconds = 0.0  # GPUs times hours, of all sessions
    peak_device_memory_bytes: Whole = 0  # the most that torch held on one GPU


class SessionFile(Shape):
    """What ``provenance.json`` says of one session of training."""

    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    processor: str
    threads: Whole
    started: str

    @field_validator("started")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        try:
            datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            raise PydanticCustomError("time", "a date and time as ISO 8601 writes them") from None
        return text


class ProvenanceFile(SessionFile):
    """``provenance.json``: the last session, and the earlier ones that were interrupted."""

    interrupted: list[SessionFile]


class SampleLine(Shape):
    """A line of ``samples.jsonl``. What a task adds in words, as a reference, comes on top.

    ``tokens`` are texts, ``advantages`` one for each, ``steps`` pairs of a step's last token and its score.
    """

    seed: Whole
    reward: FiniteFloat | None
    prompt: str
    response: str
    round: Whole
    tokens: list[str]
    advantages: list[FiniteFloat | None]
    steps: list[Annotated[tuple[Whole, FiniteFloat | None], Field(strict=False)]] | None = None


def has_record(folder: Path) -> bool:
    """Return whether there is a record in ``folder``, sound or not: run.json is written last."""
    try:
        (folder / "run.json").stat()
    except FileNotFoundError:
        return False
    except OSError:  # reading it will say what is wrong
        return True
    return True


def read_run(folder: Path) -> dict[str, Any]:
    """Return ``run.json``: see `RunFile`. Its hash is that of its spec, its status that of its seeds."""
    path = folder / "run.json"
    run = read_sealed(path, RunFile)
    if set(run["checksums"]) != set(CHECKED):
        raise unusable(path, f"checksums names other files than {', '.join(CHECKED)}")
    canonical = json.dumps(run["spec"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if hashlib.sha256(f"{run['schema_version']}:{canonical}".encode()).hexdigest() != run["hash"]:
        raise unusable(path, "the hash is not that of the spec in it")
    if run["status"] != ("diverged" if run["diverged"] else "finished"):
        raise unusable(path, f"says {run['status']}, which the seeds in 'diverged' contradict")
    if not set(run["diverged"]) <= {str(seed) for seed in run["seeds"]}:
        raise unusable(path, "names diverged seeds that it has not trained")
    if set(run["budget"]) != set(BUDGET):
        raise unusable(path, f"budget is not {', '.join(BUDGET)} of every seed")
    return run


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum of its own: the sha256 over all else that it says."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def read_sealed(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON object in a file, which has that shape and matches its own checksum; else UserError."""
    content = read_json(path, shape)
    if sealed(content) != content:
        raise unusable(path, "differs from the checksum in it")
    return content


def read_timing(folder: Path) -> dict[str, Any]:
    """Return ``timing.json``: see `TimingFile`."""
    return read_json(folder / "timing.json", TimingFile)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return ``provenance.json``: see `ProvenanceFile`."""
    return read_json(folder / "provenance.json", ProvenanceFile)


def read_checked(folder: Path, run: dict[str, Any], name: str) -> bytes:
    """Return the bytes of one of the files `CHECKED`, which match the checksum that ``run`` holds."""
    path = folder / name
    content = read_bytes(path)
    if hashlib.sha256(content).hexdigest() != run["checksums"][name]:
        raise unusable(path, "differs from the checksum in run.json")
    return content


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the responses that a run kept: see `SampleLine`."""
    path = folder / "samples.jsonl"
    lines = read_checked(folder, read_run(folder), "samples.jsonl").splitlines()
    return [_shaped(line, SampleLine, path, f"{path}: line {number}") for number, line in enumerate(lines, 1)]


def verify(folder: Path) -> None:
    """Raise UserError where a file of the record in ``folder`` is missing or damaged; tables are not parsed."""
    run = read_run(folder)
    for name in CHECKED:
        read_checked(folder, run, name)
    read_timing(folder)
    read_provenance(folder)


def unusable(path: Path, reason: str) -> UserError:
    """Return the error of a file of a record, which is of no use without it."""
    return UserError(f"{path}: {reason}; remove {path.parent} to train it again.")


def read_json(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON object in a file, which has that shape; UserError where it has not."""
    return _shaped(read_bytes(path), shape, path, str(path))


def _shaped(text: bytes, shape: type[BaseModel], path: Path, where: str) -> dict[str, Any]:
    """Parse a JSON object of that shape; ``where`` is how an error calls the text in the file ``path``."""
    what = where.removeprefix(str(path)).removeprefix(": ")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise unusable(path, f"{what} is not JSON".strip()) from None
    if not isinstance(value, dict):
        raise unusable(path, f"{what} is not part of the record of a run".strip())
    try:
        checked(shape, value, where)
    except UserError as error:
        reason = str(error).removeprefix(f"{path}: ").removesuffix(".")
        raise unusable(path, reason) from None
    return value


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; UserError where it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; remove {path.parent} to train it again.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
