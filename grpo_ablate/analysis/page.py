"""The tables of an experiment as one HTML page: its rows, its comparison, its claims, as their Markdown says."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

TABLES = {"": "Rows", "-comparison": "Against the baseline", "-claims": "Claims"}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }}
table {{ border-collapse: collapse; margin: 0.6em 0 1.6em; }}
th, td {{ padding: 0.25em 0.8em; text-align: right; vertical-align: top; }}
th {{ border-bottom: 1px solid #222; }}
thead tr:first-child th {{ border-top: 2px solid #222; }}
tbody tr:last-child td {{ border-bottom: 2px solid #222; }}
th:first-child, td:first-child {{ text-align: left; }}
td.words {{ text-align: left; }}
</style></head><body>
<h1>{title}</h1>
<p>{question}</p>
{sections}
</body></html>
"""


def write_page(experiment: Experiment, results: Path) -> Path:
    """Write ``tables/<experiment>.html`` from the Markdown tables that exist beside it.

    Raises:
        UserError: the table of the rows is missing, or the page cannot be written.
    """
    folder = results / "tables"
    paths = {ending: folder / f"{experiment.name}{ending}.md" for ending in TABLES}
    if not paths[""].exists():
        raise UserError(f"{paths['']}: the table is missing; make it with: grpo-ablate collect {experiment.path}")
    texts = {ending: path.read_text(encoding="utf-8") for ending, path in paths.items() if path.exists()}
    path = folder / f"{experiment.name}.html"
    write_whole(path, page(experiment, texts))
    return path


def page(experiment: Experiment, texts: Mapping[str, str]) -> bytes:
    """Return the page of an experiment's tables in Markdown, by their endings (`TABLES`)."""
    shown = [(heading, texts[ending]) for ending, heading in TABLES.items() if ending in texts]
    sections = [f"<h2>{heading}</h2>\n{from_markdown(text)}" for heading, text in shown]
    return _PAGE.format(
        title=html.escape(experiment.name), question=html.escape(experiment.question), sections="\n".join(sections)
    ).encode()


def from_markdown(text: str) -> str:
    r"""Return paragraphs and pipe tables as HTML.

    >>> print(from_markdown("A **bold** word.\n\n| a | b\\|c |\n| --- | --: |\n| x | 1 < 2 |\n"))
    <p>A <strong>bold</strong> word.</p>
    <table><thead><tr><th>a</th><th>b|c</th></tr></thead><tbody>
    <tr><td class="words">x</td><td>1 &lt; 2</td></tr>
    </tbody></table>
    """
    blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    return "\n".join(_table(block) if block.startswith("|") else f"<p>{_inline(block)}</p>" for block in blocks)


def _table(block: str) -> str:
    head, rule, *lines = (_cells(line) for line in block.splitlines())
    right = [cell.endswith(":") for cell in rule]
    titles = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    rows = []
    for line in lines:
        cells = (
            f"<td>{_inline(cell)}</td>" if number else f'<td class="words">{_inline(cell)}</td>'
            for cell, number in zip(line, right, strict=False)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{titles}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table>"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _inline(text: str) -> str:
    """Escape for HTML; strong words, and characters that Markdown escapes."""
    kept = re.sub(r"\\([\\|*_`<>\[\]#~$])", lambda found: f"\0{ord(found[1])};", text.replace("\n", " "))
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(kept, quote=False))
    return re.sub(r"\0(\d+);", lambda found: html.escape(chr(int(found[1])), quote=False), marked)
