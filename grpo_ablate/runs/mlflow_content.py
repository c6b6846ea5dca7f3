"""What MLflow is told of a run beside its numbers: parameters, tags, and the fingerprint of its record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_ablate.runs.record import Record
    from grpo_ablate.spec.schema import Spec

PARAMETER_LENGTH = 500  # MLflow cuts at 6,000 without a word; a chart needs far less
TAG_LENGTH = 5000  # and at 8,000 for a tag
TAGS_VERSION = 2  # runs that were logged with other tags are written anew
DIRECTIONS = ("budget.hold", "evaluation.last", "update.force")  # no property of a run


def parameters(spec: Spec) -> dict[str, str]:
    """Return every resolved switch under its dotted name; a long value as its digest, the spec tags have it whole.

    >>> from grpo_ablate.spec.schema import Kl
    >>> flat = _flat("kl", Kl(beta=0.05).model_dump(mode="json"))
    >>> flat["kl.beta"], flat["kl.place"]
    ('0.05', 'loss')
    """
    flat = _flat("", spec.model_dump(mode="json"))
    return {name: text for name, text in flat.items() if name not in DIRECTIONS}


def _flat(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict) and value:
        inner = [_flat(f"{name}.{part}" if name else part, value[part]) for part in value]
        return {key: text for part in inner for key, text in part.items()}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > PARAMETER_LENGTH:
        text = f"sha256:{_digest(text)} ({len(text)} characters, in the tags spec.*)"
    return {name: text}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_tags(spec: str, digest: str, testbed: str, folder: str) -> dict[str, str]:
    """Return the tags of every run: hash, testbed, folder in the results, and the sparse spec.

    The spec is whole in the tags ``spec.0``, ``spec.1``, ... joined.
    """
    parts = [spec[start : start + TAG_LENGTH] for start in range(0, len(spec), TAG_LENGTH)]
    tags = {"hash": digest, "testbed": testbed, "folder": folder}
    return tags | {f"spec.{number}": part for number, part in enumerate(parts)}


def record_tags(record: Record, seed: int) -> dict[str, str]:
    """Return what a record says of how and where one of its seeds was trained."""
    diverged = record.run["diverged"].get(str(seed))
    kept = {
        "seed": seed,
        "status": "finished" if diverged is None else "diverged",
        "diverged": diverged,
        "digest": record.run["digest"],
        "parameters": record.run["checksums"]["parameters.safetensors"],  # of the whole block of seeds
        **{key: record.provenance[key] for key in ("commit", "dirty", "versions", "processor", "threads")},
    }
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in kept.items()
        if value is not None
    }


def fingerprint(run: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change when a record's measurements, code or times, or the tags, do."""
    return _digest(json.dumps([run, timing["curve"], TAGS_VERSION], sort_keys=True))
