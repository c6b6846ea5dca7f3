"""Reads YAML and checks it against a typed record; every fault becomes one sentence."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Tag, ValidationError

from grpo_ablate.errors import UserError, nearest

_SCALARS = {
    "tag:yaml.org,2002:bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "tag:yaml.org,2002:int": (r"^[-+]?[0-9]+$", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
}


class _Loader(yaml.CSafeLoader):
    """A safe loader with YAML 1.2 scalars (``off`` is a word, ``1e-3`` a number) that refuses duplicate keys."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue  # what an anchor brings in may be overridden
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"'{key}' is written twice (first on line {seen[key]})", key_node.start_mark
            )
        seen[key] = key_node.start_mark.line + 1
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)))  # decimal, leading zeros too


for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping with a safe loader.

    Raises:
        UserError: the file is missing (another of nearly that name is offered), is not YAML, repeats a key, or is
            not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}{_offer(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path}: cannot be read: {reason}.") from None
    return parse_yaml(text, str(path))


def _offer(path: Path) -> str:
    """End a sentence on a missing file: offer the nearest of its folder and of ``experiments``, by name."""
    folders = (path.parent, Path("experiments"))
    known = {other.stem: other for folder in folders for other in sorted(folder.glob("*.yaml"))}
    close = difflib.get_close_matches(path.stem, known, n=1)
    return f"; did you mean '{known[close[0]]}'?" if close else "."


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse the text of one YAML mapping; ``name`` is what an error calls it."""
    try:
        data = yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{name}:{line} {error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{name}: not valid YAML: {str(error).splitlines()[0]}.") from None
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        raise UserError(f"{name}: expected a mapping of keys to values, found it {found}.")
    return data


Record = TypeVar("Record", bound=BaseModel)


def checked(model: type[Record], data: Any, where: str) -> Record:
    """Validate ``data`` against ``model``.

    Raises:
        UserError: one sentence for the first key at fault, prefixed by ``where``.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(model, error)}") from None


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    unknown = [e for e in errors if e["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    path, owner = _keys(model, first["loc"])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'; {_suggestion(model, owner or model, path[-1])}"
    if first["type"] == "union_tag_invalid":
        known = first["ctx"]["expected_tags"].replace("'", "").split(", ")
        name = first["ctx"]["tag"]
        return f"{key}.name is '{name[:80]}'; {nearest(name, known)}"
    if first["type"] == "missing":
        return f"the key '{key}' is missing."
    same = [e for e in errors if _keys(model, e["loc"])[0] == path]
    expected = " or ".join(dict.fromkeys(_expected(e) for e in same))
    value = first["input"]
    shown = "empty" if value is None else repr(value)
    return f"{key} is {shown[:80]}, expected {expected}."


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel] | None]:
    """Split a pydantic location into the keys a user wrote (union branches left out) and the last model."""
    keys: list[str] = []
    current: Any = model
    last: type[BaseModel] | None = model
    for part in loc:
        branches = _branches(current)
        if part in branches:  # the name by which a record was chosen is no key
            current = branches[str(part)]
            continue
        records = _records_beside_values(current)
        if part in records:  # nor is the name of the record among plain values
            current = records[str(part)]
            continue
        if records:  # a plain value was expected instead
            continue
        current = _without_none(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            last = current
            keys.append(str(part))
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        elif get_origin(current) is dict:
            if part == "[key]":
                continue
            keys.append(str(part))
            current = get_args(current)[1]
        elif get_origin(current) is list:
            keys.append(str(part))
            current = get_args(current)[0]
    return keys, last


def _branches(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return name -> record of a section that is one of several, chosen by its name; empty for others."""
    return {
        mark.tag: get_args(branch)[0]
        for branch in get_args(annotation)
        for mark in getattr(branch, "__metadata__", ())
        if isinstance(mark, Tag)
    }


def _records_beside_values(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return name -> record of an annotation such as ``Record | Literal["off"]``; empty for others."""
    options = [option for option in get_args(annotation) if option is not type(None)]
    if get_origin(annotation) not in (Union, type(int | str)) or len(options) < 2:
        return {}
    return {
        option.__name__: option for option in options if isinstance(option, type) and issubclass(option, BaseModel)
    }


def _without_none(annotation: Any) -> Any:
    while get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, type(int | str)):
        models = [a for a in get_args(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        return models[0] if models else annotation
    return annotation


def _suggestion(model: type[BaseModel], owner: type[BaseModel], key: str) -> str:
    """Offer the nearest key of ``owner``, or the section of ``model`` that has this one."""
    offer = nearest(key, owner.model_fields)
    if offer.startswith("did you"):
        return offer
    elsewhere = [
        f"{section}.{key}"
        for section, field in model.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and key in field.annotation.model_fields
    ]
    return f"did you mean '{elsewhere[0]}'?" if elsewhere else offer


_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a word",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "list_type": "a list",
    "string_pattern_mismatch": "a name of lower-case letters, digits, '.' and '-'",
}


def _expected(error: Any) -> str:
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        words = {"greater_than_equal": "at least", "greater_than": "more than"}
        words |= {"less_than_equal": "at most", "less_than": "less than"}
        return f"{words[kind]} {next(iter(context.values())):g}"
    if kind in ("too_short", "too_long"):
        bound = context["min_length"] if kind == "too_short" else context["max_length"]
        return f"{'at least' if kind == 'too_short' else 'at most'} {bound} entries"
    return _TYPES.get(kind, error["msg"][0].lower() + error["msg"][1:])
