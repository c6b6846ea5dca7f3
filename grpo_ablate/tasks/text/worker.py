"""The process that verifiers run in: it calls one function again and again until the system kills it.

The limit of a call is one of computing time, so that a busy machine fails no verdict; a call that waits, for a
network or for ever, meets the clock. Both timers end the process by the system's own hand, in whatever code it is,
and whether or not its parent still lives.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

BY_THE_CLOCK = 10  # times the limit of computing
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
COMPUTING, CLOCK = signal.SIGPROF, signal.SIGALRM  # what ends a process that reaches a limit


def serve(descriptor: int) -> None:
    """Answer calls that come over a connection: first a pickled function and its time limit, then arguments.

    Every answer is a pair: whether all went well, and what was returned, or why nothing was.
    """
    signal.signal(COMPUTING, signal.SIG_DFL)
    signal.signal(CLOCK, signal.SIG_DFL)
    for number in STOPS:  # what stops a whole job is the trainer's to heed: a call that it ended would be a fault
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)  # a process that a verifier starts must not keep it open
    connection = Connection(descriptor)
    try:
        content, seconds = connection.recv()
        ready, function = _called(_prepared, (content,))
        connection.send((ready, None if ready else function))
        while ready:
            arguments = connection.recv()
            _limit(seconds)
            answer = _called(function, arguments)
            _limit(0)
            connection.send(answer)
    except (EOFError, OSError):
        pass  # the parent has ended
    sys.exit(0)


def _limit(seconds: float) -> None:
    """Start both timers, or stop them (0)."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, BY_THE_CLOCK * seconds)


def _prepared(content: bytes) -> Any:
    function = pickle.loads(content)
    prepare = getattr(function, "prepare", None)
    if prepare is not None:
        prepare()
    return function


def _called(function: Any, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return whether a call went well, and what it returned, or why it returned nothing."""
    try:
        return True, function(*arguments)
    except BaseException as error:  # whatever a user's function raises, sys.exit included
        return False, _reason(error)


def _reason(error: BaseException) -> str:
    """Return why a call failed as a text that every file takes, whatever the error makes of itself."""
    name = type(error).__name__
    try:
        said = str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return f"{name}, whose message cannot be had"
    return said if name in ("NoVerdictError", "UserError") else f"{name}: {said}"[:500]
