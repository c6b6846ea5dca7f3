"""Merging: whole records in, disagreement refused with its reason, nothing half copied, ours unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fabricated import write_record
from warm import warm_experiment, write_warm

from grpo_ablate.analysis import merge as merging
from grpo_ablate.analysis.collect import collect
from grpo_ablate.analysis.merge import as_text, merge
from grpo_ablate.analysis.planned import history, record_plan
from grpo_ablate.errors import UserError
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.record_files import sealed
from grpo_ablate.spec.cells import Cell, cells
from grpo_ablate.spec.resolve import Experiment


@pytest.fixture
def here(results: Path) -> Path:
    return results


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "other" / "results"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("mlflow") and path.name != "lock"
    }


def states(here: Path, there: Path) -> dict[str, str]:
    return {found.folder: found.state for found in merge(there, here)}


def split(experiment: Experiment, here: Path, there: Path) -> tuple[list[Cell], list[Cell]]:
    """Records of every second cell here, of the others there."""
    own = cells([experiment])
    for index, cell in enumerate(own):
        write_record((here, there)[index % 2], cell)
    return own[::2], own[1::2]


def test_two_halves_of_a_grid_become_the_whole(experiment: Experiment, here: Path, there: Path) -> None:
    ours, theirs = split(experiment, here, there)
    before = contents(here)
    added = contents(there)
    assert states(here, there) == {cell.folder: "added" for cell in theirs}
    assert contents(here) == before | added
    assert collect(experiment, here)
    assert states(here, there) == {cell.folder: "present" for cell in theirs}
    assert contents(there) == added, "the other folder is only read"
    assert len(ours) + len(theirs) == len(cells([experiment]))


def test_the_same_run_with_other_bytes_is_refused_and_ours_stays(
    experiment: Experiment, here: Path, there: Path
) -> None:
    first, second = cells([experiment])[:2]
    write_record(here, first)
    write_record(there, first, salt=1)
    write_record(there, second)
    before = contents(here)
    found = merge(there, here)
    assert [item.state for item in found] == ["refused", "added"]
    assert "the same run lies here with other content" in found[0].reason
    assert "1 added, 0 present, 1 refused" in as_text(found)
    assert {name: data for name, data in contents(here).items() if name in before} == before


def changed_json(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | keys)))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("sample", "samples.jsonl: differs from the checksum in run.json"),
        ("hash", "the hash is not that of the spec in it"),
        ("spec", "the hash is not that of the spec in it"),
        ("folder", "is of another spec, testbed or other seeds than its folder's name says"),
        ("testbed", "is of another spec, testbed or other seeds than its folder's name says"),
        ("digest", "run.json: differs from the checksum in it"),
        ("budget", "run.json: differs from the checksum in it"),
        ("budget and checksum", "budget differs from the last lines of metrics.parquet"),
        ("missing", "timing.json: is missing"),
        ("json", "run.json: is not JSON"),
    ],
)
def test_hash_content_and_folder_must_agree(
    experiment: Experiment, here: Path, there: Path, fault: str, reason: str
) -> None:
    folder = write_record(there, cells([experiment])[0])
    run = folder / "run.json"
    if fault == "sample":
        path = folder / "samples.jsonl"
        path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0", 1))
    elif fault == "hash":
        changed_json(run, hash="0" * 64)
    elif fault == "spec":
        spec = json.loads(run.read_text())["spec"]
        changed_json(run, spec=spec | {"optimizer": spec.get("optimizer", {}) | {"learning_rate": 0.5}})
    elif fault == "folder":
        folder.rename(folder.with_name("seeds-6-7"))
    elif fault == "testbed":
        folder.parent.parent.rename(folder.parent.parent.with_name("huge"))
    elif fault == "digest":
        run.write_text(json.dumps(json.loads(run.read_text()) | {"digest": "0" * 16}))
    elif fault.startswith("budget"):
        stated = json.loads(run.read_text())
        stated["budget"]["tokens"][0] += 1
        run.write_text(json.dumps(sealed(stated) if "checksum" in fault else stated))
    elif fault == "missing":
        (folder / "timing.json").unlink()
    else:
        run.write_text("{")
    found = merge(there, here)
    assert [item.state for item in found] == ["refused"]
    assert reason in found[0].reason
    assert not (here / "runs").exists()


def test_a_killed_merge_leaves_no_record_and_the_next_one_finishes(
    experiment: Experiment, here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells([experiment])[0]
    write_record(there, cell)
    copies = 0

    def copy_some(source: Path, target: Path) -> None:
        nonlocal copies
        copies += 1
        if copies == 3:
            raise KeyboardInterrupt
        shutil.copyfile(source, target)

    class Some:
        copyfile, rmtree = staticmethod(copy_some), staticmethod(shutil.rmtree)

    monkeypatch.setattr(merging, "shutil", Some)
    with pytest.raises(KeyboardInterrupt):
        merge(there, here)
    assert contents(here) == {}
    monkeypatch.undo()
    assert states(here, there) == {cell.folder: "added"}


def test_a_run_that_is_being_trained_here_is_left_alone(experiment: Experiment, here: Path, there: Path) -> None:
    cell = cells([experiment])[0]
    write_record(there, cell)
    with exclusive(here / cell.folder.replace("runs/", "scratch/", 1)):
        found = merge(there, here)
    assert "is being trained here" in found[0].reason
    assert states(here, there) == {cell.folder: "added"}


def test_plans_of_both_machines_are_kept(experiment: Experiment, here: Path, there: Path) -> None:
    record_plan(experiment, there)
    split(experiment, here, there)
    record_plan(experiment, here)
    merge(there, here)
    assert [entry.looked for entry in history("small", here)] in ([False, True], [True, False])
    before = contents(here)
    merge(there, here)
    assert contents(here) == before


def test_what_is_no_results_folder_is_a_sentence(experiment: Experiment, here: Path, there: Path) -> None:
    with pytest.raises(UserError, match="is no results folder"):
        merge(there, here)
    write_record(here, cells([experiment])[0])
    with pytest.raises(UserError, match="is the results folder itself"):
        merge(here, here)


def test_the_exit_code_says_whether_anything_was_refused(experiment: Experiment, here: Path, there: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grpo_ablate", "merge", "other"]  # the folder above `results` will do
        return subprocess.run(command, cwd=here.parent, capture_output=True, text=True)

    write_record(there, cells([experiment])[0])
    done = run()
    assert (done.returncode, done.stdout) == (0, "1 added, 0 present, 0 refused of records and warm starts\n")
    write_record(there, cells([experiment])[0], salt=1)
    done = run()
    assert done.returncode == 1
    assert done.stdout.startswith("refused: ")


def test_warm_starts_come_along_and_a_run_from_another_one_is_refused(here: Path, there: Path) -> None:
    experiment = warm_experiment(there.parent)
    start = write_warm(experiment, there)
    first = states(here, there)
    assert first == {start.folder: "added"} | {cell.folder: "added" for cell in cells([experiment])}
    assert contents(here) == contents(there)
    assert set(states(here, there).values()) == {"present"}
    # Another machine made its warm start anew, and trained from that.
    write_warm(experiment, there, b"other parameters")
    cell = cells([experiment])[0]
    shutil.rmtree(here / cell.folder)
    found = {item.folder: item for item in merge(there, here)}
    assert "the same warm start lies here with other content" in found[start.folder].reason
    assert "began from another warm start than the one in" in found[cell.folder].reason
    assert not (here / cell.folder).exists()


@pytest.mark.parametrize("fault", ["parameters.safetensors", "spec"])
def test_a_warm_start_that_is_not_what_it_says_is_refused(here: Path, there: Path, fault: str) -> None:
    start = write_warm(warm_experiment(there.parent), there)
    if fault == "spec":
        changed_json(there / start.folder / "start.json", spec={"task": {"name": "arithmetic"}, "policy": {}})
    else:
        (there / start.folder / fault).write_bytes(b"changed")
    found = {item.folder: item for item in merge(there, here)}
    assert found[start.folder].state == "refused"
    assert ("hash is not that of the spec" if fault == "spec" else "differs from the checksum") in found[
        start.folder
    ].reason
    assert not (here / start.folder).exists()


def test_what_is_damaged_there_stops_nothing_else(tmp_path: Path, here: Path, there: Path) -> None:
    experiment = warm_experiment(tmp_path)
    start = write_warm(experiment, there)
    (there / start.folder / "parameters.safetensors").unlink()
    (there / "planned").mkdir()
    (there / "planned" / "a-damaged.json").write_text("{")
    (there / "planned" / "tiny-model.json").write_text("[]")
    found = {one.folder: one for one in merge(there, here)}
    assert found[start.folder].state == "refused" and "is missing" in found[start.folder].reason
    assert found["planned/a-damaged.json"].state == "refused"
    assert all(found[cell.folder].state == "added" for cell in cells([experiment]))
