"""Records of tensors as flat dictionaries of tensors and back, for checkpoints."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

Record = TypeVar("Record")


def pack(record: Any) -> dict[str, Tensor]:
    """Return the tensors of a dataclass by dotted name; fields that are None leave no trace.

    Fields may be tensors, dictionaries of tensors, and records.
    """
    found: dict[str, Tensor] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif isinstance(value, dict):
            found |= {f"{field.name}.{name}": tensor for name, tensor in value.items()}
        elif is_dataclass(value):
            found |= {f"{field.name}.{name}": tensor for name, tensor in pack(value).items()}
    return found


def unpack(kind: type[Record], tensors: dict[str, Tensor]) -> Record:
    """Return the record of type ``kind`` whose ``pack`` gave ``tensors``."""
    record: Any = kind
    hints = _hints(record)
    values: dict[str, Any] = {}
    for field in fields(record):
        part = within(tensors, f"{field.name}.")
        hint = hints[field.name]
        if field.name in tensors:
            values[field.name] = tensors[field.name]
        elif get_origin(hint) is dict:
            values[field.name] = part
        elif not part:
            values[field.name] = None
        else:
            values[field.name] = unpack(_record_type(hint), part)
    return kind(**values)


def within(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names start with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _record_type(hint: Any) -> Any:
    """Return the record type in ``Record | None`` or ``Record``."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if is_dataclass(part))
    return hint
