"""The process that verifiers run in: it calls one function again and again until it is killed."""

from __future__ import annotations

import math
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

GRACE = 5  # seconds after which a call ends this process by itself, should nobody be left to kill it


def serve(descriptor: int) -> None:
    """Answer calls that come over a connection: first a pickled function and its time limit, then arguments.

    Every answer is a pair: whether all went well, and what was returned, or why nothing was.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the whole group; the parent decides
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the system ends the process, whatever code it is in
    connection = Connection(descriptor)
    try:
        content, seconds = connection.recv()
        function = _answer(connection, _prepared, (content,), send=False)
        while function is not None:
            arguments = connection.recv()
            signal.alarm(math.ceil(seconds) + GRACE)
            _answer(connection, function, arguments)
            signal.alarm(0)
    except (EOFError, OSError):
        pass  # the parent has ended
    sys.exit(0)


def _prepared(content: bytes) -> Any:
    function = pickle.loads(content)
    prepare = getattr(function, "prepare", None)
    if prepare is not None:
        prepare()
    return function


def _answer(connection: Connection, function: Any, arguments: tuple[Any, ...], *, send: bool = True) -> Any:
    """Call the function and send what came of it (``send``: what it returned as well); return what it returned."""
    try:
        found = function(*arguments)
        connection.send((True, found if send else None))
        return found
    except BaseException as error:  # whatever a user's function raises, sys.exit included
        connection.send((False, _said(error)))
    return None


def _said(error: BaseException) -> str:
    name = type(error).__name__
    return str(error) if name in ("NoVerdictError", "UserError") else f"{name}: {error}"[:500]
