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
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from grpo_ablate.dotted import load
from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import Spec
from grpo_ablate.spec.text_tasks import own_functions
from grpo_ablate.spec.warmstart import Start, start_of, training_spec
from grpo_ablate.workflow.sources import EFFECTS, Definition, Module, Reference, Sources, Target

PACKAGE = "grpo_ablate"
TRAINING = f"{PACKAGE}.runs.train.train"
WARM_START = f"{PACKAGE}.runs.warmstart.train_start"
SCHEMA = f"{PACKAGE}.spec.schema"
# What these do reaches a run or a table through the resolved specs and the key files, or not at all.
OUTSIDE = (f"{PACKAGE}.spec", f"{PACKAGE}.errors", f"{PACKAGE}.workflow")
# What these do leaves no trace in that part of a run's record which counts.
NOT_TRAINING = (
    *OUTSIDE,
    *(
        f"{PACKAGE}.runs.{name}"
        for name in ("devices", "dump", "lock", "mlflow_*", "progress", "provenance", "stopping")
    ),
)

Slot = tuple[str, str, str]  # (module, top-level name, key of a registry or "")
Select = Callable[[Iterable[str]], set[str] | None]  # keys of a registry -> keys to follow; None: all


def row_digest(spec: Spec, sources: Sources | None = None) -> str:
    """Digest of the training code that a row with this (effective) spec runs: 16 hexadecimal digits.

    The code of its warm start, where it has one, belongs to it, and that of the user's own functions. ``sources``
    is the package to read; default: this one. Raises UserError where a function of the user's is not found.
    """
    own = _digest_of_choices(TRAINING, tuple(sorted(_choices(spec).items())), sources or package_sources())
    parts = [own, *(function_digest(path) for path in own_functions(spec))]
    start = start_of(spec, 0, 0)
    if start is not None:
        parts.append(start_digest(start, sources))
    return own if len(parts) == 1 else _sha("\n".join(parts))


def function_digest(path: str) -> str:
    """Digest of the user's function ``package.module:function`` and of what it reaches in its package or file.

    Code that is not read as source, as a compiled module, counts by its file. Raises UserError where the function
    cannot be imported, or its module has no file.
    """
    function = load(path)
    name, _, attribute = path.partition(":")
    file = sys.modules[name].__file__
    if file is None:
        raise UserError(f"'{path}': its module has no file, so that a change of its code could not be seen.")
    package = name.partition(".")[0]
    sources = Sources(Path(next(iter(getattr(sys.modules[package], "__path__", [file])))), package)
    defined = getattr(function, "__module__", name), getattr(function, "__qualname__", attribute)
    for module, root in ((name, attribute), defined) if file.endswith(".py") else ():
        found = sources.module(module)
        if found is not None and root in found.definitions:
            return digest(sources, (f"{module}.{root}",), excluded=(), schema="")
    return _sha(f"{path}\n{hashlib.sha256(Path(file).read_bytes()).hexdigest()}")


def start_digest(start: Start, sources: Sources | None = None) -> str:
    """Digest of the code that trains and measures a warm start: 16 hexadecimal digits."""
    choices = tuple(sorted(_choices(training_spec(start)).items()))
    return _digest_of_choices(WARM_START, choices, sources or package_sources())


@cache
def digest_of(*roots: str) -> str:
    """Digest of everything reached from ``roots``: dotted names of definitions or of whole modules."""
    return digest(package_sources(), roots, excluded=OUTSIDE)


@cache
def _digest_of_choices(root: str, choices: tuple[tuple[str, str], ...], sources: Sources) -> str:
    chosen = dict(choices)

    def select(keys: Iterable[str]) -> set[str] | None:
        wanted = set(keys)
        switches = [path for path, options in _options().items() if wanted <= options and path in chosen]
        return {chosen[path] for path in switches} if switches else None

    return digest(sources, (root,), select=select)


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
    links = _links(sources, excluded)
    pending: list[Target] = []
    for root in sorted(set(roots)):
        targets = links.resolve_dotted(root, ())
        if targets is None:
            raise ValueError(f"{root} is not defined in the package {sources.package}")
        pending += targets
    found = _reached(links, pending, select)
    properties = _properties_read(sources.module(schema), found.values())
    return _sha("\n".join([*sorted(link.digest for link in found.values()), *sorted(properties.values())]))


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


@dataclass(frozen=True)
class Link:
    """A piece of code as the traversal sees it: the digest of its text, and what it leads to."""

    digest: str
    targets: tuple[Target, ...]
    named: tuple[Slot, ...]  # entries of registries that it asks for by a constant key
    attributes: frozenset[str]


class _Links:
    """What each piece of the package's code leads to, worked out once for all traversals."""

    def __init__(self, sources: Sources, excluded: tuple[str, ...]) -> None:
        self.sources = sources
        self.excluded = excluded
        self._links: dict[Slot, Link] = {}
        self._effects: dict[str, tuple[Target, ...]] = {}

    def definition(self, target: Target) -> Definition:
        """The definition behind a target."""
        return self._module(target[0]).definitions[target[1]]

    def link(self, slot: Slot) -> Link:
        """The link of a definition (key "") or of one entry of a registry."""
        if slot not in self._links:
            self._links[slot] = self._linked(slot)
        return self._links[slot]

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

    def _linked(self, slot: Slot) -> Link:
        module = self._module(slot[0])
        piece = module.definitions[slot[1]].piece(slot[2] or None)
        targets = list(self._run_on_import(module.name)) if slot[1] != EFFECTS else []
        outside: list[str] = []
        for reference in sorted(piece.references):
            found = self._resolve(module, piece.imports, reference)
            targets += found or ()
            origin = piece.imports.get(reference[0]) or module.imports.get(reference[0])
            if found is None and origin:  # the same name may come from another library
                outside.append(f"{reference[0]}={origin}")
        named = [
            (*target, key)
            for reference, key in sorted(piece.subscripts)
            for target in self._resolve(module, piece.imports, reference) or ()
        ]
        text = "\n".join([*slot, piece.text, *outside])
        return Link(_sha(text), tuple(dict.fromkeys(targets)), tuple(named), piece.attributes)

    def _run_on_import(self, name: str) -> tuple[Target, ...]:
        """The statements that importing a module runs: its own and those of the packages around it."""
        if name not in self._effects:
            parts = name.split(".")
            around = (self.sources.module(".".join(parts[:length])) for length in range(1, len(parts) + 1))
            self._effects[name] = tuple((m.name, EFFECTS) for m in around if m and EFFECTS in m.definitions)
        return self._effects[name]

    def _module(self, name: str) -> Module:
        module = self.sources.module(name)
        assert module is not None  # targets come from modules that were found
        return module


@cache
def _links(sources: Sources, excluded: tuple[str, ...]) -> _Links:
    return _Links(sources, excluded)


def _reached(links: _Links, roots: Iterable[Target], select: Select) -> dict[Slot, Link]:
    """Every piece of code that is reached from the roots."""
    found: dict[Slot, Link] = {}
    named: set[Slot] = set()
    pending, seen = list(roots), set(roots)
    while pending:
        target = pending.pop()
        entries = links.definition(target).entries or {}
        chosen = select(entries) if entries else None
        keys = [""] if chosen is None else [key for key in entries if key in chosen or (*target, key) in named]
        for slot in ((*target, key) for key in keys):
            if slot in found:
                continue
            found[slot] = link = links.link(slot)
            again = {entry[:2] for entry in link.named if entry not in named}
            named.update(link.named)
            new = [t for t in link.targets if t not in seen]
            seen.update(new)
            pending += [*new, *sorted(again)]
    return found


def _properties_read(module: Module | None, links: Iterable[Link]) -> dict[str, str]:
    """Name -> code of every property of the module's classes that the linked code reads, directly or not."""
    definitions = module.definitions.values() if module else ()
    known = {name: piece for definition in definitions for name, piece in definition.properties()}
    found: dict[str, str] = {}
    pending = [link.attributes for link in links]
    while pending:
        for name in pending.pop() & known.keys() - found.keys():
            found[name] = known[name].text
            pending.append(known[name].attributes)
    return found


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
