"""A finding: one number that was enumerated, what it should be, and whether it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Numbers = tuple[float, ...]
Given = float | Sequence[float] | torch.Tensor

EXACT = 1e-12  # agreement of two exact calculations in double precision


@dataclass(frozen=True)
class Finding:
    """One line of the table of propositions.

    ``equals``: |value - expected| <= tolerance in every entry. ``exceeds`` and ``falls-below``: by more than
    ``tolerance``. ``differs``: in some entry by more than ``tolerance``.
    """

    case: str  # the policy, the row, the group size
    quantity: str
    value: Numbers
    expected: Numbers
    relation: Literal["equals", "exceeds", "falls-below", "differs"]
    tolerance: float
    source: str  # where the expected value comes from

    @property
    def difference(self) -> float:
        """Return value - expected where it is largest in size; with two vectors, the size alone."""
        gaps = [a - b for a, b in zip(self.value, self.expected, strict=True)]
        return gaps[0] if len(gaps) == 1 else max(abs(gap) for gap in gaps)

    @property
    def holds(self) -> bool:
        """Return whether the relation holds; never with a number that does not exist."""
        if any(math.isnan(number) for number in (*self.value, *self.expected)):
            return False
        if self.relation == "exceeds":
            return self.difference > self.tolerance
        if self.relation == "falls-below":
            return self.difference < -self.tolerance
        agrees = abs(self.difference) <= self.tolerance
        return agrees if self.relation == "equals" else not agrees


def numbers(given: Given) -> Numbers:
    """Return one number or a vector as a tuple of floats."""
    if isinstance(given, torch.Tensor):
        return tuple(float(value) for value in given.detach().flatten())
    return tuple(float(value) for value in (given if isinstance(given, Sequence) else [given]))


def equals(case: str, quantity: str, value: Given, expected: Given, source: str, within: float = EXACT) -> Finding:
    """Return the finding that two values agree to ``within``."""
    return Finding(case, quantity, numbers(value), numbers(expected), "equals", within, source)


def exceeds(case: str, quantity: str, value: Given, expected: Given, source: str, by: float = EXACT) -> Finding:
    """Return the finding that a number is larger than another by more than ``by``."""
    return Finding(case, quantity, numbers(value), numbers(expected), "exceeds", by, source)


def falls_below(
    case: str, quantity: str, value: Given, expected: Given, source: str, by: float = EXACT
) -> Finding:
    """Return the finding that a number is smaller than another by more than ``by``."""
    return Finding(case, quantity, numbers(value), numbers(expected), "falls-below", by, source)


def differs(case: str, quantity: str, value: Given, expected: Given, source: str, by: float = EXACT) -> Finding:
    """Return the finding that two values differ by more than ``by``."""
    return Finding(case, quantity, numbers(value), numbers(expected), "differs", by, source)


def printed(digits: int) -> float:
    """Return the tolerance of a number printed with that many decimals: half a unit of the last one."""
    return 0.5 * 10.0**-digits + 1e-12


def largest_gap(pairs: Iterable[tuple[Given, Given]]) -> float:
    """Return the largest |a - b| over pairs of numbers or vectors."""
    return max(abs(x - y) for a, b in pairs for x, y in zip(numbers(a), numbers(b), strict=True))
