"""The one exception for mistakes a user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EMPTY = "''"  # how an empty name is shown


class UserError(Exception):
    """A sentence that names the file, row or key at fault and what was expected; shown without a traceback."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a clause that offers the nearest valid name, or lists them all when none is near.

    >>> nearest("groupsize", ["group_size", "prompts"])
    "did you mean 'group_size'?"
    >>> nearest("trl", ["verl-0.9", "trl-1.16"])
    "did you mean 'trl-1.16'?"
    >>> nearest("xyz", ["b", "a"])
    'expected one of a, b.'
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [n for n in names if name and name in n]
    return (
        f"did you mean '{close[0]}'?"
        if close
        else f"expected one of {', '.join(name or EMPTY for name in names)}."
    )
