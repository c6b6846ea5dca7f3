"""The plan: what it counts as done is what the workflow would not train again for its record."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.runs.record_files import RECORD
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.plan import as_text, plan
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.workflow.status import counts, status

Change = Callable[[Path], object]


def write_record(folder: Path, full_hash: str, seeds: list[int]) -> None:
    """Every file of a record, as far as it is looked at without its checksums."""
    run: dict[str, Any] = {"schema_version": 1, "hash": full_hash, "spec": {}, "testbed": "small", "seeds": seeds}
    run |= {"status": "finished", "diverged": {}, "digest": "0123456789abcdef", "budget": {}}
    run["checksums"] = dict.fromkeys(("metrics.parquet", "samples.jsonl", "parameters.safetensors"), "")
    folder.mkdir(parents=True)
    for name in RECORD:
        (folder / name).write_text(json.dumps(run) if name == "run.json" else "")


def edited(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("harm", "failed"),
    [
        (lambda folder: None, 0),
        (edited(more="of a later version"), 0),
        (lambda folder: (folder / "run.json").write_text('{"hash": "'), 1),
        (edited(hash="0" * 64), 1),
        (edited(seeds=[0, 1, 2]), 1),
        (edited(checksums={}), 1),
        (lambda folder: (folder / "metrics.parquet").unlink(), 1),
        (lambda folder: (folder / "provenance.json").unlink(), 1),
    ],
)
def test_a_broken_record_is_failed_and_to_run_again(
    write: Callable[..., Path], tmp_path: Path, harm: Change, failed: int
) -> None:
    experiment = load_experiment(write())
    for cell in cells([experiment]):
        write_record(tmp_path / cell.folder, cell.hash, cell.seeds)
    block = next(cell for cell in cells([experiment]) if cell.hash == experiment.row("base").hash)
    harm(tmp_path / block.folder)
    found = plan(experiment, tmp_path)
    assert (found.jobs, found.jobs_to_run, found.jobs_failed) == (4, failed, failed)
    row = found.rows[0]
    assert (row.row, row.jobs, row.jobs_done, row.jobs_failed) == ("base", 2, 2 - failed, failed)
    text = as_text([found])
    assert (
        ("1 of 2 jobs done, 1 failed" in text)
        == ("(1 failed: `grpo-ablate status` says why)" in text)
        == (failed == 1)
    )


def test_status_looks_at_the_checksums_too(write: Callable[..., Path], tmp_path: Path) -> None:
    experiment = load_experiment(write())
    for cell in cells([experiment]):
        write_record(tmp_path / cell.folder, cell.hash, cell.seeds)  # whose checksums are wrong
    found = status([experiment], tmp_path)
    assert counts(found)["failed"] == 4
    assert all("metrics.parquet: differs from the checksum in run.json; remove" in cell.detail for cell in found)


def test_a_timing_that_cannot_be_read_tells_nothing(write: Callable[..., Path], tmp_path: Path) -> None:
    experiment = load_experiment(write())
    folder = tmp_path / "runs" / "small" / "01234567" / "seeds-0-3"
    folder.mkdir(parents=True)
    for text in ("", "[]", '{"seconds": 1, "updates": "2", "machine": "here"}', '{"seconds": NaN}'):
        (folder / "timing.json").write_text(text)
        assert plan(experiment, tmp_path).seconds is None


def test_the_estimate_is_a_start_per_job_and_the_time_of_its_steps(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    experiment = load_experiment(write())  # two rows of 10 updates, each in two jobs of four seeds
    for name, machine, seconds in (
        ("a", platform.node(), 3.0),
        ("b", platform.node(), 5.0),
        ("c", "other", 900.0),
    ):
        folder = tmp_path / "runs" / "small" / name / "seeds-0-3"
        folder.mkdir(parents=True)
        timing = {"seconds": seconds, "parts": {"start_up": 2.0}, "curve": [], "peak_memory_bytes": 1}
        timing |= {"updates": 40, "machine": machine}
        (folder / "timing.json").write_text(json.dumps(timing))
    assert plan(experiment, tmp_path).seconds == pytest.approx(4 * 2.0 + (4 * 4 * 10) * (3.0 + 5.0) / 80)
