"""The memory of a process: its peak, and pages that are kept for the next tensor; no result depends on either."""

from __future__ import annotations

import ctypes
import resource
import sys

# Parameters of glibc's mallopt (malloc.h), and the largest values it takes for them.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_TRIM, LARGEST_MMAP = 1 << 30, 1 << 25


def peak_memory() -> int:
    """Return the most bytes that this process has held at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Let glibc keep the pages that a training step frees.

    Else it hands them back to the system, which clears them anew for the next step: a tenth of the time of a
    small model. Other C libraries are left as they are.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(MMAP_THRESHOLD, LARGEST_MMAP)
            mallopt(TRIM_THRESHOLD, LARGEST_TRIM)
