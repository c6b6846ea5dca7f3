"""References in LaTeX from a BibTeX file, in the order of citation, without a run of BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_ablate.errors import UserError, nearest

Entry = dict[str, str]
_FIRST = 6  # of more authors than this, only that many are named


def read_bibliography(path: Path) -> dict[str, Entry]:
    """Return key -> fields of a BibTeX file; values are LaTeX without their outer braces.

    Raises:
        UserError: the file is missing, or an entry is not closed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    found: dict[str, Entry] = {}
    for start in re.finditer(r"@(\w+)\s*\{\s*([\w:.-]+)\s*,", text):
        body = text[start.end() : _closing(text, start.end(), path)]
        found[start[2]] = _fields(body, path)
    return found


def _closing(text: str, start: int, path: Path) -> int:
    """Return where the brace that was opened before ``start`` closes."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    line = text.count("\n", 0, start) + 1
    raise UserError(f"{path}: line {line}: a brace is not closed.")


def _fields(body: str, path: Path) -> Entry:
    fields = {}
    position = 0
    while found := re.compile(r"\s*([\w-]+)\s*=\s*").match(body, position):
        position = found.end()
        if body[position : position + 1] == "{":
            end = _closing(body, position + 1, path)
            value, position = body[position + 1 : end], end + 1
        elif body[position : position + 1] == '"':
            value = body[position + 1 :].partition('"')[0]
            position += len(value) + 2
        else:
            value = body[position:].partition(",")[0].strip()
            position += len(value)
        fields[found[1].lower()] = " ".join(value.split())
        position += len(body[position:]) - len(body[position:].lstrip(", \n\t"))
    return fields


def references(bibliography: Mapping[str, Entry], cited: Iterable[str]) -> str:
    r"""Return a ``thebibliography`` of the cited entries.

    >>> print(references({"a": {"author": "Curie, Marie", "title": "T", "year": "1903"}}, ["a"]))
    \begin{thebibliography}{9}
    \bibitem{a} M.~Curie. T. 1903.
    \end{thebibliography}

    Raises:
        UserError: a cited key is missing.
    """
    lines = []
    for key in cited:
        if key not in bibliography:
            raise UserError(f"the bibliography: no entry '{key}'; {nearest(key, bibliography)}")
        lines.append(f"\\bibitem{{{key}}} {_entry(bibliography[key])}")
    widest = "9" * max(1, len(str(len(lines))))
    return "\n".join([f"\\begin{{thebibliography}}{{{widest}}}", *lines, "\\end{thebibliography}"])


def _entry(entry: Entry) -> str:
    place = entry.get("journal") or entry.get("booktitle") or entry.get("publisher") or ""
    place = f"\\emph{{{place}}}" if place else ""
    if entry.get("volume"):
        place += f" {entry['volume']}"
    if entry.get("pages"):
        place += f":{entry['pages']}" if entry.get("volume") else f", pages {entry['pages']}"
    address = entry.get("url", "")
    parts = [
        _authors(entry.get("author", "")),
        entry.get("title", ""),
        place,
        entry.get("howpublished", ""),
        f"arXiv:{entry['eprint']}" if entry.get("eprint") else "",
        f"\\url{{{address}}}" if address else "",
        entry.get("year", ""),
    ]
    return ". ".join(part for part in parts if part) + "."


def _authors(text: str) -> str:
    if not text:
        return ""
    names = re.split(r"\s+and\s+", text)
    more = "others" in names or len(names) > _FIRST
    named = [_initials(name) for name in names if name != "others"][:_FIRST]
    if more:
        return ", ".join(named) + ", and others"
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0]


def _initials(name: str) -> str:
    """Return "Curie, Marie Anne" as "M.~A.~Curie"; a name in braces is left whole."""
    family, comma, given = name.partition(",")
    if not comma:
        return name
    letters = [
        (re.match(r"\{[^}]*\}|\\?.", word) or [word])[0] for word in re.split(r"[\s~-]+", given.strip()) if word
    ]
    return "~".join([*(f"{letter}." for letter in letters), family.strip()])
