"""The archive: equal bytes for equal records, whole, safe to read, and enough to rebuild and verify elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from fabricated import write_record
from warm import warm_experiment, write_warm

from grpo_ablate.analysis.archive import FOLDER, MANIFEST, archive, published_tables
from grpo_ablate.analysis.collect import collect
from grpo_ablate.analysis.planned import record_plan
from grpo_ablate.analysis.study import run_archive
from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import RECORD
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment, load_experiment

ENDINGS = (".tar.gz", ".zip")


@pytest.fixture
def study(experiment: Experiment, results: Path) -> Experiment:
    """The experiment, controls included, in a project with a lock, a planned number of seeds and every record."""
    whole = load_experiment(experiment.path)
    (whole.path.parent.parent / "requirements.lock").write_text("torch==2.13.0\n")
    record_plan(whole, results)
    for cell in cells([whole]):
        write_record(results, cell)
    return whole


def unpacked(path: Path, to: Path) -> dict[str, bytes]:
    """Name -> content, by the standard tools."""
    shutil.unpack_archive(path, to, **({"filter": "data"} if path.name.endswith(".tar.gz") else {}))
    return {
        file.relative_to(to / FOLDER).as_posix(): file.read_bytes()
        for file in sorted((to / FOLDER).rglob("*"))
        if file.is_file()
    }


def grpo_ablate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grpo_ablate", *arguments], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_records_give_equal_bytes(study: Experiment, results: Path, tmp_path: Path, ending: str) -> None:
    first = archive([study], results, tmp_path / f"a{ending}").read_bytes()
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "experiments", other / "experiments")
    shutil.copytree(results, other / "elsewhere")
    shutil.copy(tmp_path / "requirements.lock", other)
    for file in other.rglob("*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    again = load_experiment(other / "experiments/small.yaml")
    assert archive([again], other / "elsewhere", other / f"b{ending}").read_bytes() == first
    write_record(results, cells([study])[0], salt=1)
    assert archive([study], results, tmp_path / f"a{ending}").read_bytes() != first


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_archive_holds_records_plans_files_lock_and_a_true_manifest(
    study: Experiment, results: Path, tmp_path: Path, ending: str
) -> None:
    files = unpacked(archive([study], results, tmp_path / f"a{ending}"), tmp_path / "x")
    records = {f"results/{cell.folder}/{name}" for cell in cells([study]) for name in RECORD}
    assert set(files) == records | {
        "experiments/small.yaml",
        "experiments/testbeds/tiny.yaml",
        "requirements.lock",
        "results/planned/small.json",
        "results/published/small.csv",
        "commit.json",
        "CHECKLIST.md",
        MANIFEST,
    }
    lines = files.pop(MANIFEST).decode().splitlines()
    assert dict(line.split("  ")[::-1] for line in lines) == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    for name in records:
        assert files[name] == (results.parent / name).read_bytes()
    commit = json.loads(files["commit.json"])
    assert set(commit) == {"commit", "dirty"}


def test_every_table_is_rebuilt_from_the_archive_and_verify_works_in_it(
    study: Experiment, results: Path, tmp_path: Path
) -> None:
    tables = [path for path in collect(study, results) if path.suffix != ".parquet"]
    path = archive([study], results, tmp_path / "a.tar.gz")
    unpacked(path, tmp_path / "x")
    place = tmp_path / "x" / FOLDER
    done = grpo_ablate(place, "collect", "experiments/small.yaml")
    assert done.returncode == 0, done.stderr
    for table in tables:
        assert (place / "results" / table.relative_to(results)).read_bytes() == table.read_bytes()
    assert grpo_ablate(place, "verify").returncode == 0
    assert subprocess.run(["sha256sum", "--check", "--quiet", MANIFEST], cwd=place).returncode == 0
    # Elsewhere, against the file itself: the same runs agree, a run that was changed does not.
    assert grpo_ablate(tmp_path, "verify", "--against", "a.tar.gz").returncode == 0
    for cell in cells([study]):
        write_record(results, cell, change=lambda columns: columns.update({"eval/reward": [9.0] * 10}))
    done = grpo_ablate(tmp_path, "verify", "--against", "a.tar.gz")
    assert done.returncode == 1, done.stderr
    assert "differs  base  eval/reward" in done.stdout


def rewritten(path: Path, change: dict[str, bytes | None], link: bool = False) -> None:
    """Write a .tar.gz again with contents replaced (None: left out), below the archive's folder or where said."""
    with tarfile.open(path) as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar}
    held |= {
        name if "/" in name and name[0] in "./g" else f"{FOLDER}/{name}": data for name, data in change.items()
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, data in held.items():
            if data is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        if link:
            entry = tarfile.TarInfo(f"{FOLDER}/link")
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(entry)


@pytest.mark.parametrize(
    ("change", "link", "words"),
    [
        ({"requirements.lock": b"x"}, False, "requirements.lock differs from its checksum in MANIFEST"),
        ({"requirements.lock": None}, False, "requirements.lock is missing, which MANIFEST"),
        ({"more": b""}, False, "more differs from its checksum in MANIFEST"),
        ({MANIFEST: None}, False, "is no archive of grpo-ablate"),
        ({"../evil": b""}, False, "../evil does not lie in"),
        ({"/etc/evil": b""}, False, "/etc/evil does not lie in"),
        ({f"{FOLDER}/../evil": b""}, False, "does not lie in"),
        ({}, True, "link is not a plain file"),
    ],
)  # fmt: skip
def test_an_archive_that_was_changed_is_refused_by_name(
    study: Experiment, results: Path, tmp_path: Path, change: dict[str, bytes | None], link: bool, words: str
) -> None:
    path = archive([study], results, tmp_path / "a.tar.gz")
    rewritten(path, change, link)
    with pytest.raises(UserError) as raised:
        published_tables(path)
    assert words in str(raised.value)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_a_damaged_archive_is_a_sentence(
    study: Experiment, results: Path, tmp_path: Path, ending: str, cut: float
) -> None:
    path = archive([study], results, tmp_path / f"a{ending}")
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(UserError, match=f"a{ending}: "):
        published_tables(path)


def test_a_zip_with_a_changed_file_is_refused(study: Experiment, results: Path, tmp_path: Path) -> None:
    path = archive([study], results, tmp_path / "a.zip")
    with zipfile.ZipFile(path) as packed:
        held = {name: packed.read(name) for name in packed.namelist()}
    held[f"{FOLDER}/commit.json"] = b"{}"
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in held.items():
            packed.writestr(name, data)
    with pytest.raises(UserError, match=r"commit\.json differs from its checksum"):
        published_tables(path)


def test_a_damaged_record_and_an_untrained_experiment_are_not_archived(
    study: Experiment, results: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.tar.gz"
    with pytest.raises(UserError, match=r"ends in \.tar\.gz or \.zip"):
        archive([study], results, tmp_path / "a.7z")
    with pytest.raises(UserError, match="no run of this experiment is trained"):
        archive([study], tmp_path / "empty", target)
    path = results / cells([study])[0].folder / "metrics.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"metrics\.parquet: differs from the checksum"):
        archive([study], results, target)
    assert not target.exists()
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".a")]


def test_the_checklist_says_what_the_records_say(study: Experiment, results: Path, tmp_path: Path) -> None:
    archive([study], results, tmp_path / "a.zip")
    text = unpacked(tmp_path / "a.zip", tmp_path / "x")["CHECKLIST.md"].decode()
    total = len(cells([study]))
    assert f"- [x] Seed blocks finished: {total} of {total}." in text
    assert "- [x] Trained by commit c0ffee." in text
    assert "Processor: A processor; threads of a job: 1." in text
    assert "No claims are declared" in text
    first = cells([study])[0]
    write_record(results, first, diverged={"1": 2})
    (results / cells([study])[-1].folder / "run.json").unlink()
    content = yaml.safe_load(study.path.read_text())
    content["seeds"] = 4
    content["claims"] = [
        {
            "id": "late", "statement": "It matters.", "source": "us",
            "test": {"is": "better", "row": "base", "than": "mean-only"},
        }
    ]  # fmt: skip
    study.path.write_text(yaml.safe_dump(content, sort_keys=False))
    archive([load_experiment(study.path)], results, tmp_path / "b.zip")
    text = unpacked(tmp_path / "b.zip", tmp_path / "y")["CHECKLIST.md"].decode()
    assert f"- [ ] Seed blocks finished: {total - 1} of {total}." in text
    assert "- [ ] Seeds that diverged, kept and scored worst: 1." in text
    assert "- [ ] 1 of 4 seeds was added after a look at results." in text
    assert "- [ ] small, late: It matters. (us) Tested as better: base against mean-only in eval/reward." in text
    assert "**added after a look at results**" in text


def test_an_archive_of_unfinished_work_says_what_is_missing(
    study: Experiment,
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "a.zip"
    run_archive([study.path], results, target)
    assert capsys.readouterr().out == f"{target}\n"
    lost = {cell.folder for cell in cells([study]) if cell.hash == study.row("mean-only").hash}
    for folder in lost:
        shutil.rmtree(results / folder)
    monkeypatch.chdir(tmp_path)
    shutil.copy("experiments/testbeds/tiny.yaml", "experiments/testbeds/other.yaml")
    Path("experiments/never.yaml").write_text(study.path.read_text().replace("testbed: tiny", "testbed: other"))
    run_archive([], results, target)
    assert capsys.readouterr().out.splitlines() == [
        str(target),
        "experiments/small.yaml: unfinished: 2 of 8 seed blocks are not trained (mean-only); "
        "all of them: grpo-ablate status experiments/small.yaml",
        "left out, nothing of them is trained: never",
    ]


def test_warm_starts_are_in_the_archive_and_checked(tmp_path: Path) -> None:
    experiment = warm_experiment(tmp_path)
    (tmp_path / "requirements.lock").write_text("")
    start = write_warm(experiment, tmp_path / "results")
    files = unpacked(archive([experiment], tmp_path / "results", tmp_path / "a.zip"), tmp_path / "x")
    inside = {name for name in files if name.startswith("results/warmstarts")}
    assert inside == {
        f"results/{start.folder}/{name}" for name in ("start.json", "parameters.safetensors", "model/config.json")
    }
    (tmp_path / "results" / start.folder / "parameters.safetensors").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"parameters\.safetensors: differs from the checksum in start\.json"):
        archive([experiment], tmp_path / "results", tmp_path / "a.zip")
