"""The table of propositions as files: every digit in CSV, and to be read in Markdown, LaTeX and Typst."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from grpo_ablate.analysis.tables import DIALECTS, MINUS, Table
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.exact.propositions import PROPOSITIONS, Proposition, examine
from grpo_ablate.exact.propositions.findings import Finding

COLUMNS = (
    "proposition",
    "title",
    "statement",
    "case",
    "quantity",
    "value",
    "relation",
    "expected",
    "difference",
    "tolerance",
    "verdict",
    "source",
)
SIGNS = {"equals": "=", "exceeds": ">", "falls-below": "<", "differs": "≠"}


def write_propositions(results: Path) -> list[Path]:
    """Examine every proposition and write ``tables/propositions.{csv,md,tex,typ}`` below ``results``."""
    found = [examine(name) for name in PROPOSITIONS]
    written = [results / "tables" / f"propositions.{ending}" for ending in ("csv", *DIALECTS)]
    texts = [as_csv(found), *(dialect(as_table(found)) for dialect in DIALECTS.values())]
    for path, text in zip(written, texts, strict=True):
        write_whole(path, text.encode())
    return written


def as_csv(found: Iterable[Proposition]) -> str:
    """Return a line per finding, columns ``COLUMNS``; vectors are numbers joined by spaces.

    ``difference`` is value - expected, of vectors the largest size of an entry; ``verdict`` is holds or fails.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for proposition in found:
        for finding in proposition.findings:
            writer.writerow(
                [
                    proposition.name,
                    proposition.title,
                    proposition.statement,
                    finding.case,
                    finding.quantity,
                    _every_digit(finding.value),
                    finding.relation,
                    _every_digit(finding.expected),
                    repr(finding.difference + 0.0),
                    repr(finding.tolerance),
                    verdict(finding),
                    finding.source,
                ]
            )
    return text.getvalue()


def verdict(finding: Finding) -> str:
    """Return holds or fails."""
    return "holds" if finding.holds else "fails"


def as_table(found: Iterable[Proposition]) -> Table:
    """Return the findings in few digits, each proposition's name on its lines."""
    rows = []
    for proposition in found:
        for finding in proposition.findings:
            rows.append(
                (
                    f"{proposition.title}: {finding.case}: {finding.quantity}",
                    _few_digits(finding.value),
                    SIGNS[finding.relation],
                    _few_digits(finding.expected),
                    _small(finding.difference),
                    _small(finding.tolerance),
                    verdict(finding),
                )
            )
    header = ("Proposition, case, quantity", "Enumerated", "", "Expected", "Difference", "Tolerance", "Verdict")
    return Table(header, tuple(rows), ())


def _every_digit(values: tuple[float, ...]) -> str:
    return " ".join(repr(value + 0.0) for value in values)


def _few_digits(values: tuple[float, ...]) -> str:
    shown = [f"{value:.6g}" if abs(value) >= 1e-9 else "0" for value in values]
    text = ", ".join(shown).replace("-", MINUS)
    return text if len(values) == 1 else f"({text})"


def _small(value: float) -> str:
    return f"{value:.1e}".replace("-", MINUS) if value else "0"
