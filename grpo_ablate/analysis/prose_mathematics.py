"""Typst's mathematics, as its content tree holds it, in LaTeX (amsmath, amssymb)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from grpo_ablate.errors import UserError

Node = dict[str, Any]

_SYMBOLS = {
    "\N{MINUS SIGN}": "-", "≥": r"\ge", "≤": r"\le", "≠": r"\ne", "≈": r"\approx", "≡": r"\equiv",
    "\N{TILDE OPERATOR}": r"\sim", "≪": r"\ll", "≫": r"\gg", "∝": r"\propto", "∈": r"\in", "∉": r"\notin",
    "⊂": r"\subset", "⊆": r"\subseteq", "\N{UNION}": r"\cup", "∩": r"\cap", "∅": r"\emptyset", "∀": r"\forall",
    "∃": r"\exists", "∞": r"\infty", "∇": r"\nabla", "∂": r"\partial", "∑": r"\sum", "∏": r"\prod", "∫": r"\int",
    "±": r"\pm", "∓": r"\mp", "\N{MULTIPLICATION SIGN}": r"\times", "·": r"\cdot", "⋅": r"\cdot",
    "\N{ASTERISK OPERATOR}": "*", "∘": r"\circ", "→": r"\to", "←": r"\leftarrow", "⇒": r"\Rightarrow",
    "⇔": r"\Leftrightarrow", "↦": r"\mapsto", "\N{DOWN TACK}": r"\top", "⊥": r"\perp", "∥": r"\Vert",
    "‖": r"\Vert", "\N{DIVIDES}": r"\mid", "|": "|", "{": r"\{", "}": r"\}", "⟨": r"\langle", "⟩": r"\rangle",
    "⌊": r"\lfloor", "⌋": r"\rfloor", "⌈": r"\lceil", "⌉": r"\rceil", "…": r"\dots", "⋯": r"\cdots",
    "⋮": r"\vdots", "\N{SCRIPT SMALL L}": r"\ell", "\N{PRIME}": "'", "%": r"\%", "&": r"\&", "#": r"\#",
    "_": r"\_", "∧": r"\wedge", "\N{LOGICAL OR}": r"\vee", "≔": ":=", "√": r"\surd", "ϵ": r"\epsilon",
    "ϕ": r"\phi", "ϑ": r"\vartheta", "\N{GREEK RHO SYMBOL}": r"\varrho", "ς": r"\varsigma", "ϖ": r"\varpi",
    "~": r"\sim", "\N{EN DASH}": r"\text{--}", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
_VARIANTS = {"EPSILON": r"\varepsilon", "PHI": r"\varphi", "LAMDA": r"\lambda", "OMICRON": "o"}
_LATIN_CAPITALS = {  # capital letters that Greek and Latin share
    "ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I", "KAPPA": "K", "MU": "M",
    "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T", "CHI": "X",
}  # fmt: skip
_ACCENTS = {
    "\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u0307": "dot", "\u0308": "ddot",
    "\u20d7": "vec", "\u030c": "check", "^": "hat", "~": "tilde", "→": "vec", "¯": "bar", "‾": "bar", "˙": "dot",
}  # fmt: skip
_OPERATORS = {"min", "max", "log", "exp", "sin", "cos", "sup", "inf", "lim", "det", "ln", "gcd", "dim", "Pr"}
_TALL = {"frac", "binom", "root", "mat", "vec", "cases"}


def mathematics(node: Node) -> str:
    r"""Return the LaTeX of a node inside a formula, without dollar signs.

    >>> half = {"func": "frac", "num": {"func": "symbol", "text": "β"}, "denom": {"func": "text", "text": "2"}}
    >>> mathematics(half)
    '\\frac{\\beta}{2}'

    Raises:
        UserError: the formula uses something that has no translation here.
    """
    name = node["func"]
    if name not in _FORMS:
        raise UserError(f"the paper: a formula uses {name}, which cannot be put into LaTeX; write it otherwise.")
    return _FORMS[name](node)


def formula(node: Node) -> str:
    """Return an equation node as LaTeX: inline, or a block with its label."""
    inside = mathematics(node["body"]).strip()
    if not node.get("block"):
        return f"${inside}$"
    inside = inside.removesuffix(r"\\").strip()
    if "&" in inside.replace(r"\&", "") or r"\\" in inside:
        inside = f"\\begin{{aligned}}\n{inside}\n\\end{{aligned}}"
    label = f"\\label{{{node['label'].strip('<>')}}}" if "label" in node else ""
    return f"\n\\begin{{equation}}{label}\n{inside}\n\\end{{equation}}\n"


def _symbol(node: Node) -> str:
    return "".join(_character(character) for character in node["text"])


def _character(character: str) -> str:
    if character in _SYMBOLS:
        found = _SYMBOLS[character]
        return f"{found} " if re.fullmatch(r"\\[A-Za-z]+", found) else found
    if character.isascii():
        return character
    name = unicodedata.name(character, "")
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", name)
    if greek and greek[1] == "SMALL":
        return f"{_VARIANTS.get(greek[2], chr(92) + greek[2].lower())} "
    if greek:
        return _LATIN_CAPITALS.get(greek[2]) or f"\\{greek[2].capitalize().replace('Lamda', 'Lambda')} "
    double = re.fullmatch(r"(?:MATHEMATICAL DOUBLE-STRUCK CAPITAL|DOUBLE-STRUCK CAPITAL) ([A-Z])", name)
    if double:
        return f"\\mathbb{{{double[1]}}}"
    raise UserError(f"the paper: a formula uses the character {character}, which cannot be put into LaTeX.")


def _text(node: Node) -> str:
    text = node["text"]
    if re.fullmatch(r"[\d.]+", text):
        return text
    if all(not c.isalpha() for c in text):
        return _symbol(node)
    return f"\\text{{{text.replace('%', chr(92) + '%').replace('_', chr(92) + '_').replace('&', chr(92) + '&')}}}"


def _sequence(node: Node) -> str:
    return "".join(mathematics(child) for child in node["children"])


def _attach(node: Node) -> str:
    base = mathematics(node["base"]).rstrip()
    if node["base"]["func"] in ("attach", "sequence", "equation"):
        base = f"{{{base}}}"
    primes = "'" * node["tr"]["count"] if node.get("tr", {}).get("func") == "primes" else ""
    low = node.get("b") or node.get("br")
    high = node.get("t") or (None if primes else node.get("tr"))
    low_text = f"_{{{mathematics(low).strip()}}}" if low else ""
    high_text = f"^{{{mathematics(high).strip()}}}" if high else ""
    return f"{base}{primes}{low_text}{high_text}"


def _fraction(node: Node) -> str:
    return f"\\frac{{{mathematics(node['num']).strip()}}}{{{mathematics(node['denom']).strip()}}}"


def _root(node: Node) -> str:
    index = f"[{mathematics(node['index']).strip()}]" if node.get("index") else ""
    return f"\\sqrt{index}{{{mathematics(node['radicand']).strip()}}}"


def _delimited(node: Node) -> str:
    """Delimiters that grow only around what is tall: around the rest, LaTeX would add space for nothing."""
    body = node["body"]
    children = body.get("children", []) if body["func"] == "sequence" else []
    ends = len(children) > 1 and children[0]["func"] == children[-1]["func"] == "symbol"
    if not ends or not _is_tall(body) or _has(body, {"align-point", "linebreak"}):
        return mathematics(body)
    inside = "".join(mathematics(child) for child in children[1:-1]).strip()
    return f"\\left{_symbol(children[0]).strip()} {inside} \\right{_symbol(children[-1]).strip()}"


def _is_tall(node: Node) -> bool:
    return _has(node, _TALL)


def _has(node: Any, names: set[str]) -> bool:
    if isinstance(node, dict):
        return node.get("func") in names or any(_has(part, names) for part in node.values())
    return isinstance(node, list) and any(_has(part, names) for part in node)


def _operator(node: Node) -> str:
    name = node["text"]["text"]
    if name in _OPERATORS:
        return f"\\{name} "
    return f"\\operatorname{'*' if node.get('limits') else ''}{{{name}}}"


def _accent(node: Node) -> str:
    mark = _ACCENTS.get(node["accent"])
    if mark is None:
        raise UserError(f"the paper: a formula uses the accent {node['accent']!r}, which has no LaTeX here.")
    return f"\\{mark}{{{mathematics(node['base']).strip()}}}"


def _space(node: Node) -> str:
    amount = float(node["amount"].partition("em")[0].rpartition(" ")[2])  # as in 0.17em or 0pt + 1em
    return r"\, " if amount < 0.25 else r"\ " if amount < 0.5 else r"\quad " if amount < 1.5 else r"\qquad "


def _cases(node: Node) -> str:
    lines = " \\\\ ".join(mathematics(child).strip() for child in node["children"])
    return f"\\begin{{cases}} {lines} \\end{{cases}}"


def _matrix(node: Node) -> str:
    rows = node["rows"] if node["func"] == "mat" else [[child] for child in node["children"]]
    lines = " \\\\ ".join(" & ".join(mathematics(cell).strip() for cell in row) for row in rows)
    return f"\\begin{{pmatrix}} {lines} \\end{{pmatrix}}"


def _braced(node: Node) -> str:
    mark = {"overbrace": "^", "underbrace": "_"}[node["func"]]
    note = f"{mark}{{{mathematics(node['annotation']).strip()}}}" if node.get("annotation") else ""
    return f"\\{node['func']}{{{mathematics(node['body']).strip()}}}{note}"


def _wrapped(command: str) -> Callable[[Node], str]:
    return lambda node: f"\\{command}{{{mathematics(node['body']).strip()}}}"


def _body(node: Node) -> str:
    return mathematics(node["body"])


_FORMS: dict[str, Callable[[Node], str]] = {
    "symbol": _symbol,
    "text": _text,
    "sequence": _sequence,
    "space": lambda node: " ",
    "attach": _attach,
    "frac": _fraction,
    "root": _root,
    "lr": _delimited,
    "mid": _body,
    "op": _operator,
    "accent": _accent,
    "overline": _wrapped("overline"),
    "underline": _wrapped("underline"),
    "overbrace": _braced,
    "underbrace": _braced,
    "limits": _body,
    "class": _body,
    "scripts": _body,
    "equation": _body,
    "box": _body,
    "binom": lambda node: (
        f"\\binom{{{mathematics(node['upper']).strip()}}}"
        f"{{{', '.join(mathematics(part).strip() for part in node['lower'])}}}"
    ),
    "cases": _cases,
    "mat": _matrix,
    "vec": _matrix,
    "styled": lambda node: mathematics(node["child"]),
    "h": _space,
    "align-point": lambda node: "& ",
    "linebreak": lambda node: "\\\\\n",
    "strong": _wrapped("mathbf"),
}
