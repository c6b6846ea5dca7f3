"""A summary as a table to read, in Markdown, LaTeX (booktabs) or Typst, from one function."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
MOST_DECIMALS = 8
STALE = "† includes runs made by an older version of the training code."


@dataclass(frozen=True)
class Table:
    """Plain-text cells, row by row; the first column is words, the others are numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def render(summary: pd.DataFrame, dialect: str, *, baseline: str, notes: Sequence[str] = ()) -> str:
    """Return the summary of one metric as a table; ``dialect`` is ``md``, ``tex`` or ``typ``.

    ``summary`` has the columns of `summary.summarise`, one line per row; ``notes`` stand below it. LaTeX needs
    the package booktabs; both LaTeX and Typst give a bare table, to be put into a figure with a caption.
    Deterministic.
    """
    return DIALECTS[dialect](_table(summary, baseline, notes))


def _table(summary: pd.DataFrame, baseline: str, notes: Sequence[str]) -> Table:
    metric = summary["metric"].iloc[0] if len(summary) else "score"
    name = metric.rpartition("/")[2].replace("-", " ").replace("_", " ")
    digits = decimals(summary["sd"])
    lines = summary.to_dict("records")
    columns: list[tuple[str, list[str]]] = [
        ("Row", [_label(line, baseline) for line in lines]),
        (
            f"{name[:1].upper()}{name[1:]}, mean ± sd",
            [_spread(line["mean"], line["sd"], digits) for line in lines],
        ),
        ("95 % interval", [_interval(line["ci_low"], line["ci_high"], digits) for line in lines]),
        ("Seeds", [str(line["n"]) for line in lines]),
    ]
    if any(line["failed"] for line in lines):
        columns.append(("Failed", [str(line["failed"]) for line in lines]))
    for cost in ("updates", "rollouts", "tokens"):
        whole = all(line[cost] >= 100 or float(line[cost]).is_integer() for line in lines)
        columns.append((cost.capitalize(), [number(line[cost], 0 if whole else 1) for line in lines]))
    precision = decimals(summary["seconds"], significant=2)
    columns.append(("Seconds", [number(line["seconds"], precision) for line in lines]))
    return Table(
        header=tuple(title for title, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        notes=(*([STALE] if any(line["stale"] for line in lines) else []), *notes),
    )


def _label(line: Mapping[Hashable, object], baseline: str) -> str:
    mark = " (baseline)" if line["row"] == baseline else ""
    return f"{line['label']}{mark}{' †' if line['stale'] else ''}"


def decimals(values: Iterable[float], significant: int = 1) -> int:
    """Return how many decimals show the smaller of ``values`` (lower quartile) with that many digits, 0 to 6.

    Values below a millionth are left to be printed as "smaller than"; 4 where nothing else is known.

    >>> decimals([0.0005, 0.0016, 0.0003, 0.0006])
    4
    >>> decimals([120.0, 80.0], significant=2)
    0
    """
    known = sorted(value for value in values if math.isfinite(value) and value >= 1e-6)
    if not known:
        return 4
    return min(6, max(0, significant - 1 - math.floor(math.log10(known[len(known) // 4]))))


def shown_apart(digits: int, *values: float) -> int:
    """Return the decimals, ``digits`` or more, at which no value is printed as 0 that is none.

    A bound that is not 0 must not look like it: a verdict may hang on that. What 8 decimals do not show stays as
    it is.

    >>> shown_apart(3, 0.00004, 0.0123), shown_apart(3, 0.0, 0.5), shown_apart(3, 1e-12, 0.5)
    (5, 3, 3)
    """
    for more in range(digits, MOST_DECIMALS + 1):
        if all(value == 0 or not abs(value) < 0.5 * 10**-more for value in values):
            return more
    return digits


def number(value: float, digits: int) -> str:
    """Return a number with fixed decimals, a real minus sign and thousands separated; a dash where there is none.

    >>> number(12800.4, 0), number(0.98765, 3), number(float("inf"), 2)
    ('12,800', '0.988', '∞')
    >>> number(-0.5, 1) == f"{MINUS}0.5", number(float("nan"), 2) == DASH
    (True, True)
    """
    if math.isnan(value):
        return DASH
    text = f"{value:,.{digits}f}".replace("inf", "∞")
    if float(text.replace(",", "").replace("∞", "inf")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def _spread(mean: float, sd: float, digits: int) -> str:
    if math.isnan(sd):
        return number(mean, digits)
    small = 0 < sd < 0.5 * 10**-digits
    return f"{number(mean, digits)} ± {f'<{number(10**-digits, digits)}' if small else number(sd, digits)}"


def _interval(low: float, high: float, digits: int) -> str:
    return DASH if math.isnan(low) else f"[{number(low, digits)}, {number(high, digits)}]"


def _markdown(table: Table) -> str:
    cells = [[escape_markdown(_one_line(cell)) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(table.header))]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    rule = "|".join([f" {'-' * widths[0]} ", *(f" {'-' * (width - 1)}: " for width in widths[1:])])
    body = "\n".join([line(cells[0]), f"|{rule}|", *(line(row) for row in cells[1:])])
    return body + "\n" + "".join(f"\n{note}\n" for note in table.notes)


def escape_markdown(text: str) -> str:
    """Return text that Markdown prints as it is."""
    return re.sub(r"([\\|*_`<>\[\]#~$])", r"\\\1", text)


def _one_line(text: str) -> str:
    """Return a text without the line breaks that a statement in YAML may have: a cell has one line."""
    return re.sub(r"\s*\n\s*", " ", text.strip())


def _latex(table: Table) -> str:
    width = len(table.header)
    rows = [" & ".join(escape_latex(_one_line(cell)) for cell in row) + r" \\" for row in table.rows]
    notes = [rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {escape_latex(note)}}} \\" for note in table.notes]
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"\toprule",
            " & ".join(escape_latex(cell) for cell in table.header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            *notes,
            r"\end{tabular}",
            "",
        ]
    )


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "[": "{[}", "]": "{]}",  # a row that starts with a bracket would be read as an argument of \\
    '"': "''", "±": r"$\pm$", MINUS: "$-$", DASH: "--", "†": r"$^\dagger$", "∞": r"$\infty$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "→": r"$\to$", "·": r"$\cdot$", "√": r"$\surd$",
}  # fmt: skip


_CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}


def escape_latex(text: str) -> str:
    """Escape for LaTeX text; Greek letters and signs become mathematics, dashes stay the dashes they are."""
    return "".join(_latex_character(character) for character in text.replace("--", "-\0-")).replace("\0", "{}")


def _latex_character(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(character, ""))
    if found is None:
        return character
    letter = found[2].lower().replace("lamda", "lambda")
    if found[1] == "SMALL":
        return "o" if letter == "omicron" else f"$\\{letter}$"
    return f"$\\{letter.capitalize()}$" if letter in _CAPITALS else character


def _typst(table: Table) -> str:
    width = len(table.header)

    def row(cells: Sequence[str]) -> str:
        return "  " + ", ".join(typst_string(cell) for cell in cells) + ","

    notes = [f"  table.cell(colspan: {width}, align: left, {typst_string(note)})," for note in table.notes]
    return "\n".join(
        [
            "#table(",
            f"  columns: {width},",
            "  align: (column, _) => if column == 0 { left } else { right },",
            "  stroke: none,",
            "  table.hline(stroke: 0.08em),",
            f"  table.header({', '.join(typst_string(cell) for cell in table.header)}),",
            "  table.hline(stroke: 0.05em),",
            *(row(cells) for cells in table.rows),
            "  table.hline(stroke: 0.08em),",
            *notes,
            ")",
            "",
        ]
    )


def typst_string(text: str) -> str:
    """Return text as a string literal of Typst."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'


DIALECTS: dict[str, Callable[[Table], str]] = {"md": _markdown, "tex": _latex, "typ": _typst}
