"""Numbers inside sentences: three digits, a real minus sign, intervals, p values."""

from __future__ import annotations

import math

from grpo_ablate.analysis.tables import DASH, MINUS, MOST_DECIMALS, shown_apart
from grpo_ablate.analysis.tables import number as fixed

LEVEL = 0.05  # on which side of it a p lies is never rounded away


def number(value: float, *, signed: bool = False) -> str:
    """Return a number to three significant digits.

    >>> number(0.012345), number(1234.5), number(0.0), number(2e-9)
    ('0.0123', '1,230', '0', '2e-09')
    >>> number(0.5, signed=True), number(float("nan")) == DASH
    ('+0.5', True)
    """
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    sign = "+" if signed and value else ""
    text = f"{value:{sign}.3g}"
    if abs(value) >= 1000:
        text = f"{float(text):{sign},.0f}"
    return text.replace("-", MINUS, 1) if value < 0 else text


def interval(low: float, high: float) -> str:
    """Return an interval; a dash where there is none.

    >>> interval(0.25, 0.75), interval(float("nan"), 1.0) == DASH
    ('[0.25, 0.75]', True)
    """
    return DASH if math.isnan(low) or math.isnan(high) else f"[{number(low)}, {number(high)}]"


def estimate(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """Return a number with its interval, both to the decimals that show the interval's half width in two digits.

    More where a bound that is not 0 would look like it.

    >>> estimate(1.06423, 1.0611, 1.0673), estimate(0.5, 0.5, 0.5, signed=True)
    ('1.0642 [1.0611, 1.0673]', '+0.5 [0.5, 0.5]')
    >>> estimate(0.0123, 0.00004, 0.0246)
    '0.01230 [0.00004, 0.02460]'
    """
    half = (high - low) / 2
    digits = 1 - math.floor(math.log10(half)) if 0 < half < math.inf else MOST_DECIMALS + 1
    if not 0 <= digits <= MOST_DECIMALS:
        return f"{number(value, signed=signed)} {interval(low, high)}"
    digits = shown_apart(digits, low, high)
    sign = "+" if signed and value > 0 else ""
    return f"{sign}{fixed(value, digits)} [{fixed(low, digits)}, {fixed(high, digits)}]"


def p_value(p: float) -> str:
    """Return a p value to two digits, never 0; to more where two would show another side of `LEVEL`.

    >>> p_value(0.0437), p_value(1e-7), p_value(1.0), p_value(0.00098)
    ('.044', '<.0001', '1', '.00098')
    >>> p_value(0.05), p_value(0.0503), p_value(0.0498)
    ('.05', '.0503', '.05')
    """
    if math.isnan(p):
        return DASH
    if p < 1e-4:
        return "<.0001"
    digits = next(n for n in range(2, 18) if (float(f"{p:.{n}g}") <= LEVEL) == (p <= LEVEL))
    return f"{p:.{digits}g}".removeprefix("0") if p < 1 else "1"
