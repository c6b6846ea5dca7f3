"""Adds the runs of another machine's results folder to this one, whole records or nothing.

A record is refused, with a reason, where its hash is not that of its spec, a file does not match its checksum, the
budget is not that of its metrics, its folder says otherwise than it does, or the same run lies here with other
bytes. What is taken is copied aside and renamed into place with run.json last, so that a killed merge leaves
nothing half copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_ablate.analysis.planned import merge_history
from grpo_ablate.errors import UserError
from grpo_ablate.runs.lock import is_held
from grpo_ablate.runs.record import read_record
from grpo_ablate.runs.record_files import CHECKED, RECORD, has_record, read_run, verify
from grpo_ablate.runs.start_files import FILE as START
from grpo_ablate.runs.start_files import PARAMETERS, read_start
from grpo_ablate.spec.identity import parse_spec, spec_hash
from grpo_ablate.spec.schema import SCHEMA_VERSION

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
_BLOCK = re.compile(r"seeds-(\d+)-(\d+)")


@dataclass(frozen=True)
class Merged:
    """What became of one folder: ``added``, ``present`` (the same bytes lie here already) or ``refused``."""

    folder: str
    state: str
    reason: str = ""


def merge(other: Path, results: Path) -> list[Merged]:
    """Add the warm starts, runs and plans of the results folder ``other`` to ``results``.

    Raises:
        UserError: ``other`` holds no runs or is ``results`` itself, or ``results`` cannot be written.
    """
    source = other if (other / "runs").is_dir() else other / "results"  # as in an unpacked archive
    if not (source / "runs").is_dir():
        raise UserError(f"{other}: is no results folder: it holds no folder 'runs'.")
    if source.resolve() == results.resolve():
        raise UserError(f"{other}: is the results folder itself; name that of another machine.")
    aside = results / f".merge.{os.getpid()}"
    starts = sorted(path.parent for path in (source / "warmstarts").rglob(START))
    runs = [path for path in sorted((source / "runs").glob("*/*/seeds-*")) if has_record(path)]
    try:
        found = [_taken(take_start, there, source, results, aside) for there in starts]
        found += [_taken(take_run, there, source, results, aside) for there in runs]
        for path in sorted((source / "planned").glob("*.json")):
            try:
                merge_history(path.stem, source, results)
            except UserError as error:
                found.append(Merged(f"planned/{path.name}", "refused", str(error)))
    except OSError as error:
        raise UserError(f"{error.filename or results}: cannot be copied: {error.strerror}.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return found


def _taken(
    take: Callable[[Path, Path, Path, Path], bool], there: Path, source: Path, results: Path, aside: Path
) -> Merged:
    folder = there.relative_to(source)
    try:
        added = take(there, results / folder, results, aside)
    except UserError as error:
        return Merged(folder.as_posix(), "refused", str(error))
    except FileNotFoundError as error:
        return Merged(folder.as_posix(), "refused", f"{error.filename}: is missing.")
    return Merged(folder.as_posix(), "added" if added else "present")


def take_run(there: Path, here: Path, results: Path, aside: Path) -> bool:
    """Copy a run's record; return whether it was not here before.

    Raises:
        UserError: the record is not sound, or disagrees with what lies here.
    """
    run = read_record(there).run
    _check_identity(there, run)
    if has_record(here):
        verify(here)
        for name in (*CHECKED, "run.json"):
            if not _same(there / name, here / name):
                code = "" if read_run(here)["digest"] == run["digest"] else ", made by other training code,"
                raise UserError(
                    f"{there / name}: the same run lies here with other content{code} in {here / name}."
                )
        return False
    if is_held(results / here.relative_to(results).as_posix().replace("runs/", "scratch/", 1)):
        raise UserError(f"{here}: is being trained here; merge again when it is done.")
    if run.get("start"):
        _check_start(there, run["start"], results)
    _copy(there, here, aside, RECORD)
    return True


def take_start(there: Path, here: Path, results: Path, aside: Path) -> bool:
    """Copy a warm start with its model folders; return whether it was not here before.

    Raises:
        UserError: as `take_run`.
    """
    start = read_start(there)
    stated = json.dumps(start["spec"], sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(f"{SCHEMA_VERSION}:{stated}".encode()).hexdigest()
    short = next(part for part in (there.name, there.parent.name) if not _BLOCK.fullmatch(part))
    if start["hash"] != digest or not digest.startswith(short):
        raise UserError(f"{there / START}: the hash is not that of the spec in it, or not that of its folder.")
    if _digest(there / PARAMETERS) != start["sha256"]:
        raise UserError(f"{there / PARAMETERS}: differs from the checksum in {START}.")
    if (here / START).exists():
        for name in (PARAMETERS, START):
            if not _same(there / name, here / name):
                raise UserError(f"{there / name}: the same warm start lies here with other content.")
        return False
    files = sorted(path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file())
    own = [
        name for name in files if name != START and not any(_BLOCK.fullmatch(part) for part in Path(name).parts)
    ]
    _copy(there, here, aside, [*own, START])
    return True


def _check_identity(there: Path, run: dict[str, Any]) -> None:
    """Refuse a record whose hash is not that of its spec, or whose folder is that of another run."""
    path = there / "run.json"
    if spec_hash(parse_spec(json.dumps(run["spec"]), str(path))) != run["hash"]:
        raise UserError(f"{path}: the hash is not that of the spec in it.")
    block = _BLOCK.fullmatch(there.name)
    seeds = [] if block is None else list(range(int(block[1]), int(block[2]) + 1))
    testbed = there.parent.parent.name
    if run["hash"][:8] != there.parent.name or run["seeds"] != seeds or run["testbed"] != testbed:
        raise UserError(f"{path}: is of another spec, testbed or other seeds than its folder's name says.")
    if not _NAME.fullmatch(testbed):
        raise UserError(f"{path}: the testbed's name is not one of lower-case letters, digits, '.' and '-'.")


def _check_start(there: Path, start: dict[str, str], results: Path) -> None:
    """Refuse a run that began from other parameters than the warm start of that hash that lies here."""
    for path in (results / "warmstarts" / start["hash"][:8]).rglob(START):
        found = read_start(path.parent)
        block = _BLOCK.fullmatch(path.parent.name)
        shared = block is None or path.parent.name == there.name
        if shared and found["hash"] == start["hash"] and found["sha256"] != start["sha256"]:
            raise UserError(f"{there / 'run.json'}: began from another warm start than the one in {path.parent}.")


def _copy(there: Path, here: Path, aside: Path, names: Sequence[str]) -> None:
    """Copy files aside and rename them into place in their order: the one that speaks of the others is last."""
    shutil.rmtree(aside, ignore_errors=True)
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(there / name, aside / name)
        if not _same(aside / name, there / name):
            raise UserError(f"{there / name}: changed while it was copied.")
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).replace(here / name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and _digest(one) == _digest(other)


def as_json(found: Iterable[Merged]) -> str:
    """Return what became of every folder, as JSON."""
    return json.dumps([asdict(folder) for folder in found], indent=1)


def as_text(found: Sequence[Merged]) -> str:
    """Return a line per refused folder with its reason, then the counts."""
    lines = [f"refused: {folder.reason}" for folder in found if folder.state == "refused"]
    counts = Counter(folder.state for folder in found)
    states = ("added", "present", "refused")
    return "\n".join(
        [*lines, ", ".join(f"{counts[state]} {state}" for state in states) + " of records and warm starts"]
    )
