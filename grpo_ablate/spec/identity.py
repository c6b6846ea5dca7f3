"""The identity of a run: the hash of what is trained and measured, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from grpo_ablate.errors import UserError
from grpo_ablate.spec.reading import checked
from grpo_ablate.spec.schema import SCHEMA_VERSION, Budget, Evaluation, Spec, Update

# Directions for resolving, scoring or checking a spec; they change neither training nor measurement.
_OUTSIDE: dict[str, dict[str, Any]] = {
    "budget": {"hold": Budget.model_fields["hold"].default},
    "evaluation": {"last": Evaluation.model_fields["last"].default},
    "update": {"force": Update.model_fields["force"].default},
}


def replace(spec: Spec, changes: dict[str, dict[str, Any]]) -> Spec:
    """Return ``spec`` with keys replaced, ``{section: {key: value}}``."""
    sections = {name: getattr(spec, name).model_copy(update=keys) for name, keys in changes.items()}
    return spec.model_copy(update=sections)


def canonical_json(spec: Spec) -> str:
    """Return the sparse canonical JSON of a spec: keys at their neutral value dropped, the rest sorted, ASCII."""
    dumped = replace(spec, _OUTSIDE).model_dump(mode="json", exclude_defaults=True)
    return json.dumps(dumped, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def spec_hash(spec: Spec) -> str:
    """Return the 64 hexadecimal digits that name a spec, independent of every row's or file's name."""
    return hashlib.sha256(f"{SCHEMA_VERSION}:{canonical_json(spec)}".encode()).hexdigest()


def parse_spec(text: str, where: str) -> Spec:
    """Return the spec that a user states as sparse JSON; ``where`` is how an error calls it.

    Raises:
        UserError: the text is not JSON or no spec.
    """
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not JSON: {error}.") from None
    if not isinstance(stated, dict):
        raise UserError(f"{where}: expected a JSON object, the sparse spec of a row.")
    return checked(Spec, stated, where)


def from_canonical(text: str) -> Spec:
    """Return the spec whose canonical JSON is ``text``; neutral values fill what it leaves out."""
    return Spec.model_validate(json.loads(text))
