"""Leases of GPUs: no two living jobs share one, a dead one holds none, whoever waits can be stopped."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machine import fake_machine, uuid

from grpo_ablate.errors import UserError
from grpo_ablate.runs.devices import FOLDER, HELD, ORDER, VISIBLE, Device, installed, leased, visible

# Leases, says what CUDA would see, and holds on until its input ends.
JOB = """
import os, sys
from grpo_ablate.runs.devices import leased
with leased(int(sys.argv[1])) as devices:
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.readline()
"""


class Job:
    """A process that holds devices until it is told to end."""

    def __init__(self, environment: dict[str, str], count: int = 1, umask: int = -1):
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(count)],
            env=environment, umask=umask, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)

    def devices(self) -> list[str] | None:
        """The devices that it was given, None while it waits."""
        if not hasattr(self, "given"):
            line = self.process.stdout.readline()
            if not line:
                return None
            self.given = line.strip().split(",")
        return self.given

    def end(self) -> None:
        self.process.communicate("\n", timeout=60)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    found: list[Job] = []
    yield found
    for job in found:
        job.process.kill()
        job.process.communicate()


def served(jobs: list[Job], count: int, seconds: float = 60) -> list[Job]:
    """Wait until so many of the jobs have devices; return those."""
    end = time.monotonic() + seconds
    while len(found := [job for job in jobs if job.devices() is not None]) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} jobs were served"
        time.sleep(0.02)
    return found


def test_six_jobs_on_four_devices_never_share_one_and_all_are_served(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 4)
    jobs += [Job(environment) for _ in range(6)]
    first = served(jobs, 4)
    time.sleep(0.5)
    assert [job.devices() is not None for job in jobs].count(True) == 4
    held = [device for job in first for device in job.devices()]
    assert sorted(held) == ["0", "1", "2", "3"]
    freed = first[2].devices()
    first[2].end()
    fifth = next(job for job in served(jobs, 5) if job not in first)
    assert fifth.devices() == freed
    for job in first[:2]:
        job.end()
    served(jobs, 6)
    living = [device for job in jobs if job.process.poll() is None for device in job.devices()]
    assert len(living) == len(set(living)) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_device_of_a_job_that_died_is_free_again(tmp_path: Path, jobs: list[Job], number: int) -> None:
    environment = fake_machine(tmp_path, 1)
    jobs.append(Job(environment))
    served(jobs, 1)
    jobs.append(Job(environment))
    time.sleep(0.5)
    assert jobs[1].devices() is None
    jobs[0].process.send_signal(number)
    served(jobs[1:], 1)
    assert jobs[1].devices() == ["0"]


def test_a_job_that_waits_says_for_what_and_for_whom(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 2)
    jobs.append(Job(environment, 2))
    served(jobs, 1)
    jobs.append(Job(environment))
    assert jobs[1].process.stderr.readline() == (
        f"waiting for 1 of 2 GPUs, leased to process {jobs[0].process.pid}\n"
    )


def test_a_job_that_wants_all_devices_is_not_overtaken(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 2)
    jobs.append(Job(environment))
    served(jobs, 1)
    jobs.append(Job(environment, 2))
    time.sleep(0.5)
    jobs.append(Job(environment))  # one device is free, and the job before it in the queue wants two
    time.sleep(0.5)
    assert jobs[1].devices() is None and jobs[2].devices() is None
    jobs[0].end()
    served(jobs[1:2], 1)
    assert jobs[1].devices() == ["0", "1"]
    assert jobs[2].devices() is None
    jobs[1].end()
    served(jobs[2:], 1)


def test_a_job_does_not_wait_behind_one_that_may_use_other_devices(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 2)
    jobs.append(Job(environment | {VISIBLE: "1"}))
    served(jobs, 1)
    jobs.append(Job(environment | {VISIBLE: "1"}))
    time.sleep(0.5)
    jobs.append(Job(environment))
    served(jobs[2:], 1)
    assert (jobs[1].devices(), jobs[2].devices()) == (None, ["0"])


def test_an_outer_setting_is_kept_to_and_the_lease_is_of_the_device_itself(
    tmp_path: Path, jobs: list[Job]
) -> None:
    environment = fake_machine(tmp_path, 4)
    jobs.append(Job(environment | {VISIBLE: "2"}))
    served(jobs, 1)
    assert jobs[0].devices() == ["2"]
    jobs.append(Job(environment | {VISIBLE: f"{uuid(2)},{uuid(3)}"}))  # the same device by its other name
    served(jobs, 2)
    assert jobs[1].devices() == [uuid(3)]


def test_a_child_holds_the_devices_of_its_parent_beyond_its_death(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 1)
    child = "from grpo_ablate.runs.devices import leased; import sys\n"
    child += "with leased(0):\n    print('holding', flush=True); sys.stdin.readline()\n"
    parent = (
        "import subprocess, sys\nfrom grpo_ablate.runs.devices import leased\nwith leased(1):\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], stdin=sys.stdin)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "holding\n"
    process.kill()
    process.wait()
    jobs.append(Job(environment))
    time.sleep(1)
    assert jobs[0].devices() is None
    process.stdin.close()  # the orphan ends
    served(jobs, 1)


def test_a_request_to_stop_ends_the_wait(tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    environment = fake_machine(tmp_path, 1)
    jobs.append(Job(environment))
    served(jobs, 1)
    for name in ("PATH", FOLDER):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.delenv(VISIBLE, raising=False)
    refused = pytest.raises(UserError, match=r"^stopped while waiting for a free GPU: SIGTERM\.$")
    with refused, leased(1, lambda: "SIGTERM"):
        pytest.fail("leased what another holds")
    assert VISIBLE not in os.environ


@pytest.mark.parametrize(
    ("count", "wanted", "setting", "sentence"),
    [
        (0, 1, None, r"--gpus 1: no GPU was found here \(nvidia-smi names none\); `grpo-ablate doctor` says what"),
        (2, 3, None, r"--gpus 3: 2 GPUs on this machine; ask for fewer"),
        (4, 2, "3", r"--gpus 2: 1 GPU left by CUDA_VISIBLE_DEVICES=3; ask for fewer"),
        (4, 1, "", r"--gpus 1: 0 GPUs left by CUDA_VISIBLE_DEVICES=; ask for fewer"),
        (4, 1, "2,2", r"--gpus 1: 0 GPUs left by CUDA_VISIBLE_DEVICES=2,2; ask for fewer"),
        (4, 3, f"{uuid(1)},{uuid(3)}", r"--gpus 3: 2 GPUs left by CUDA_VISIBLE_DEVICES=GPU-"),
    ],
)
def test_more_devices_than_there_are_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, wanted: int, setting: str | None, sentence: str
) -> None:
    environment = fake_machine(tmp_path, count)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.setenv(FOLDER, environment[FOLDER])
    monkeypatch.delenv(VISIBLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(VISIBLE, setting)
    with pytest.raises(UserError, match=sentence), leased(wanted):
        pytest.fail("leased what there is not")


def folder_in_the_way(path: Path) -> str:
    path.write_text("")
    return str(path)


def folder_below_a_file(path: Path) -> str:
    path.write_text("")
    return str(path / "leases")


def folder_of_links(path: Path) -> str:
    path.mkdir()
    (path / uuid(0)).symlink_to(path / "elsewhere")
    return str(path)


@pytest.mark.parametrize("made", [folder_in_the_way, folder_below_a_file, folder_of_links])
def test_a_folder_in_which_no_lease_can_be_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], str]
) -> None:
    monkeypatch.setenv("PATH", fake_machine(tmp_path, 1)["PATH"])
    monkeypatch.setenv(FOLDER, made(tmp_path / "place"))
    monkeypatch.delenv(VISIBLE, raising=False)
    sentence = rf"place.*: GPUs cannot be leased there: [A-Z].*; name another folder in {FOLDER}\.$"
    with pytest.raises(UserError, match=sentence), leased(1):
        pytest.fail("leased without a lease")


def test_leases_are_made_for_all_users_whatever_the_umask(tmp_path: Path, jobs: list[Job]) -> None:
    environment = fake_machine(tmp_path, 1)
    jobs.append(Job(environment, umask=0o077))
    served(jobs, 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "leases").iterdir()}
    assert uuid(0) in modes and set(modes.values()) == {0o666}
    assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o1777


def refuse(monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    """Let this process be one that may not open files with any of these flags."""
    plain = os.open

    def refusing(path: Path, wanted: int, mode: int = 0o777) -> int:
        if wanted & flags:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path, wanted, mode)

    monkeypatch.setattr("grpo_ablate.runs.devices.os.open", refusing)


def test_a_lease_that_another_user_made_unwritable_is_held_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[Job]
) -> None:
    environment = fake_machine(tmp_path, 1)
    for name in ("PATH", FOLDER):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.delenv(VISIBLE, raising=False)
    with leased(1):
        pass  # the files are there
    refuse(monkeypatch, os.O_RDWR)
    with leased(1):
        jobs.append(Job(environment))
        time.sleep(0.5)
        assert jobs[0].devices() is None
    served(jobs, 1)


def test_a_folder_that_this_user_cannot_write_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = fake_machine(tmp_path, 1)
    for name in ("PATH", FOLDER):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.delenv(VISIBLE, raising=False)
    refuse(monkeypatch, os.O_CREAT)
    sentence = r"queue-\w+: GPUs cannot be leased there: Permission denied; name another folder in "
    with pytest.raises(UserError, match=sentence), leased(1):
        pytest.fail("leased without a lease")


def test_the_environment_is_as_before_after_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = fake_machine(tmp_path, 2)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.setenv(FOLDER, environment[FOLDER])
    monkeypatch.setenv(VISIBLE, "1")
    monkeypatch.delenv(ORDER, raising=False)
    with leased(1) as devices:
        assert [device.uuid for device in devices] == [uuid(1)]
        assert os.environ[VISIBLE] == "1" and os.environ[HELD].endswith(uuid(1))
        assert os.environ[ORDER] == "PCI_BUS_ID"  # else CUDA may count the devices otherwise, fastest first
    assert os.environ[VISIBLE] == "1" and HELD not in os.environ and ORDER not in os.environ
    with leased(0) as devices:
        assert devices == () and os.environ[VISIBLE] == "1"


def test_devices_are_read_as_nvidia_smi_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/nvidia-smi"
    script.write_text("#!/bin/sh\necho '0, GPU-1f, NVIDIA H200, 143771'\necho '1, GPU-2e, GB10, [N/A]'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert installed() == (
        Device("0", "GPU-1f", "NVIDIA H200", 143771 * 2**20),
        Device("1", "GPU-2e", "GB10", 0),
    )
    script.write_text("#!/bin/sh\nprintf '0, GPU-1f, \\377, 5\\n[N/A], [Unknown Error], [N/A], [N/A]\\n'\n")
    assert installed() == (Device("0", "GPU-1f", "\ufffd", 5 * 2**20),)
    script.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert installed() == ()


@pytest.mark.parametrize(
    "setting", [None, "2, 0", "1,-1,0", "", "-1", "NoDevFiles", "0,0,1", "0,1,0", "0,1,2", "MIG-9a,MIG-8b"]
)
def test_a_setting_is_read_as_torch_reads_it(monkeypatch: pytest.MonkeyPatch, setting: str | None) -> None:
    import torch

    monkeypatch.delenv(VISIBLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(VISIBLE, setting)
    devices = [Device(str(n), uuid(n), "x", 1) for n in range(64)]
    found = [device.address for device in visible(devices, setting)]
    assert found == [str(entry) for entry in torch.cuda._parse_visible_devices()]


def test_the_beginning_of_a_uuid_means_the_only_device_that_has_it() -> None:
    devices = [Device(str(n), uuid(n), "x", 1) for n in range(3)]
    assert [device.uuid for device in visible(devices, "GPU-00000002,GPU-00000000")] == [uuid(2), uuid(0)]
    assert visible(devices, "GPU-0000000") == ()  # of three
