"""How the paper prints a number: signs, powers of ten and few digits, as Typst mathematics."""

from __future__ import annotations

import math


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, zero without.

    >>> signed(0.00012, 5), signed(-0.0000001, 5)
    ('+0.00012', '0.00000')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def power_of_ten(value: float) -> str:
    """Return a number as Typst mathematics, a power of ten as such.

    >>> power_of_ten(1e-8), power_of_ten(0.5)
    ('10^(-8)', '0.5')
    """
    exponent = math.log10(value) if value > 0 else 0.5
    return f"10^({round(exponent)})" if math.isclose(exponent, round(exponent)) else f"{value:g}"


def scientific(value: float) -> str:
    """Return a number with two digits as Typst mathematics.

    >>> scientific(8.6379e-9)
    '8.6 times 10^(-9)'
    """
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa} times 10^({int(exponent)})" if value else "0"
