"""What a run costs in GPUs over all its sessions: the devices, how long they were held, the peak of their memory.

Told in ``timing.json``, outside checksums and comparisons. Each session leaves a note in the run's scratch folder,
so that the cost of one that was killed is counted up to its last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.parallel.group import Group
from grpo_ablate.runs.devices import held
from grpo_ablate.runs.record import json_bytes
from grpo_ablate.runs.record_files import read_timing

NOTES = "devices"  # folder of the notes in a run's scratch folder


@dataclass(frozen=True)
class Note:
    """One session of a run. Times are in seconds since the epoch; ``ended`` is None while it lasts."""

    code: str  # the digest of the training code: other code starts anew
    devices: tuple[str, ...]
    began: float
    ended: float | None = None
    peak: int = 0

    @property
    def hours(self) -> float:
        """Device-hours."""
        return len(self.devices) * ((self.ended or self.began) - self.began) / 3600


@contextmanager
def metered(folder: Path, scratch: Path, code: str, group: Group) -> Iterator[None]:
    """Meter the session inside, and add its run's cost to the ``timing.json`` that it leaves in ``folder``.

    All processes of ``group`` enter and leave together; ``code`` is the digest of the training code.
    """
    note = Note(code, tuple(device.name for device in held()), time.time())
    path = scratch / NOTES / f"{time.time_ns()}-{os.getpid()}.json"
    if group.first:
        _end_killed(scratch)
        if note.devices:
            _write(path, note)
    _forget_peak()
    try:
        yield
        found = group.gathered((_used(), _peak()))
    except BaseException:
        if group.first and note.devices:
            _write(path, replace(note, ended=time.time(), peak=_peak()))
        raise
    if not group.first:
        return
    devices = note.devices or tuple(name for used, _ in found for name in used)
    note = replace(note, devices=devices, ended=time.time(), peak=max(peak for _, peak in found))
    if note.devices:
        _write(path, note)
    _tell(folder / "timing.json", [one for _, one in _notes(scratch) if one.code == code] or [note])


def _tell(path: Path, notes: list[Note]) -> None:
    """Add the cost of a run's sessions to its ``timing.json``."""
    cost = {
        "devices": list(notes[-1].devices),
        "device_hours": sum(note.hours for note in notes),
        "peak_device_memory_bytes": max(note.peak for note in notes),
    }
    _replace(path, json_bytes(read_timing(path.parent) | cost))


def _end_killed(scratch: Path) -> None:
    """End the sessions that were killed where they left their last checkpoint: work after it was lost."""
    checkpoint = scratch / "checkpoint.safetensors"
    saved = checkpoint.stat().st_mtime if checkpoint.exists() else 0.0
    for path, note in _notes(scratch):
        if note.ended is None:
            _write(path, replace(note, ended=max(note.began, saved)))


def _notes(scratch: Path) -> list[tuple[Path, Note]]:
    """Return the notes that can be read, in the order of the sessions."""
    found = []
    for path in sorted((scratch / NOTES).glob("*.json")):
        try:
            told = json.loads(path.read_bytes())
            found.append((path, Note(**told | {"devices": tuple(told["devices"])})))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _write(path: Path, note: Note) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written: {error.strerror}.") from None
    _replace(path, json_bytes(asdict(note)))


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None


def _used() -> tuple[str, ...]:
    """Return the names of the devices that torch has put anything on, leased or not."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ()
    places = range(torch.cuda.device_count())
    return tuple(torch.cuda.get_device_name(i) for i in places if torch.cuda.max_memory_allocated(i) > 0)


def _peak() -> int:
    """Return the most bytes that torch has held on one device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return max((torch.cuda.max_memory_reserved(i) for i in range(torch.cuda.device_count())), default=0)


def _forget_peak() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for place in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(place)
