r"""Where an answer stands in a text, and whether the text has the form that was asked for.

A *format* says both: ``think-answer`` is that of R1-Zero, ``boxed`` LaTeX's ``\boxed{42}``, ``hashes`` the last
line of GSM8K, ``#### 42``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_THINK_ANSWER = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")

_BRACE = re.compile(r"(?P<box>\\{1,2}f?boxed\s*\{)|(?P<escaped>\\.)|[{}]", re.DOTALL)

# DeepSeek-AI 2025, DeepSeek-R1, table 1.
R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
    "assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
    "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
    "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>."
)
BOXED = r"Put your final answer within \boxed{}."
HASHES = "End your answer with a line that holds #### and the result, as in #### 42."


@dataclass(frozen=True)
class Format:
    """A form of responses."""

    kept: Callable[[str], bool]  # whether a response has the form
    answer: Callable[[str], str | None]  # what stands where the answer belongs; None where nothing does
    instruction: str  # how a prompt asks for it


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` whose braces are balanced, or None.

    >>> last_boxed(r"so \boxed{1}, no: $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    opened: list[int | None] = []  # where the content of each open box begins; None for other braces
    begin, end = -1, -1
    for found in _BRACE.finditer(text):
        if found[0] == "}" and opened:
            content = opened.pop()
            if content is not None and content > begin:
                begin, end = content, found.start()
        elif found[0].endswith("{") and found["escaped"] is None:
            opened.append(found.end() if found["box"] else None)
    return text[begin:end].strip() if begin >= 0 else None


def after_hashes(text: str) -> str | None:
    """Return what follows the last ``####`` on its line, or None.

    >>> after_hashes("3 + 4 = <<3+4=7>>7\\n#### 7")
    '7'
    """
    _, mark, rest = text.rpartition("####")
    return rest.partition("\n")[0].strip() or None if mark else None


def tagged_answer(text: str) -> str | None:
    """Return what stands in the last pair of answer tags, or None.

    >>> tagged_answer("<think>7, I guess</think> <answer> 7 </answer>")
    '7'
    """
    before, closing, _ = text.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    return answer.strip() if opening and closing else None


def thinks_then_answers(text: str) -> bool:
    """Whether a text is a thought in its tags, then an answer in its tags, each tag once, and nothing else."""
    return all(text.count(tag) == 1 for tag in _TAGS) and _THINK_ANSWER.fullmatch(text) is not None


def _has_box(text: str) -> bool:
    return last_boxed(text) is not None


def _has_hashes(text: str) -> bool:
    return after_hashes(text) is not None


FORMATS: dict[str, Format] = {
    "think-answer": Format(thinks_then_answers, tagged_answer, R1_ZERO),
    "boxed": Format(_has_box, last_boxed, BOXED),
    "hashes": Format(_has_hashes, after_hashes, HASHES),
}

# Where a data file's answers hold the final answer.
LAYOUTS: dict[str, Callable[[str], str | None]] = {
    "plain": lambda text: text.strip() or None,
    "gsm8k": after_hashes,
    "math": last_boxed,
}
