"""A digest of the code that a run depends on, read from the source files without importing them.

From a root definition the names are followed to the top-level definitions that they mean, across the
modules of this package and through imports inside functions; what is reached is hashed. A class counts
whole. A registry (a module-level dict literal of functions or classes whose keys are values of one switch
of the schema) contributes only the entry that a row's spec selects: adding an alternative changes no
earlier digest. The specs themselves enter a run through its resolved JSON and are left out here, but for
the properties that the reached code reads from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from grpo_ablate.spec.schema import Spec
from grpo_ablate.workflow.sources import EFFECTS, Module, Piece, Reference, Sources, Target

PACKAGE = "grpo_ablate"
TRAINING = f"{PACKAGE}.runs.train.train"
SCHEMA = f"{PACKAGE}.spec.schema"
# What these do reaches a run or a table through the resolved specs and the key files, or not at all.
OUTSIDE = (f"{PACKAGE}.spec", f"{PACKAGE}.errors", f"{PACKAGE}.workflow")
# What these do leaves no trace in that part of a run's record which counts.
NOT_TRAINING = (
    *OUTSIDE,
    *(f"{PACKAGE}.runs.{name}" for name in ("dump", "lock", "mlflow_*", "progress", "provenance", "stopping")),
)

Select = Callable[[Iterable[str]], set[str] | None]  # keys of a registry -> keys to follow; None: all


def row_digest(spec: Spec, sources: Sources | None = None) -> str:
    """Digest of the training code that a row with this (effective) spec runs: 16 hexadecimal digits.

    ``sources`` is the package to read; default: this one.
    """
    return _row_digest(tuple(sorted(_choices(spec).items())), sources or package_sources())


@cache
def digest_of(*roots: str) -> str:
    """Digest of everything reached from ``roots``: dotted names of definitions or of whole modules."""
    return digest(package_sources(), roots, excluded=OUTSIDE)


@cache
def _row_digest(choices: tuple[tuple[str, str], ...], sources: Sources) -> str:
    chosen = dict(choices)

    def select(keys: Iterable[str]) -> set[str] | None:
        wanted = set(keys)
        switches = [path for path, options in _options().items() if wanted <= options and path in chosen]
        return {chosen[path] for path in switches} if switches else None

    return digest(sources, (TRAINING,), select=select)


@cache
def package_sources() -> Sources:
    """The sources of this package, parsed once in a process."""
    return Sources(Path(__file__).resolve().parents[1], PACKAGE)


def digest(
    sources: Sources,
    roots: Iterable[str],
    *,
    excluded: tuple[str, ...] = NOT_TRAINING,
    select: Select = lambda keys: None,
    schema: str = SCHEMA,
) -> str:
    """Hash what is reached from ``roots``; ``select`` narrows registries to some of their keys.

    Properties of the classes in ``schema``, though excluded, count where the reached code reads an attribute
    of that name. Raises ValueError for a root that does not exist.
    """
    walk = _Walk(sources, excluded, select, _properties(sources.module(schema)))
    for root in sorted(set(roots)):
        targets = walk.resolve_dotted(root, ())
        if targets is None:
            raise ValueError(f"{root} is not defined in the package {sources.package}")
        walk.push(targets)
    return walk.finish()


def _choices(spec: Spec) -> dict[str, str]:
    """Dotted path -> value of every switch that is a name out of a fixed list."""
    found: dict[str, str] = {}
    dumped = spec.model_dump()
    for path in _options():
        value: Any = dumped
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            found[path] = value
    return found


@cache
def _options() -> Mapping[str, frozenset[str]]:
    """Dotted path -> the names that a switch of the schema allows."""
    found: dict[str, set[str]] = {}

    def visit(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            for part in _literals_and_models(info.annotation):
                if isinstance(part, str):
                    found.setdefault(f"{prefix}{name}", set()).add(part)
                else:
                    visit(part, f"{prefix}{name}.")

    visit(Spec, "")
    return {path: frozenset(names) for path, names in found.items()}


def _literals_and_models(annotation: Any) -> Iterator[Any]:
    """The literal strings and the models that a field's annotation is made of; containers are left out."""
    origin = get_origin(annotation)
    if origin is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif origin not in (list, dict, tuple, None):  # a union, or Annotated
        for part in get_args(annotation):
            yield from _literals_and_models(part)


def _properties(module: Module | None) -> dict[str, Piece]:
    """Name -> code of every property of the module's classes."""
    definitions = module.definitions.values() if module else ()
    return {name: piece for definition in definitions for name, piece in definition.properties()}


class _Walk:
    """One traversal: the texts reached so far and the definitions still to visit."""

    def __init__(
        self, sources: Sources, excluded: tuple[str, ...], select: Select, properties: Mapping[str, Piece]
    ) -> None:
        self.sources = sources
        self.excluded = excluded
        self.select = select
        self.properties = properties
        self.texts: dict[tuple[str, str, str], str] = {}
        self.seen: set[Target] = set()
        self.named: set[tuple[str, str, str]] = set()  # entries that code asks for by a constant key
        self.pending: list[Target] = []

    def finish(self) -> str:
        while self.pending:
            self._visit(*self.pending.pop())
        lines = (f"{'|'.join(slot)}\n{text}\n" for slot, text in sorted(self.texts.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    def push(self, targets: Iterable[Target]) -> None:
        for module, name in targets:
            if (module, name) in self.seen:
                continue
            self.seen.add((module, name))
            self.pending.append((module, name))
            if name != EFFECTS:  # importing a module runs what stands at its top level, and its packages'
                parts = module.split(".")
                for length in range(1, len(parts) + 1):
                    package = self.sources.module(".".join(parts[:length]))
                    if package and EFFECTS in package.definitions:
                        self.push([(package.name, EFFECTS)])

    def resolve_dotted(self, dotted: str, rest: Reference) -> list[Target] | None:
        """What ``dotted.rest`` means: definitions (none where excluded); None outside the package."""
        parts = (*dotted.split("."), *rest)
        names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        if any(fnmatchcase(name, excluded) for name in names for excluded in self.excluded):
            return []
        for length, name in reversed(list(enumerate(names, 1))):  # the longest prefix that is a module
            module = self.sources.module(name)
            if module is None:
                continue
            if length == len(parts):
                return [(module.name, name) for name in module.definitions]
            return self._resolve(module, {}, parts[length:])
        return None

    def _resolve(self, module: Module, imports: Mapping[str, str], reference: Reference) -> list[Target] | None:
        """What a reference in that module means; ``imports`` are those made inside the function."""
        base, *rest = reference
        if base not in imports and base in module.definitions:
            return [(module.name, base)]
        target = imports.get(base) or module.imports.get(base)
        return self.resolve_dotted(target, tuple(rest)) if target else None

    def _visit(self, module_name: str, name: str) -> None:
        module = self.sources.module(module_name)
        assert module is not None
        definition = module.definitions[name]
        chosen = self.select(definition.entries) if definition.entries else None
        if chosen is None:
            self._take(module, (module_name, name, ""), definition.piece())
            return
        for key in definition.entries or ():
            if key in chosen or (module_name, name, key) in self.named:
                self._take(module, (module_name, name, key), definition.piece(key))

    def _take(self, module: Module, slot: tuple[str, str, str], piece: Piece) -> None:
        if slot in self.texts:
            return
        outside: list[str] = []
        for reference in sorted(piece.references):
            targets = self._resolve(module, piece.imports, reference)
            self.push(targets or ())
            origin = piece.imports.get(reference[0]) or module.imports.get(reference[0])
            if targets is None and origin:  # the same name may come from another library
                outside.append(f"{reference[0]}={origin}")
        self.texts[slot] = piece.text + "\n" + ",".join(outside)
        for reference, key in sorted(piece.subscripts):
            for target in self._resolve(module, piece.imports, reference) or ():
                self.named.add((*target, key))
                self.pending.append(target)
        self._read_properties(piece.attributes)

    def _read_properties(self, attributes: frozenset[str]) -> None:
        for name in sorted(attributes & self.properties.keys()):
            slot = (SCHEMA, name, "")
            if slot not in self.texts:
                self.texts[slot] = self.properties[name].text
                self._read_properties(self.properties[name].attributes)
