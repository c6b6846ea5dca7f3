"""The table of propositions as files: every finding and digit in CSV, a line each in Markdown, LaTeX and Typst."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from grpo_ablate.analysis.tables import DASH, DIALECTS, MINUS, Table
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
ROUNDING = 1e-9
NOTE = "Largest gap of the equalities that hold to rounding; every number is in propositions.csv."
SIGNS = {"equals": "=", "exceeds": ">", "falls-below": "<", "differs": "≠"}


def write_propositions(results: Path) -> list[Path]:
    """Examine every proposition and write ``tables/propositions.{csv,md,tex,typ}`` below ``results``."""
    written = []
    for ending, content in propositions_files().items():
        written.append(results / "tables" / f"propositions{ending}")
        write_whole(written[-1], content)
    return written


def propositions_files() -> dict[str, bytes]:
    """Return the table of propositions, examined, by the endings of its files, ``.csv`` first."""
    found = [examine(name) for name in PROPOSITIONS]
    table = as_table(found)
    printed = {f".{dialect}": render(table).encode() for dialect, render in DIALECTS.items()}
    return {".csv": as_csv(found).encode(), **printed}


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
    """Return a line per proposition, to be read; each finding that fails gets a line of its own below.

    ``Largest gap``: of the findings that say two numbers are equal within rounding (tolerance 1e-9 or less).
    """
    rows = []
    for proposition in found:
        findings = proposition.findings
        equal = [f for f in findings if f.relation == "equals"]
        gaps = [abs(f.difference) for f in equal if f.tolerance <= ROUNDING]
        failed = [f for f in findings if not f.holds]
        counts = (str(len(equal)), str(len(findings) - len(equal)))
        said = "holds" if not failed else f"{len(failed)} fail" + ("s" if len(failed) == 1 else "")
        rows.append((proposition.title, *counts, _small(max(gaps, default=math.nan)), said))
        for f in failed:
            what = f"{f.case}: {f.quantity}: {_few(f.value)} {SIGNS[f.relation]} {_few(f.expected)}"
            rows.append((what, "", "", _small(abs(f.difference)), "fails"))
    return Table(("Proposition", "Equalities", "Inequalities", "Largest gap", "Verdict"), tuple(rows), (NOTE,))


def _every_digit(values: tuple[float, ...]) -> str:
    return " ".join(repr(value + 0.0) for value in values)


def _few(values: tuple[float, ...]) -> str:
    text = ", ".join(f"{value:.6g}" for value in values).replace("-", MINUS)
    return text if len(values) == 1 else f"({text})"


def _small(value: float) -> str:
    if math.isnan(value):
        return DASH
    return f"{value:.1e}".replace("-", MINUS) if value else "0"
