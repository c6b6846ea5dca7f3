"""One process at a time in a run's scratch folder, for as long as the process lives."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_ablate.errors import UserError

PATIENCE = 600.0  # seconds to wait for another process before giving up


@contextmanager
def exclusive(
    folder: Path, patience: float = PATIENCE, stop: Callable[[], str | None] = lambda: None
) -> Iterator[None]:
    """Hold the folder's lock; wait for a process that holds it already.

    The kernel lets go of the lock when its holder dies, however it dies. A holder that its workflow left
    behind stops at its next checkpoint, so that waiting ends; the waiter then continues from there. Raises
    UserError after ``patience`` seconds, when ``stop`` gives a reason, or where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}.") from None
    try:
        _acquire(handle, folder, patience, stop)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Return whether a living process holds the folder's lock."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _acquire(handle: int, folder: Path, patience: float, stop: Callable[[], str | None]) -> None:
    began, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
        holder = os.pread(handle, 20, 0).decode(errors="replace").strip() or "unknown"
        reason = stop()
        if reason:
            raise UserError(f"{folder}: stopped while waiting for process {holder}: {reason}.")
        if waited > patience:
            raise UserError(
                f"{folder}: process {holder} has been training this run for the {patience:.0f} s that this one "
                "waited; stop it, or let it finish and run this command again."
            )
        if waited > 1 and not told:  # status looks at the lock for a moment; that is nothing to tell
            told = True
            print(f"waiting for process {holder}, which trains this run ({folder})", file=sys.stderr)
        time.sleep(0.05)
