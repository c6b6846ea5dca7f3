"""Verifiers of answers: from a response and the right answer to a verdict. They run in a process of their own."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_ablate.dotted import load
from grpo_ablate.tasks.text.protocol import Verdict
from grpo_ablate.tasks.text.quantities import Quantity, last_number, quantity, same

Row = Mapping[str, Any]
SHORT = 200  # characters of an answer that is read as one formula


class NoVerdictError(Exception):
    """A verifier has nothing to say; the message is the reason."""


@dataclass(frozen=True)
class Options:
    """What some verifiers read beside the two texts."""

    pattern: str = ""
    tolerance: float = 0.0


def exact(response: str, answer: str, options: Options) -> Verdict:
    """Right where the texts are equal, up to white space at the ends and its amount between words."""
    said = " ".join(response.split())
    return _binary(said == " ".join(answer.split()), said)


def numeric(response: str, answer: str, options: Options) -> Verdict:
    """Right where the response is a number equal to the answer (see `quantities.quantity` and `same`)."""
    return _compared(quantity(response), answer, options)


def last_of_all(response: str, answer: str, options: Options) -> Verdict:
    """Right where the last number in the response equals the answer."""
    return _compared(last_number(response), answer, options)


def regular_expression(response: str, answer: str, options: Options) -> Verdict:
    """Right where what the pattern's last match captures equals the answer, as `exact` compares.

    Captured is the first group that takes part, or the whole match of a pattern without groups.
    """
    found = list(re.finditer(options.pattern, response))
    if not found:
        return _binary(False, None)
    groups = [group for group in found[-1].groups() if group is not None]
    return exact(groups[0] if groups else found[-1][0], answer, options)


def latex(response: str, answer: str, options: Options) -> Verdict:
    """Right where math-verify finds a formula in the response and the answer equal to it.

    An answer on its own, as it stands in a box or in tags, is read as one formula where none is marked. Raises
    NoVerdictError where math-verify cannot read the right answer.
    """
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # that its own limits, which need signals, are off
    wanted = _wanted(answer)
    if not wanted:
        raise NoVerdictError(f"math-verify cannot read the right answer '{answer[:80]}'")
    said = _formulas(response)
    shown = next((part for part in said if isinstance(part, str)), None)
    return _binary(bool(said) and verify(wanted, said, timeout_seconds=None), shown)


def chrf(response: str, answer: str, options: Options) -> Verdict:
    """Sentence chrF by sacreBLEU, in [0, 1]; the component ``accuracy`` is 1 for the answer itself."""
    from sacrebleu import sentence_chrf

    same_text = exact(response, answer, options)
    score = sentence_chrf(response, [answer]).score / 100
    return Verdict({"chrf": score, "accuracy": same_text.values["accuracy"]}, same_text.answer)


VERIFIERS: dict[str, Callable[[str, str, Options], Verdict]] = {
    "exact": exact,
    "numeric": numeric,
    "last-number": last_of_all,
    "regular-expression": regular_expression,
    "math-verify": latex,
    "chrf": chrf,
}


@dataclass(frozen=True)
class Named:
    """The verifier of this package that a task names."""

    name: str
    options: Options = Options()

    def prepare(self) -> None:
        """Judge one answer, so that no other waits for the import of a library."""
        if self.name in ("math-verify", "chrf"):
            self("1", "1", {})

    def __call__(self, response: str, answer: str, row: Row) -> Verdict:
        """Return the verdict on a response."""
        return VERIFIERS[self.name](response, answer, self.options)


@dataclass(frozen=True)
class Own:
    """A verifier of the user's own, ``function(response, answer, row)``: a number, the reward.

    ``row`` is the whole line of the data file. The component ``accuracy`` is 1 where the number is 1.
    """

    path: str

    def prepare(self) -> None:
        """Import it; raises UserError where it does not import."""
        load(self.path)

    def __call__(self, response: str, answer: str, row: Row) -> Verdict:
        """Return the verdict on a response; NoVerdictError where the function returned no number."""
        score = as_number(load(self.path)(response, answer, dict(row)))
        return Verdict({"score": score, "accuracy": float(score == 1)}, " ".join(response.split()))


def as_number(value: Any) -> float:
    """Return what a verifier returned as a finite float; raises NoVerdictError where it is none.

    >>> as_number(True), as_number(0.0)
    (1.0, 0.0)
    """
    if value is None:
        raise NoVerdictError("returned None")
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        raise NoVerdictError(f"returned a {type(value).__name__}, expected a number") from None
    if not math.isfinite(number):
        raise NoVerdictError(f"returned {value!r:.80}, expected a finite number")
    return number


def _binary(right: bool, answer: str | None) -> Verdict:
    return Verdict({"accuracy": float(right)}, answer)


def _compared(said: Quantity | None, answer: str, options: Options) -> Verdict:
    wanted = quantity(answer)
    if wanted is None:
        raise NoVerdictError(f"the right answer '{answer[:80]}' is no number")
    return _binary(said is not None and same(wanted, said, options.tolerance), None if said is None else str(said))


def _formulas(text: str) -> list[Any]:
    """Return what math-verify reads in a response: formulas, and their texts."""
    found: list[Any] = _alone(text) if _is_alone(text) else _marked(text)
    return found or _alone(text)


def _is_alone(text: str) -> bool:
    """Whether a text has neither marks of a formula nor words: it is a formula itself."""
    without_commands = re.sub(r"\\[A-Za-z]+", "", text)
    return re.search(r"\$|\\\(|\\\[|\\boxed", text) is None and re.search(r"[^\W\d_]{2}", without_commands) is None


def _marked(text: str) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(text, parsing_timeout=None)
    return found


def _alone(text: str) -> list[Any]:
    """Return the formula that a whole text is, where it is short enough to be one."""
    return _marked(f"\\boxed{{{text}}}") if len(text) <= SHORT else []


@lru_cache(maxsize=4096)  # once for all responses of a group
def _wanted(answer: str) -> list[Any]:
    return _alone(answer) or _marked(answer)
