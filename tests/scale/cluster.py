"""A real SLURM cluster of one node: this machine, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=300
KillWait=30
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no cluster can be started here; empty where one can."""
    absent = [name for name in (*DAEMONS, "sbatch", "squeue") if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "the daemons need root"


@contextmanager
def cluster(folder: Path, gpus: int = 0) -> Iterator[dict[str, str]]:
    """Start munge and SLURM in a new folder, which others may enter; yield the environment of their clients."""
    for name in ("state", "spool", "bin", "."):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - 512
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host, folder=folder, controller=_free_port(), daemon=_free_port(),
            processors=os.cpu_count(), memory=memory, gpus=gpus,
        )
    )  # fmt: skip
    for number in range(gpus):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={folder}/gpu{number}\n" for number in range(gpus)))
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin{os.pathsep}{_path()}",
        "SLURM_CONF": f"{folder}/slurm.conf",
    }
    # Snakemake's plugin calls srun without the environment's SLURM variables. It asks scontrol how long finished
    # jobs are remembered: were that slow once, it would turn to sacct, and wait for ever where there is none.
    srun, scontrol = (shutil.which(name, path=_path()) for name in ("srun", "scontrol"))
    for name, script in {
        "srun": f'SLURM_CONF={folder}/slurm.conf exec {srun} "$@"',
        "scontrol": f'[ "$*" = "show config" ] && exec grep MinJobAge {folder}/slurm.conf\nexec {scontrol} "$@"',
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    munge = ["--foreground", "--force", f"--key-file={key}", *_munge_files(folder)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in (["munged", *munge], ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c"]):
            with (folder / f"{command[0]}.said").open("wb") as said:
                started.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
            if command[0] == "munged":
                _until(lambda: (folder / "munge.socket").exists(), started, folder)
        _until(lambda: "idle" in _says(environment, "sinfo", "--noheader", "--format=%T"), started, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--full", "--user=root"], env=environment, capture_output=True, timeout=60)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def jobs(environment: dict[str, str], state: str = "R") -> list[str]:
    """Return the numbers of the jobs in a state."""
    return _says(environment, "squeue", "--noheader", "--format=%i", f"--states={state}").split()


def _munge_files(folder: Path) -> list[str]:
    names = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    return [f"--{option}={folder / name}" for option, name in names.items()]


def _says(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout


def _until(condition: object, started: list[subprocess.Popen[bytes]], folder: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        alive = all(process.poll() is None for process in started)
        if not alive or time.monotonic() > end:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.*[gd]")))
            raise AssertionError(f"the cluster did not come up:\n{logs}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _path() -> str:
    """Return a search path with the folders of daemons, which not every user has."""
    return os.pathsep.join([os.environ["PATH"], "/usr/local/sbin", "/usr/sbin", "/sbin"])
