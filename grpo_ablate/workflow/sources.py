"""Source files of a package as syntax trees: what each top-level name is and which names it uses.

Nothing is imported. A definition is written as text without positions, comments, docstrings and the
annotations of functions, so that equal texts mean equal behaviour whatever the formatting.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EFFECTS = "<effects>"  # the statements of a module that bind no name
_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "kind"})

Reference = tuple[str, ...]  # ("surrogates", "clip") for the expression `surrogates.clip`
Target = tuple[str, str]  # (module, top-level name)


@dataclass(frozen=True)
class Piece:
    """A tree as hashed: its text and the names it uses."""

    text: str
    references: frozenset[Reference]
    attributes: frozenset[str]  # every name that follows a dot
    imports: Mapping[str, str]  # made inside it: local name -> dotted target
    subscripts: frozenset[tuple[Reference, str]]  # every NAME["key"]


@dataclass
class Definition:
    """One top-level statement (or all that bind no name), written out when first asked for."""

    nodes: list[ast.stmt]
    package: str  # what its relative imports start from
    entries: dict[str, ast.expr] | None = None  # key -> value, where it is a registry
    pieces: dict[str | None, Piece] = field(default_factory=dict)

    def piece(self, key: str | None = None) -> Piece:
        """The whole, or one entry of the registry."""
        if key not in self.pieces:
            nodes = self.nodes if key is None else [(self.entries or {})[key]]
            self.pieces[key] = _write(nodes, self.package)
        return self.pieces[key]

    def properties(self) -> Iterator[tuple[str, Piece]]:
        """Name and code of the properties, where it is a class."""
        for node in self.nodes:
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef) and any(
                    isinstance(mark, ast.Name) and mark.id.endswith("property") for mark in part.decorator_list
                ):
                    yield part.name, _write([part], self.package)


@dataclass(frozen=True)
class Module:
    """The top level of a source file: what each name is bound to."""

    name: str
    definitions: Mapping[str, Definition]
    imports: Mapping[str, str]  # local name -> dotted target


class Sources:
    """The source files of one package, or of a module that is one file, parsed once each."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder = folder
        self.package = package
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of that dotted name, or None where the package has no such file."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def _parse(self, name: str) -> Module | None:
        first, *rest = name.split(".")
        if first != self.package:
            return None
        if self.folder.is_file():
            return None if rest else _module(name, "", self.folder)
        path = self.folder.joinpath(*rest)
        if (path / "__init__.py").is_file():
            return _module(name, name, path / "__init__.py")
        if rest and path.with_suffix(".py").is_file():
            return _module(name, name.rpartition(".")[0], path.with_suffix(".py"))
        return None


def _module(name: str, package: str, path: Path) -> Module:
    definitions: dict[str, Definition] = {}
    imports: dict[str, str] = {}
    effects: list[ast.stmt] = []
    for statement in ast.parse(path.read_bytes(), str(path)).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports.update(_imported(statement, package))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions[statement.name] = Definition([statement], package)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            continue  # names of types only
        elif not _is_text(statement):
            bound = _bound(statement)
            definitions.update(dict.fromkeys(bound, Definition([statement], package, _registry(statement))))
            if not bound or not isinstance(statement, ast.Assign | ast.AnnAssign):
                effects.append(statement)
    if effects:
        definitions[EFFECTS] = Definition(effects, package)
    return Module(name, definitions, imports)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, str]:
    """Local name -> dotted target of an import statement."""
    if isinstance(node, ast.Import):
        return dict(
            (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            for alias in node.names
        )
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    return {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds at the top level of its module."""
    return {
        node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _registry(statement: ast.stmt) -> dict[str, ast.expr] | None:
    """The entries of a dict literal whose keys are strings and whose values all name something."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if not isinstance(value, ast.Dict) or not value.keys:
        return None
    entries: dict[str, ast.expr] = {}
    for key, item in zip(value.keys, value.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        if not any(isinstance(part, ast.Name) for part in ast.walk(item)):
            return None
        entries[key.value] = item
    return entries


def _write(nodes: Sequence[ast.AST], package: str) -> Piece:
    writer = _Writer(package)
    for node in nodes:
        writer.visit(node)
    return Piece(
        "".join(writer.text),
        frozenset(writer.references),
        frozenset(writer.attributes),
        writer.imports,
        frozenset(writer.subscripts),
    )


class _Writer:
    """Writes trees as text and collects the names in them."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.text: list[str] = []
        self.references: set[Reference] = set()
        self.attributes: set[str] = set()
        self.imports: dict[str, str] = {}
        self.subscripts: set[tuple[Reference, str]] = set()

    def visit(self, node: Any) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.update(_imported(node, self.package))
        elif isinstance(node, ast.Constant):
            self.text.append(repr(node.value))
        elif isinstance(node, ast.AST):
            self._node(node)
        elif isinstance(node, list):
            self.text.append("[")
            for item in node:
                if not _is_text(item):
                    self.visit(item)
                    self.text.append(",")
            self.text.append("]")
        else:
            self.text.append(repr(node))

    def _node(self, node: ast.AST) -> None:
        reference = _reference(node)
        if reference:
            self.references.add(reference)
            self.attributes.update(reference[1:])
            self.text.append(".".join(reference))
            return
        if isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
        elif isinstance(node, ast.Subscript):
            base, key = _reference(node.value), node.slice
            if base and isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.subscripts.add((base, key.value))
        self.text.append(type(node).__name__ + "(")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and not _is_skipped(node, name):
                self.text.append(f"{name}=")
                self.visit(value)
        self.text.append(")")


def _is_skipped(node: ast.AST, field_name: str) -> bool:
    if isinstance(node, ast.arg):
        return field_name == "annotation"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and field_name == "returns":
        return True
    return field_name in _SKIPPED_FIELDS


def _reference(node: ast.AST) -> Reference | None:
    """("a", "b", "c") for the expression a.b.c; None for any that does not start at a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None
