"""One live workflow in a folder: a lock that the kernel frees when its holder dies, however it dies.

Snakemake's own lock files survive a SIGKILL and then refuse every later start. Whoever holds this lock
knows that no other workflow is alive and removes them; nobody else does.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from grpo_ablate.errors import UserError

_held: list[int] = []  # descriptors kept open for the life of the process; never inherited by jobs


def guard(folder: Path, *, executes: bool, patience: float = 1.0) -> None:
    """Refuse a second live workflow in ``folder``; clear the lock files of a dead one.

    A call that only looks (``executes`` false: a dry run, a report) is never refused and holds nothing
    afterwards. ``patience`` is how many seconds to wait for such a call to let go.

    Raises:
        UserError: another workflow is running in the folder.
    """
    state = folder / ".snakemake"
    try:
        state.mkdir(exist_ok=True)
        lock = os.open(state / "grpo-ablate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if not executes:
            return
        raise UserError(f"{state}: cannot be written: {error.strerror}.") from None
    if not _acquired(lock, patience if executes else 0.0):
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        if executes:
            process = f" (process {holder})" if holder else ""
            raise UserError(f"another workflow is running in this folder{process}; wait for it or stop it.")
        return
    for stale in (state / "locks").glob("*.lock"):
        stale.unlink(missing_ok=True)
    if executes:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        _held.append(lock)
    else:
        os.close(lock)


def _acquired(lock: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
