"""One workflow at a time in a folder, and none refused because of a dead one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.workflow.guard import guard

HOLD = "import sys; from pathlib import Path; from grpo_ablate.workflow.guard import guard; "
HOLD += "guard(Path(sys.argv[1]), executes=True); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def stale_lock(folder: Path) -> Path:
    lock = folder / ".snakemake/locks/0.input.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("results/table.csv\n")
    return lock


def test_a_second_live_workflow_is_refused_by_name_and_its_locks_are_left(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    lock = stale_lock(tmp_path)
    with pytest.raises(UserError, match=rf"another workflow is running in this folder \(process {holder.pid}\)"):
        guard(tmp_path, executes=True, patience=0.1)
    assert lock.exists()


def test_looking_is_never_refused_and_touches_no_live_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    lock = stale_lock(tmp_path)
    guard(tmp_path, executes=False)
    assert lock.exists()


def test_the_locks_of_a_killed_workflow_are_removed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    lock = stale_lock(tmp_path)
    holder.kill()
    holder.wait()
    guard(tmp_path, executes=False)
    assert not lock.exists()


def test_looking_holds_nothing_afterwards(tmp_path: Path) -> None:
    guard(tmp_path, executes=False)
    run = [sys.executable, "-c", HOLD, str(tmp_path)]
    assert subprocess.run(run, input="", capture_output=True, text=True, timeout=60).stdout == "held\n"
