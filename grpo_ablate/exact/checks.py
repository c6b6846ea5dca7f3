"""Checks of JSON values, each failure one sentence that says where."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from grpo_ablate.errors import UserError, nearest

SUM_TOLERANCE = 1e-6  # probabilities written with few digits


def kind(value: Any) -> str:
    """Return what a JSON value is, for a sentence."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"the string {value!r}" if isinstance(value, str) else json.dumps(value)


def record(value: Any, where: str, keys: Collection[str], required: Collection[str] = ()) -> dict[str, Any]:
    """Return an object whose keys are known and whose required keys are there."""
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object with {', '.join(required or keys)}, found {kind(value)}.")
    for key in value:
        if key not in keys:
            raise UserError(f"{where}: unknown key '{key}'; {nearest(key, keys)}")
    for key in required:
        if key not in value:
            raise UserError(f"{where}: '{key}' is not there.")
    return value


def filled_list(value: Any, where: str, key: str, content: str) -> list[Any]:
    """Return a list that is not empty."""
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else kind(value)
        raise UserError(f"{where}: '{key}' must be a list of {content}, found {found}.")
    return value


def number(value: Any, where: str, key: str) -> float:
    """Return a finite number as float64 holds it."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    except OverflowError:
        pass
    raise UserError(f"{where}: '{key}' must be a finite number, found {kind(value)}.")


def whole(value: Any, where: str, key: str, least: int, most: int) -> int:
    """Return a whole number between two bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UserError(f"{where}: '{key}' must be a whole number from {least} to {most}, found {kind(value)}.")
    return value


def positive_probability(value: Any, where: str, key: str) -> float:
    """Return a probability above 0."""
    found = number(value, where, key)
    if not 0 < found <= 1:
        raise UserError(f"{where}: '{key}' must be above 0 and at most 1, found {kind(value)}.")
    return found


def vector(value: Any, where: str, key: str, size: int | None = None) -> list[float]:
    """Return a list of finite numbers, of the given size where one is given."""
    values = [number(item, where, key) for item in filled_list(value, where, key, "numbers")]
    if size is not None and len(values) != size:
        raise UserError(f"{where}: '{key}' has {len(values)} numbers, expected {size}.")
    return values


def sums_to_one(values: list[float], where: str, key: str) -> list[float]:
    """Return probabilities divided by their sum, which must be 1 to within rounding."""
    total = math.fsum(values)
    if abs(total - 1) > SUM_TOLERANCE:
        raise UserError(f"{where}: the values of '{key}' sum to {total:.9g}, expected 1.")
    return [value / total for value in values]
