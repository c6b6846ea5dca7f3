"""Paths as a spec names them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def named_path(text: str) -> Path:
    """Return the path that a text names; ``~`` is a home, and stays as it is where there is no such user.

    >>> named_path("~nobody-of-this-name/data.jsonl")
    PosixPath('~nobody-of-this-name/data.jsonl')
    """
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)
