"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from grpo_ablate.errors import UserError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside and rename it into place, so that no reader and no killed process leaves half of it.

    Raises:
        UserError: the folder cannot be made or written to, or the disk is full.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None
