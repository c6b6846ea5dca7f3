"""Requests to stop: signals, and the death of the process that asked for the run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from grpo_ablate.errors import UserError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Why to stop at the next round's boundary, or nothing yet."""

    def __init__(self, with_parent: bool = False):
        self.reason: str | None = None
        self.parent = os.getppid() if with_parent else None

    def pending(self) -> str | None:
        """Return the reason to stop, or None."""
        if self.reason is None and self.parent is not None and os.getppid() != self.parent:
            self.reason = "the process that started it ended"
        return self.reason

    def heed(self, before: str) -> None:
        """Raise UserError where there is a reason to stop ``before`` something begins."""
        if reason := self.pending():
            raise UserError(f"stopped before {before}: {reason}; the same command goes on from there.")


_heard: list[StopRequest] = []  # the request of the outermost `stop_requests`, while there is one


@contextmanager
def stop_requests(with_parent: bool, *, once: bool = False) -> Iterator[StopRequest]:
    """Turn SIGTERM, SIGINT and SIGUSR1 into a request, for the main thread; a second signal acts as ever.

    Not with ``once``: where a signal reaches a process by several ways, it is one request all the same. Inside
    another one it yields the other's request, so that nothing asked for in between is lost.
    """
    if _heard:
        yield _heard[0]
        return
    request = StopRequest(with_parent)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def receive(number: int, frame: FrameType | None) -> None:
        request.reason = signal.Signals(number).name
        if not once:
            signal.signal(number, before[signal.Signals(number)])

    for number in SIGNALS:
        signal.signal(number, receive)
    _heard.append(request)
    try:
        yield request
    finally:
        _heard.clear()
        for number in SIGNALS:
            signal.signal(number, before[number])
