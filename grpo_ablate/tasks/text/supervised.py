"""Calls under a time limit: no signal stops a thread or C code, so they are made in processes to be killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from grpo_ablate.errors import UserError
from grpo_ablate.tasks.text.worker import BY_THE_CLOCK, CLOCK, COMPUTING, serve

GRACE = 10.0  # seconds by which a process may be late to end itself
START = 300.0  # seconds that a process may take to import what it needs
PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import {function}; {function}({descriptor})"
MOST_WORKERS = 8
FEW = 16  # calls for which no further process is started


@dataclass(frozen=True)
class Outcome:
    """What a call returned, or why it returned nothing."""

    value: Any = None
    reason: str | None = None


class Worker:
    """One process; it starts with its first call, and again with the first call after it was killed."""

    def __init__(self, function: bytes, seconds: float):
        self.function, self.seconds = function, seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Connection | None = None

    def call(self, arguments: tuple[Any, ...]) -> Outcome:
        """Return what the function makes of the arguments. Raises UserError where it cannot be had at all."""
        if self.process is not None and self.process.poll() is not None:
            self.stop()  # it ended between two calls, which is no fault of this one
        if self.process is None:
            self.start()
        return self._answered(arguments, BY_THE_CLOCK * self.seconds + GRACE)

    def start(self) -> None:
        """Start the process and wait until it has imported what the function needs."""
        self.connection, theirs = Pipe()
        program = PROGRAM.format(
            path=sys.path, module=serve.__module__, function=serve.__name__, descriptor=theirs.fileno()
        )
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,  # so that what it starts ends with it
            )
        ready = self._answered((self.function, self.seconds), START)
        if ready.reason is not None:
            self.stop()
            raise UserError(f"the verifier cannot be started: {ready.reason.rstrip('.')}.")

    def _answered(self, message: tuple[Any, ...], seconds: float) -> Outcome:
        assert self.connection is not None
        try:
            self.connection.send(message)
            if self.connection.poll(seconds):
                sound, value = self.connection.recv()
                return Outcome(value) if sound else Outcome(reason=value)
            ended = -CLOCK  # it should have, and did not
            self.stop()
        except (EOFError, OSError):
            ended = self.stop()
        if ended == -COMPUTING:
            return Outcome(reason=f"took longer than {self.seconds:g} s")
        if ended == -CLOCK:
            return Outcome(reason=f"took longer than {BY_THE_CLOCK * self.seconds:g} s by the clock")
        how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
        return Outcome(reason=f"ended its process ({how})")

    def stop(self) -> int:
        """End the process and all that it started; return its exit code, or minus the signal that ended it."""
        process, self.process = self.process, None
        if self.connection is not None:
            self.connection.close()
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # one that has ended by itself, or waits for calls
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class Supervised:
    """A picklable function, called in up to eight processes, each call under a limit of ``seconds`` of computing.

    And of ten times as many by the clock, which a call that waits will meet.
    """

    def __init__(self, function: Callable[..., Any], seconds: float, workers: int | None = None):
        self.workers = [Worker(pickle.dumps(function), seconds) for _ in range(workers or processors())]
        self._finalizer = weakref.finalize(self, _stop, self.workers)

    def __call__(self, calls: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """Return the outcomes of the calls, in their order, whichever process makes which.

        Raises UserError where the function cannot be had in another process, as one that does not import.
        """
        outcomes = [Outcome()] * len(calls)
        numbers = count()  # its next() is one step, so that no two threads get the same number

        def work(worker: Worker) -> None:
            while (number := next(numbers)) < len(calls):
                outcomes[number] = worker.call(calls[number])

        busy = self.workers[: max(1, len(calls) // FEW)]
        if len(busy) == 1:
            work(busy[0])
        else:
            with ThreadPoolExecutor(len(busy)) as threads:
                list(threads.map(work, busy))
        return outcomes

    def close(self) -> None:
        """End the processes."""
        self._finalizer()


def processors() -> int:
    """Return how many processes may run side by side: as many as the job has threads, at most eight."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    allowed = int(stated) if stated.isdecimal() else len(os.sched_getaffinity(0))
    return max(1, min(MOST_WORKERS, allowed))


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop()
