"""The files of a warm start as every reader takes them: of the right shape, true to their checksum.

``parameters.safetensors`` the parameters of every member, ``model`` a transformers folder of each, ``start.json``
what was trained, by which code, the checksum of the parameters and how the start does on held-out prompts; its
bytes are a function of the start and the code. ``timing.json`` and ``provenance.json`` stand apart. Light.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, FiniteFloat

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import Shape, Whole, read_bytes, read_sealed, unusable
from grpo_ablate.spec.warmstart import Start

if TYPE_CHECKING:
    from torch import Tensor

PARAMETERS, FILE, MODEL = "parameters.safetensors", "start.json", "model"


@dataclass(frozen=True)
class Begin:
    """The warm start that a run begins from: its parameters by name, for all seeds or for each, and its names."""

    parameters: dict[str, Tensor]  # [1, ...] or [M, ...]
    hash: str
    sha256: str  # of the file of parameters


class StartFile(Shape):
    """``start.json``: ``checksum`` is its own, ``sha256`` that of the parameters.

    The lists of ``evaluation`` and ``loss`` have a number for each member.
    """

    schema_version: int
    hash: str
    spec: dict[str, Any]
    seeds: Annotated[list[Whole], Field(min_length=1)] | None
    digest: str
    sha256: str
    checksum: str
    evaluation: dict[str, list[FiniteFloat | None]]
    loss: list[Annotated[tuple[Whole, list[FiniteFloat | None]], Field(strict=False)]]


def read_start(folder: Path) -> dict[str, Any]:
    """Return ``start.json``: see `StartFile`. Raises UserError where it is missing or damaged."""
    return read_sealed(folder / FILE, StartFile)


def found_start(results: Path, start: Start) -> dict[str, Any] | None:
    """Return ``start.json`` of a start, None where it is not trained; its other files are not looked at.

    Raises UserError where the file is damaged, or is of another start.
    """
    folder = results / start.folder
    if not (folder / FILE).exists():
        return None
    found = read_start(folder)
    seeds = None if start.seeds is None else list(start.members)
    if found["hash"] != start.hash or found["seeds"] != seeds:
        raise unusable(folder / FILE, "is of another warm start than its folder's name says")
    return found


def start_parameters(results: Path, start: Start, command: str) -> tuple[dict[str, Any], bytes]:
    """Return ``start.json`` and the bytes of the parameters, which match its checksum.

    Raises UserError where something is missing, which ``command`` would make, or damaged.
    """
    found = found_start(results, start)
    path = results / start.folder / PARAMETERS
    if found is None:
        raise UserError(
            f"{path.with_name(FILE)}: the warm start of this run is not trained yet; make it with: {command}"
        )
    content = read_bytes(path)
    if hashlib.sha256(content).hexdigest() != found["sha256"]:
        raise unusable(path, f"differs from the checksum in {FILE}")
    return found, content
