"""Starts the sides' processes and lets them work in turn: A B C A B C, so that all meet the same machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Slice
from grpo_ablate.errors import UserError

# One thread a process: two processes of two threads each on two cores are five to ten times slower.
ENVIRONMENT = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")},
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass(frozen=True)
class Side:
    """One competitor: what its processes run, and how many rounds make a slice."""

    name: str
    members: int
    rounds: int
    evaluations: tuple[int, ...] = ()  # samples a prompt of the evaluations to time afterwards


@dataclass(frozen=True)
class Result:
    """What a side did, slice by slice and process by process."""

    side: Side
    start_up: tuple[float, ...]  # seconds from starting a process to its first round, per process
    slices: tuple[tuple[Slice, ...], ...]  # [slice][process]
    evaluations: tuple[tuple[float, ...], ...] = ()  # seconds, [process][as the side names them]


class Process:
    """One worker: a subprocess that answers orders, its stderr kept to say why it failed."""

    def __init__(self, job: Job):
        self.job = job
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it lives as long as the process
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grpo_ablate.bench.worker", job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )

    def order(self, message: dict[str, Any]) -> None:
        """Send one order."""
        try:
            print(json.dumps(message), file=_open(self.process.stdin), flush=True)
        except BrokenPipeError:
            raise self.failed() from None

    def reply(self) -> dict[str, Any]:
        """Wait for one reply."""
        line = _open(self.process.stdout).readline()
        if not line:
            raise self.failed()
        return dict(json.loads(line))

    def start_up(self) -> float:
        """Wait until the worker is ready for its first round; return the seconds since it was started."""
        self.reply()
        return time.perf_counter() - self.began

    def failed(self) -> UserError:
        """Return the error of a worker that ended, with the last thing that it said."""
        self.process.wait()
        self.errors.seek(0)
        said = [line.strip() for line in self.errors if line.strip()]
        return UserError(
            f"the {self.job.side} side of the benchmark stopped (exit code {self.process.returncode}): "
            f"{said[-1] if said else 'it said nothing'}"
        )

    def close(self) -> None:
        """End the worker."""
        _open(self.process.stdin).close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _open(self.process.stdout).close()
        self.errors.close()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@dataclass
class _Team:
    """The processes of a side."""

    side: Side
    processes: list[Process]
    start_up: tuple[float, ...] = ()
    slices: list[tuple[Slice, ...]] = field(default_factory=list)

    def work(self, rounds: int) -> tuple[Slice, ...]:
        """Let all processes do that many rounds at the same time."""
        for process in self.processes:
            process.order({"rounds": rounds})
        return tuple(Slice(**process.reply()) for process in self.processes)


def measure(
    sides: Sequence[Side],
    job: Callable[[Side, int], Job],
    *,
    processes: int,
    slices: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Return what each side did in ``slices`` slices, taken in turn, after a first round that is not counted.

    ``job`` makes the job of a side's process. All processes of a side work at the same time; those of the other
    sides wait meanwhile.

    Raises:
        UserError: a process ended before its time.
    """  # fmt: skip
    with ExitStack() as stack:
        teams = []
        for side in sides:
            several = f", {side.members} models a process" if side.members > 1 else ""
            say(f"starting {side.name}{several}")
            started = []
            for number in range(processes):
                started.append(Process(job(side, number)))
                stack.callback(started[-1].close)
            teams.append(_Team(side, started, tuple(process.start_up() for process in started)))
            teams[-1].work(1)  # caches, lazily built kernels
        for number in range(slices):
            say(f"slice {number + 1} of {slices}")
            for team in teams:
                team.slices.append(team.work(team.side.rounds))
        return [Result(team.side, team.start_up, tuple(team.slices), _evaluations(team)) for team in teams]


def _evaluations(team: _Team) -> tuple[tuple[float, ...], ...]:
    if not team.side.evaluations:
        return ()
    for process in team.processes:
        process.order({"evaluate": list(team.side.evaluations)})
    return tuple(tuple(process.reply()["evaluation"]) for process in team.processes)
