"""JSON as users write it: a key that stands twice in one object is refused."""

from __future__ import annotations

import json
from typing import Any

from grpo_ablate.errors import UserError


def parse_json(text: str, source: str) -> Any:
    """Return what a JSON text says; raises UserError naming ``source``.

    >>> parse_json('{"a": [1, null]}', "x.json")
    {'a': [1, None]}
    """
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, source))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: is not JSON ({error}).") from error


def _object(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    """Return a JSON object; a key that stands there twice has no one value."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"{source}: the key '{shown(key)}' is written twice in one object.")
        found[key] = value
    return found


def shown(label: Any) -> str:
    """Return a name or key as it is printed: on one line, whatever characters it has.

    >>> shown("prompt-1"), shown(7), shown("two\\nlines")
    ('prompt-1', '7', "'two\\\\nlines'")
    """
    return str(label) if str(label).isprintable() else repr(label)
