"""Starts Snakemake in a project and kills it, its trainers, or both."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import psutil
from project import Project, command, environment


def start(project: Project) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("--cores", "2"),
        cwd=project.path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the moment to kill at never came"
        time.sleep(0.02)


def workers(snakemake: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that work for this Snakemake, youngest first."""
    return list(reversed(psutil.Process(snakemake.pid).children(recursive=True)))


def kill(snakemake: subprocess.Popen[bytes], victim: str) -> None:
    children = workers(snakemake)
    if victim in ("snakemake", "both"):
        snakemake.send_signal(signal.SIGKILL)
    if victim in ("child", "both"):
        for child in children[: 1 if victim == "child" else None]:
            if child.is_running():
                child.kill()
    snakemake.wait(timeout=120)
