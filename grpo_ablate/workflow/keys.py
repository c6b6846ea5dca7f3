"""Key files: the small inputs by which Snakemake decides what is out of date.

Every step has one key file: its first line stands for all that the outputs depend on beside their other
inputs (the code, the rows and labels of an experiment), which may follow in words. It is written at parse
time, only when it changes, and dated far in the past unless the outputs that exist record another key; then
it is dated after them. So only contents count: neither a clone, nor a copy, nor a lost ``.snakemake`` folder
reruns anything.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from grpo_ablate.errors import UserError

LONG_AGO = 1_000_000_000  # seconds since the epoch: older than any output


def settle(path: Path, key: str, recorded: str | None, made: Path, words: str = "") -> None:
    """Write the key file and date it against the output ``made``, which records the key ``recorded``.

    ``recorded`` is None where there is no such output, ``words`` what a reader may want to see. A key that
    replaces another one says so, since Snakemake ignores a newer input whose content it has seen before.

    Raises:
        UserError: the file cannot be written.
    """
    fresh = recorded is None or recorded == key
    text = "\n".join([key, *([] if fresh else [f"replaces {recorded}"]), *([words] if words else []), ""])
    try:
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            aside.write_text(text)
            aside.replace(path)
        dated = path.stat().st_mtime
        if fresh:
            if dated != LONG_AGO:
                os.utime(path, (LONG_AGO, LONG_AGO))
        elif dated <= (output := made.stat().st_mtime):
            after = max(time.time(), output + 1)
            os.utime(path, (after, after))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None


def first_line(path: Path) -> str | None:
    """The key in a key file, or in the copy that a finished step keeps of it; None where there is none."""
    try:
        return path.read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
