"""A failed control stands above every table: what it says, in each dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_ablate.analysis.comparison import ControlResult
from grpo_ablate.analysis.tables import escape_latex, escape_markdown, typst_string


def alarms(controls: Iterable[ControlResult]) -> list[str]:
    """Return a sentence per control that does not hold."""
    return [f"CONTROL FAILED: {control.label}: {control.words}." for control in controls if control.holds is False]


def above(lines: Sequence[str], dialect: str) -> str:
    """Return sentences as text to stand before a table; empty where there is none.

    >>> above(["A & B."], "md"), above([], "tex")
    ('**A & B.**\\n\\n', '')
    """
    make = {
        "md": lambda line: f"**{escape_markdown(line)}**\n\n",
        "tex": lambda line: f"\\textbf{{{escape_latex(line)}}}\\par\n",
        "typ": lambda line: f"#strong({typst_string(line)})\n\n",
    }[dialect]
    return "".join(make(line) for line in lines)
