r"""The paper's text in LaTeX. It exists once, in Typst: this translates what Typst made of it.

Typst evaluates ``main.typ`` with every placeholder, condition and computed formula filled in, and the template
leaves the result as data, ``#metadata((title: .., authors: .., abstract: .., body: ..)) <paper>``. So LaTeX can
print no other number than the PDF. What the text may be made of:

* words with ``*strong*``, ``_emphasis_``, quotes, dashes, ``~``, raw text in backticks, ``#link``, ``#footnote``,
  ``#box``, ``#super``, ``#sub``, ``#smallcaps``; line and paragraph breaks; ``- item`` and ``#enum``, ``#terms``;
* headings with labels; ``#quote(block: true)``;
* formulas, inline and in blocks with labels: letters, Greek, fractions, roots, attachments, accents, operators,
  ``lr``, ``cases``, ``mat``, ``vec``, ``binom``, braces, alignment points;
* ``@key``: a label of a heading, formula or figure, or a key of the bibliography; ``#bibliography``;
* ``#figure`` with a caption around an image or a table, ``scope: "parent"`` for both columns;
* ``#table`` with ``columns`` (``auto``, ``fr`` or lengths), ``align`` as an array, ``table.header``,
  ``table.cell(colspan: ..)`` and ``table.hline``.

``set`` rules and sizes are dropped, since LaTeX has a style of its own; so are ``show`` rules, so that what they
replace stands as it was written. ``context``, ``place``, ``grid`` and drawings have no translation: a
UserError names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from grpo_ablate.analysis.prose_mathematics import Node, formula
from grpo_ablate.analysis.tables import escape_latex
from grpo_ablate.errors import UserError

_SECTIONS = ("section", "subsection", "subsubsection", "paragraph")
_SIGNS = {
    "\N{NO-BREAK SPACE}": "~", "\N{EM DASH}": "---", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT SINGLE QUOTATION MARK}": "`", "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''", "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
    "\N{SOFT HYPHEN}": r"\-", "\N{THIN SPACE}": r"\,", "\N{NARROW NO-BREAK SPACE}": r"\,",
}  # fmt: skip


@dataclass(frozen=True)
class Prose:
    """A text in LaTeX, the figure files that it shows, and the references that it cites in their order."""

    title: str
    authors: str
    abstract: str
    body: str
    images: tuple[str, ...]
    cited: tuple[str, ...]


@dataclass
class _Writer:
    """What a reference means, and what was met on the way."""

    targets: dict[str, str]  # label -> what it stands at
    keys: frozenset[str]
    images: list[str] = field(default_factory=list)
    cited: list[str] = field(default_factory=list)
    quote_open: bool = False

    def write(self, node: Node | str | None) -> str:
        if node is None:
            return ""
        if isinstance(node, str):
            return _words(node)
        name = node["func"]
        if name not in _FORMS:
            raise UserError(f"the paper: {name} cannot be put into LaTeX; write that place otherwise.")
        return _FORMS[name](self, node)

    def cite(self, key: str, supplement: Node | None = None) -> str:
        if key not in self.cited:
            self.cited.append(key)
        return f"\\cite{f'[{self.write(supplement)}]' if supplement else ''}{{{key}}}"


def translate(paper: dict[str, Any], keys: frozenset[str]) -> Prose:
    """Return the paper in LaTeX.

    Args:
        paper: title, authors, abstract and body: Typst's content as ``typst query`` prints it.
        keys: of the bibliography.

    Raises:
        UserError: the text uses something that has no translation, or refers to what does not exist.
    """
    writer = _Writer(dict(_targets(paper)), keys)
    parts = {name: _tidied(writer.write(paper.get(name))) for name in ("title", "authors", "abstract", "body")}
    return Prose(**parts, images=tuple(dict.fromkeys(writer.images)), cited=tuple(writer.cited))


def _targets(node: Any) -> Iterator[tuple[str, str]]:
    """Yield every label with what it labels: equation, heading, table or figure."""
    if isinstance(node, dict):
        if "label" in node and "func" in node:
            kind = node["func"]
            if kind == "figure":
                kind = _kind(node)
            yield node["label"].strip("<>"), kind
        for part in node.values():
            yield from _targets(part)
    elif isinstance(node, list):
        for part in node:
            yield from _targets(part)


def _kind(figure: Node) -> str:
    return "table" if _find(figure["body"], "table") or figure.get("kind") == "table" else "figure"


def _find(node: Any, name: str) -> bool:
    if isinstance(node, dict):
        return node.get("func") == name or any(_find(part, name) for part in node.values())
    return isinstance(node, list) and any(_find(part, name) for part in node)


def _tidied(text: str) -> str:
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _words(text: str) -> str:
    return "".join(_SIGNS.get(character) or escape_latex(character) for character in text)


def _text(writer: _Writer, node: Node) -> str:
    return _words(node["text"]) if "text" in node else writer.write(node["body"])


def _quote_mark(writer: _Writer, node: Node) -> str:
    """Typst leaves it to the typesetting which way a quotation mark faces; they alternate."""
    if node.get("double") is False:
        return "'"
    writer.quote_open = not writer.quote_open
    return "``" if writer.quote_open else "''"


def _sequence(writer: _Writer, node: Node) -> str:
    """Join the parts; neighbouring items become one list."""
    written: list[str] = []
    items: list[str] = []

    def close() -> None:
        if items:
            written.append(_list("itemize", items))
            items.clear()

    for child in node["children"]:
        if child["func"] == "item":
            items.append(f"\\item {writer.write(child['body']).strip()}")
        elif not (items and child["func"] in ("space", "parbreak")):
            close()
            written.append(writer.write(child))
    close()
    return "".join(written)


def _list(name: str, items: list[str]) -> str:
    lines = "\n".join(items)
    return f"\n\\begin{{{name}}}\n{lines}\n\\end{{{name}}}\n"


def _enumerated(writer: _Writer, node: Node) -> str:
    if node["func"] == "terms":
        return _list(
            "description",
            [
                f"\\item[{writer.write(item['term'])}] {writer.write(item['description']).strip()}"
                for item in node["children"]
            ],
        )
    items = [f"\\item {writer.write(item['body']).strip()}" for item in node["children"]]
    return _list("enumerate" if node["func"] == "enum" else "itemize", items)


def _heading(writer: _Writer, node: Node) -> str:
    depth: int = node.get("level") or node.get("depth") or 1
    command = _SECTIONS[min(depth, len(_SECTIONS)) - 1]
    return f"\n\n\\{command}{{{writer.write(node['body'])}}}{_label(node)}\n"


def _label(node: Node) -> str:
    return f"\\label{{{node['label'].strip('<>')}}}" if "label" in node else ""


def _reference(writer: _Writer, node: Node) -> str:
    target = (node.get("target") or node["key"]).strip("<>")
    if target in writer.targets:
        word = {"equation": "", "heading": "Section~", "table": "Table~", "figure": "Figure~"}
        command = "eqref" if writer.targets[target] == "equation" else "ref"
        return f"{word.get(writer.targets[target], '')}\\{command}{{{target}}}"
    if target in writer.keys:
        return writer.cite(target, node.get("supplement"))
    raise UserError(f"the paper: @{target} is neither a label nor a key of the bibliography.")


def _raw(writer: _Writer, node: Node) -> str:
    if node.get("block"):
        return f"\n\\begin{{verbatim}}\n{node['text']}\n\\end{{verbatim}}\n"
    return f"\\texttt{{{_words(node['text'])}}}"


def _link(writer: _Writer, node: Node) -> str:
    if not isinstance(node["dest"], str):
        return writer.write(node["body"])
    address = re.sub(r"([%#])", r"\\\1", node["dest"])
    return f"\\href{{{address}}}{{{writer.write(node['body'])}}}"


def _quote(writer: _Writer, node: Node) -> str:
    inside = writer.write(node["body"])
    return f"\n\\begin{{quote}}\n{inside.strip()}\n\\end{{quote}}\n" if node.get("block") else f"``{inside}''"


def _figure(writer: _Writer, node: Node) -> str:
    kind = _kind(node)
    environment = kind + ("*" if node.get("scope") == "parent" else "")
    caption = node.get("caption")
    words = "" if caption is None else f"\\caption{{{writer.write(caption).strip()}}}{_label(node)}"
    inside = f"\\centering\n{writer.write(node['body']).strip()}"
    parts = [words, inside] if kind == "table" else [inside, words]
    size = "\\small\n" if kind == "table" else ""
    joined = "\n".join(part for part in parts if part)
    return f"\n\\begin{{{environment}}}[tbp]\n{size}{joined}\n\\end{{{environment}}}\n"


def _image(writer: _Writer, node: Node) -> str:
    source = node["source"]
    writer.images.append(source)
    return f"\\includegraphics[width=\\linewidth]{{figures/{PurePosixPath(source).name}}}"


_RAGGED = {"l": r"\raggedright", "r": r"\raggedleft", "c": r"\centering"}
_ALIGNED = {"left": "l", "start": "l", "right": "r", "end": "r", "center": "c"}


def _columns(node: Node) -> list[str]:
    """The column letters of a table; a column that shares the free width becomes an X of tabularx."""
    widths = node.get("columns") or ["auto"]
    widths = ["auto"] * widths if isinstance(widths, int) else widths
    align = node.get("align")
    sides = align if isinstance(align, list) else [align if isinstance(align, str) else "left"] * len(widths)
    shares = [float(width[:-2]) for width in widths if width.endswith("fr")]
    letters = []
    for width, side in zip(widths, sides, strict=False):
        letter = next((_ALIGNED[part] for part in str(side).split(" + ") if part in _ALIGNED), "l")
        if width.endswith("fr"):
            share = float(width[:-2]) * len(shares) / sum(shares)
            sized = "" if len(set(shares)) == 1 else f"\\hsize={share:.3g}\\hsize"
            letter = f">{{{_RAGGED[letter]}\\arraybackslash{sized}}}X"
        letters.append(letter)
    return letters


def _table(writer: _Writer, node: Node) -> str:
    letters = _columns(node)
    lines: list[str] = []
    row: list[str] = []
    filled = 0
    rules = iter(["\\toprule", "\\midrule"])

    def put(child: Node) -> None:
        nonlocal filled
        name = child["func"]
        if name in ("header", "footer"):
            for part in child["children"]:
                put(part)
        elif name == "hline":
            lines.append(next(rules, "\\midrule"))
        elif name == "cell":
            span = child.get("colspan", 1)
            text = writer.write(child["body"]).strip()
            if span > 1:
                side = _ALIGNED.get(str(child.get("align", "left")), "l")
                text = f"\\multicolumn{{{span}}}{{{side}}}{{{text}}}"
            row.append(text)
            filled += span
            if filled >= len(letters):
                lines.append(" & ".join(row) + r" \\")
                row.clear()
                filled = 0
        else:
            raise UserError(f"the paper: a table holds {name}, which cannot be put into LaTeX.")

    for child in node["children"]:
        put(child)
    if row:
        lines.append(" & ".join([*row, *[""] * (len(letters) - filled)]) + r" \\")
    last = max((index for index, line in enumerate(lines) if line == "\\midrule"), default=None)
    if last is not None and last == len(lines) - 1:
        lines[last] = "\\bottomrule"
    inside = "\n".join(lines)
    if any(letter.endswith("X") for letter in letters):
        return f"\\begin{{tabularx}}{{\\linewidth}}{{{''.join(letters)}}}\n{inside}\n\\end{{tabularx}}"
    fitted = f"\\begin{{tabular}}{{{''.join(letters)}}}\n{inside}\n\\end{{tabular}}"
    return f"\\fitted{{%\n{fitted}}}"


def _wrapped(before: str, after: str = "}") -> Callable[[_Writer, Node], str]:
    return lambda writer, node: f"{before}{writer.write(node['body'])}{after}"


def _body(writer: _Writer, node: Node) -> str:
    return writer.write(node.get("body"))


def _nothing(writer: _Writer, node: Node) -> str:
    return ""


_FORMS: dict[str, Callable[[_Writer, Node], str]] = {
    "text": _text,
    "symbol": _text,
    "space": lambda writer, node: " ",
    "sequence": _sequence,
    "styled": lambda writer, node: writer.write(node["child"]),
    "strong": _wrapped(r"\textbf{"),
    "emph": _wrapped(r"\emph{"),
    "super": _wrapped(r"\textsuperscript{"),
    "sub": _wrapped(r"\textsubscript{"),
    "smallcaps": _wrapped(r"\textsc{"),
    "underline": _wrapped(r"\underline{"),
    "footnote": _wrapped(r"\footnote{"),
    "smartquote": _quote_mark,
    "raw": _raw,
    "link": _link,
    "quote": _quote,
    "box": _wrapped(r"\mbox{"),
    "block": _body,
    "par": _body,
    "pad": _body,
    "align": _body,
    "highlight": _body,
    "caption": _body,
    "parbreak": lambda writer, node: "\n\n",
    "linebreak": lambda writer, node: r"\\ ",
    "heading": _heading,
    "list": _enumerated,
    "enum": _enumerated,
    "terms": _enumerated,
    "equation": lambda writer, node: formula(node),
    "ref": _reference,
    "cite": _reference,
    "figure": _figure,
    "image": _image,
    "table": _table,
    "bibliography": _nothing,
    "metadata": _nothing,
    "h": lambda writer, node: " ",
    "v": _nothing,
    "pagebreak": _nothing,
    "flush": _nothing,
    "colbreak": _nothing,
}
