r"""Numbers as people write them: signs, thousands, decimals, fractions, percent, currencies, units, some LaTeX.

Values are exact fractions, so that 0.1 is one tenth and equality needs no tolerance.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

DIGITS = 300  # of the longest number that is read
_WHOLE = r"\d{1,3}(?:,\d{3})+|\d+"
_NUMBER = rf"(?:(?:{_WHOLE})(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,3}})?"
_CURRENCY = "[$€£¥]"
_PERCENT = r"\s{0,2}(?:%|(?i:percent|per cent)\b)"
_SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_SCALED = rf"(?P<scales>(?:\s(?i:{'|'.join(_SCALES)})s?\b)*)"

_QUANTITY = re.compile(
    rf"(?P<sign>[-+])?\s?(?P<currency>{_CURRENCY})?\s?(?P<inner>[-+])?"
    rf"(?:(?P<whole>\d+) (?P<top>\d+)/(?P<bottom>\d+)|(?P<number>{_NUMBER})(?:\s?/\s?(?P<over>{_NUMBER}))?)"
    rf"(?P<percent>{_PERCENT})?{_SCALED}(?P<unit>.*)",
    re.DOTALL,
)
# The last run of digits with its separators; what is glued to a letter (x2, m^2, 3rd)
# is no number of its own, and neither is what stands under a root.
_RUN = re.compile(
    rf"(?P<around>(?:(?<![\w)%])[-+])?(?:{_CURRENCY}[-+]?)?)(?<![A-Za-z_^√\d])(?<!\d[.,])"
    r"(?P<run>\d+ \d+/\d[\d.,/]*|(?:(?<!\.)\.)?\d[\d.,]*(?:[eE][-+]?\d{1,3}\b)?(?: ?/ ?\.?\d[\d.,]*)*)"
    rf"(?!st\b|nd\b|rd\b|th\b)(?P<percent>{_PERCENT})?{_SCALED}(?P<term>[\^√])?"
)

_UNIT = re.compile(r"(?:[^\W\d_²³](?:[²³-]|\^\d)?|[ °/$€£¥¢'.·])*")
_SAYS_SOMETHING = re.compile(r"[^\W\d_²³]|[°$€£¥¢']")
_LONGEST_UNIT = 4  # words
# What follows a number and is no unit: it makes the number a term of a formula, or the text a sentence.
_NO_UNITS = frozenset(
    [
        "x", "y", "z", "n", "i", "e", "pi", "π", "k", "b", "bn", "mn", "M", "T", "half", "halves", "third",
        "thirds", "tenth", "tenths", "hundredth", "hundredths", "plus", "minus", "times", "more", "less", "than",
        "or", "and", "not", "is", "are", "was", "were", "if", "to", "but", "because", "so", "then", "therefore",
    ]
)  # fmt: skip
_UNIT_NAMES = {
    "$": "dollar", "usd": "dollar", "€": "euro", "eur": "euro", "£": "pound", "gbp": "pound",
    "¥": "yen", "¢": "cent",
    "°": "degree", "deg": "degree", "km": "kilometer", "kilometre": "kilometer", "m": "meter", "metre": "meter",
    "cm": "centimeter", "centimetre": "centimeter", "mm": "millimeter", "millimetre": "millimeter",
    "mi": "mile", "ft": "foot", "feet": "foot", "in": "inch", "inche": "inch", "yd": "yard",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound", "oz": "ounce",
    "l": "liter", "litre": "liter", "ml": "milliliter", "millilitre": "milliliter",
    "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second", "yr": "year",
    "mph": "mile/hour", "kph": "kilometer/hour", "m²": "square meter", "cm²": "square centimeter",
    "km²": "square kilometer", "ft²": "square foot",
}  # fmt: skip

_LATEX = (
    (re.compile(r"\\sqrt\s*(?:\[\d+\]\s*)?\{?"), "√"),
    (re.compile(r"\\(?:f?boxed|text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?"), "°"),
    (re.compile(r"([_^])\{(\d+)\}"), r"\1\2"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\[,!;: ]"), ""),
    (re.compile(r"\\(?:left|right|displaystyle)\b"), ""),
)
_FRAC = re.compile(
    r"(?P<sign>[-+])?(?:(?P<whole>\d) *)?\\[dt]?frac\s*"
    r"(?:\{\s*(?P<top>-?[\d.,]+)\s*\}\s*\{\s*(?P<bottom>[\d.,]+)\s*\}|(?P<one>\d)\s*(?P<other>\d))"
)
_VULGAR = re.compile(r"(?P<sign>[-+])?(?P<whole>\d)?(?P<vulgar>[¼-¾⅐-⅞])")
_CHARACTERS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-", "\u2044": "/", "\u2215": "/", "\uff05": "%"}
)
_THIN = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")


@dataclass(frozen=True)
class Quantity:
    """A number with what stood around it."""

    value: Fraction  # of 50 %: one half
    percent: bool = False
    unit: str = ""  # in one spelling; "" where there is none

    def __str__(self) -> str:
        """The value, equal for equal values."""
        return str(self.value)


def quantity(text: str) -> Quantity | None:
    """Return the number that a text is, with its unit, or None where it is anything else.

    >>> str(quantity(" -$1,234.50 "))
    '-2469/2'
    >>> quantity("1 1/2 cups").unit, str(quantity("1 1/2 cups"))
    ('cup', '3/2')
    >>> quantity("the answer is 3") is None
    True
    """
    found = _QUANTITY.fullmatch(_bare(text))
    if found is None:
        return None
    unit = _unit(found["unit"], found["currency"])
    return None if unit is None else _valued(found, unit)


def last_number(text: str) -> Quantity | None:
    """Return the last number in a text, without its unit; None where there is none or it cannot be read.

    >>> str(last_number("3 apples and 4 pears: 7 in all.")), str(last_number("so it grew by 5-3 = 2 m^2"))
    ('7', '2')
    >>> last_number("version 3.5.2") is None
    True
    """
    runs = list(_RUN.finditer(_plain(text)))
    if not runs or runs[-1]["term"]:
        return None
    run = runs[-1]
    after = "".join(f" {run[part].strip()}" for part in ("percent", "scales") if run[part])
    found = _QUANTITY.fullmatch(f"{run['around']}{run['run'].rstrip('.,')}{after}")
    return None if found is None or found["unit"] else _valued(found, "")


def same(wanted: Quantity, said: Quantity, tolerance: float = 0.0) -> bool:
    """Whether two quantities are equal, up to ``tolerance`` times the wanted one.

    Where only one has a percent sign, 50 % is as good as 50 and as 0.5. Units must agree where both have one.

    >>> same(quantity("50%"), quantity("0.5")), same(quantity("5 km"), quantity("5 miles"))
    (True, False)
    """
    if wanted.unit and said.unit and wanted.unit != said.unit:
        return False
    readings = [said.value]
    if said.percent != wanted.percent:
        readings.append(said.value * 100 if said.percent else said.value / 100)
    allowed = Fraction(tolerance) * (abs(wanted.value) or 1)
    return any(abs(reading - wanted.value) <= allowed for reading in readings)


def _plain(text: str) -> str:
    """Return a text with LaTeX, thin spaces and other minus signs written plainly."""
    text = _THIN.sub("", text.translate(_CHARACTERS))
    text = _VULGAR.sub(_slashed, text)
    if "\\" in text or "{" in text:
        text = _FRAC.sub(_slashed, text)
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    return text


def _slashed(found: re.Match[str]) -> str:
    """Return a fraction of LaTeX or in one character as ``3/4``, its sign beside it, a whole number before it."""
    parts = found.groupdict()
    if "vulgar" in parts:
        fraction = unicodedata.normalize("NFKC", parts["vulgar"]).translate(_CHARACTERS)
    else:
        fraction = f"{parts['top'] or parts['one']}/{parts['bottom'] or parts['other']}"
    sign, whole = parts["sign"] or "", parts["whole"]
    return f"{sign}{whole} {fraction}" if whole else f"{sign}{fraction}" if sign else f" {fraction}"


def _bare(text: str) -> str:
    """Return a text without what is set around a lone answer: emphasis, the marks of mathematics, a full stop."""
    text = text.strip().strip("*`").strip()
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)]
            break
    text = _plain(text).strip().strip("*`").strip()
    return text[:-1].rstrip() if text.endswith((".", "!")) else text


def _unit(text: str, currency: str | None) -> str | None:
    """Return the one spelling of what follows a number, "" for nothing, None where it is no unit."""
    text = text.strip()
    if not text:
        return "" if currency is None else _word(currency)
    if len(text) > 60 or _UNIT.fullmatch(text) is None or _SAYS_SOMETHING.search(text) is None:
        return None
    words = text.casefold().replace("^2", "²").replace("^3", "³").replace(" per ", "/").split()
    if len(words) > _LONGEST_UNIT or _NO_UNITS & {*words, *text.split()}:
        return None
    spelt = " ".join("/".join(_word(part) for part in word.split("/")) for word in words)
    return spelt if currency is None or spelt == _word(currency) else None


def _word(word: str) -> str:
    """Return the one spelling of a unit's word: no plural, no full stop, no abbreviation."""
    word = word.rstrip(".")
    word = _UNIT_NAMES.get(word, word)
    singular = word.removesuffix("s")
    plural = len(word) > 3 and word != singular and not singular.endswith("s")
    return _UNIT_NAMES.get(singular, singular) if plural or singular in _UNIT_NAMES else word


def _valued(found: re.Match[str], unit: str) -> Quantity | None:
    """Return the quantity of a match, None for a division by 0, two signs, or more digits than are read."""
    if len(found[0]) - len(found["unit"]) > DIGITS or (found["sign"] and found["inner"]):
        return None
    try:
        if found["whole"]:
            value = int(found["whole"]) + Fraction(int(found["top"]), int(found["bottom"]))
        else:
            value = _fraction(found["number"]) / (_fraction(found["over"]) if found["over"] else 1)
    except ZeroDivisionError:
        return None
    if "-" in (found["sign"], found["inner"]):
        value = -value
    for scale in found["scales"].casefold().split():
        value *= _SCALES[scale.removesuffix("s")]
    percent = found["percent"] is not None
    return Quantity(value / 100 if percent else value, percent, unit)


def _fraction(text: str) -> Fraction:
    whole = text.replace(",", "")
    return Fraction(
        f"0{whole}" if whole.startswith(".") else whole.replace(".e", "e").replace(".E", "E").rstrip(".")
    )
