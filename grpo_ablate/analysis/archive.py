"""One file that holds a study: records, checksums, plans, experiment files, lock, commit and a checklist.

The archive is a folder in a .tar.gz or .zip, equal byte for byte for equal records and code. Unpacked, it is a
project in which ``grpo-ablate verify``, ``collect`` and ``compare`` work. ``MANIFEST.sha256`` lists the SHA-256 of
every other file, as ``sha256sum --check`` reads it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import RECORD, has_record
from grpo_ablate.spec.cells import cells, trained_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

FOLDER = "grpo-ablate-archive"
MANIFEST = "MANIFEST.sha256"
ENDINGS = (".tar.gz", ".zip")
NAMED = 4  # rows of an unfinished experiment that are named, before the rest is counted
Content = bytes | Path


def archive(experiments: Sequence[Experiment], results: Path, target: Path, others: Sequence[Path] = ()) -> Path:
    """Write the archive of these experiments.

    Args:
        experiments: with at least one record each.
        results: where their records lie.
        target: the file, ``.tar.gz`` or ``.zip``.
        others: further files of the project, in its folder.

    Raises:
        UserError: an experiment has no records, one is damaged, a file is missing, or nothing can be written.
    """
    if not target.name.endswith(ENDINGS):
        raise UserError(f"--to {target}: expected a name that ends in {' or '.join(ENDINGS)}.")
    files = contents(experiments, results, others)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            (_write_zip if target.name.endswith(".zip") else _write_tar)(file, files)
        aside.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise UserError(f"{target}: cannot be written: {error.strerror}.") from None
    return target


def contents(experiments: Sequence[Experiment], results: Path, others: Sequence[Path] = ()) -> dict[str, Content]:
    """Return name within the archive -> content, or the file that holds it, sorted by name."""
    from grpo_ablate.analysis.checklist import checklist
    from grpo_ablate.analysis.planned import path_of
    from grpo_ablate.analysis.reference import reference_bytes, reference_table
    from grpo_ablate.analysis.verify import damaged
    from grpo_ablate.runs.provenance import code_state

    root = experiments[0].path.parent.parent
    found: dict[str, Content] = {}
    for experiment in experiments:
        folders = [cell.folder for cell in cells([experiment]) if has_record(results / cell.folder)]
        if not folders:
            raise UserError(f"{experiment.path}: no run of this experiment is trained in {results}.")
        if faults := damaged(experiment, results):
            raise UserError(faults[0])
        found |= {f"results/{folder}/{name}": results / folder / name for folder in folders for name in RECORD}
        found |= _starts(experiment, results)
        written = [
            experiment.path,
            experiment.testbed.path,
            *([experiment.published] if experiment.published else []),
        ]
        found |= {_within(path, root): path for path in written}
        plan = path_of(results, experiment.name)
        if plan.exists():
            found[f"results/planned/{plan.name}"] = plan
        table = reference_bytes(reference_table(experiment, results, partial=True))
        found[f"results/published/{experiment.name}.csv"] = table
    found |= {_within(path, root): path for path in [*others, _lock(root)]}
    commit, dirty = code_state()
    found["commit.json"] = (json.dumps({"commit": commit, "dirty": dirty}, indent=1) + "\n").encode()
    found["CHECKLIST.md"] = checklist(experiments, results, commit, dirty).encode()
    lines = [f"{_sha256(content)}  {name}\n" for name, content in sorted(found.items())]
    return {**dict(sorted(found.items())), MANIFEST: "".join(lines).encode()}


def unfinished(experiment: Experiment, results: Path) -> str:
    """Say how many seed blocks of an experiment have no record, and of which rows; nothing where all have one."""
    own = [(row.id, cell) for row in experiment.trained_rows for cell in trained_cells(experiment, row)]
    lacking = [(row, cell) for row, cell in own if not has_record(results / cell.folder)]
    if not lacking:
        return ""
    missing, wanted = (len({cell for _, cell in pairs}) for pairs in (lacking, own))
    rows = list(dict.fromkeys(row for row, _ in lacking))
    named = ", ".join(rows) if len(rows) <= NAMED else f"{', '.join(rows[:NAMED])} and {len(rows) - NAMED} more"
    return (
        f"{experiment.path}: unfinished: {missing} of {wanted} seed blocks are not trained ({named}); "
        f"all of them: grpo-ablate status {experiment.path}"
    )


def _starts(experiment: Experiment, results: Path) -> dict[str, Content]:
    """The files of the warm starts from which the experiment's runs began."""
    from grpo_ablate.spec.warmstart import starts

    folders = [results / start.folder for start in starts(cells([experiment]))]
    return {
        f"results/{path.relative_to(results).as_posix()}": path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(results).parts)
    }


def _lock(root: Path) -> Path:
    places = [root / "requirements.lock", Path(__file__).parents[2] / "requirements.lock"]
    for path in places:
        if path.exists():
            return path
    raise UserError(f"{places[0]}: is missing: an archive holds the versions of every dependency.")


def _within(path: Path, root: Path) -> str:
    """The name of a project's file in the archive; the lock of the package's own folder lies at the top."""
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.name


def _sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    try:
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{content}: cannot be read: {error.strerror}.") from None


def _opened(content: Content) -> tuple[IO[bytes], int]:
    if isinstance(content, bytes):
        return io.BytesIO(content), len(content)
    return content.open("rb"), content.stat().st_size


def _write_tar(file: IO[bytes], files: Mapping[str, Content]) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            stream, entry.size = _opened(content)
            entry.mode = 0o644
            with stream:
                tar.addfile(entry, stream)


def _write_zip(file: IO[bytes], files: Mapping[str, Content]) -> None:
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{FOLDER}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            entry.create_system = 3
            stream, entry.file_size = _opened(content)
            with stream, packed.open(entry, "w") as part:
                while chunk := stream.read(1 << 20):
                    part.write(chunk)


def published_tables(path: Path) -> dict[str, bytes]:
    """Return experiment name -> reference table from an archive, after its manifest was checked whole.

    Nothing is unpacked.

    Raises:
        UserError: the file is no archive, or a file in it does not match the manifest, is missing or too many.
    """
    checksums: dict[str, str] = {}
    kept: dict[str, bytes] = {}
    try:
        for name, stream in _members(path):
            if name in checksums:
                raise UserError(f"{path}: holds {name} twice.")
            if name == MANIFEST or PurePosixPath(name).match("results/published/*.csv"):
                kept[name] = stream.read()
                checksums[name] = hashlib.sha256(kept[name]).hexdigest()
            else:
                # Tar and zip members are read as files are; their declared type, IO[bytes], does not say so.
                checksums[name] = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is damaged or no archive"
        raise UserError(f"{path}: cannot be read: {reason}.") from None
    if MANIFEST not in kept:
        raise UserError(f"{path}: is no archive of grpo-ablate: it holds no {FOLDER}/{MANIFEST}.")
    lines = (line.split("  ", 1) for line in kept.pop(MANIFEST).decode(errors="replace").splitlines())
    stated = {parts[1]: parts[0] for parts in lines if len(parts) == 2}
    del checksums[MANIFEST]
    for name in sorted(stated.keys() | checksums.keys()):
        if name not in checksums:
            raise UserError(f"{path}: {name} is missing, which {MANIFEST} lists.")
        if stated.get(name) != checksums[name]:
            raise UserError(f"{path}: {name} differs from its checksum in {MANIFEST}.")
    return {PurePosixPath(name).stem: content for name, content in kept.items()}


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name below the archive's folder and the content of every file; nothing else may be in it."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as stream:
                    yield _inside(path, entry.filename), stream
        return
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            opened = tar.extractfile(member) if member.isreg() else None
            if opened is None:
                raise UserError(f"{path}: {member.name} is not a plain file.")
            yield _inside(path, member.name), opened


def _inside(path: Path, name: str) -> str:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or pure.parts[:1] != (FOLDER,) or len(pure.parts) < 2:
        raise UserError(f"{path}: {name} does not lie in {FOLDER}.")
    return PurePosixPath(*pure.parts[1:]).as_posix()


def references(against: Path) -> dict[str, bytes]:
    """Return experiment name -> reference table from an archive, or from a folder of such tables.

    Raises:
        UserError: there is no such file or folder, or it holds no table.
    """
    if against.is_file():
        return published_tables(against)
    if not against.is_dir():
        raise UserError(f"--against {against}: no such folder or archive.")
    found = {path.stem: path.read_bytes() for path in sorted(against.glob("*.csv"))}
    if not found:
        raise UserError(
            f"--against {against}: holds no reference tables (*.csv); `grpo-ablate publish` writes them."
        )
    return found
