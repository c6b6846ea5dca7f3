"""A training state on disk: plain tensors in one safetensors file with JSON beside them, never code.

The file is written aside and renamed, and carries a digest of its tensors, so that a reader finds either
a whole checkpoint or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_ablate.tensor_files import os_errors

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a state and the JSON-ready notes that go with them."""

    tensors: dict[str, Tensor]
    notes: dict[str, Any]


class UnusableError(Exception):
    """The file is no checkpoint of this run; the message says why, as a clause."""


def save(path: Path, tensors: dict[str, Tensor], identity: dict[str, str], notes: dict[str, Any]) -> None:
    """Write a checkpoint of the run that ``identity`` names, replacing an earlier one in one step.

    Raises OSError where it cannot be written.
    """
    plain = unshared(tensors)
    header = {"format": FORMAT, "identity": identity, "digest": digest(plain), "notes": notes}
    aside = path.with_suffix(".writing")
    with os_errors():
        save_file(plain, aside, metadata={"checkpoint": json.dumps(header)})
    with aside.open("rb") as written:
        os.fsync(written.fileno())
    aside.replace(path)


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, copied where they share memory, as expanded ones do: safetensors refuses those."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        found[name] = plain
    return found


def load(path: Path, identity: dict[str, str]) -> Checkpoint:
    """Return the checkpoint in ``path``.

    Raises FileNotFoundError where there is none, and UnusableError where the file is damaged or belongs to
    another spec, other seeds or other training code.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})["checkpoint"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
        stated, found, wanted = header["identity"], header["digest"], header["format"]
        notes = header["notes"]
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise UnusableError(f"it cannot be read ({type(error).__name__})") from None
    if wanted != FORMAT:
        raise UnusableError(f"its format is {wanted}, not {FORMAT}")
    for key, value in identity.items():
        if stated.get(key) != value:
            raise UnusableError(f"it was written by a run with another {key}")
    if found != digest(tensors):
        raise UnusableError("its contents do not match their digest")
    return Checkpoint(tensors, notes)


def usable(path: Path, identity: dict[str, str]) -> Checkpoint | None:
    """Return the checkpoint to continue from, None where the work starts anew: says why where a file is no use."""
    try:
        return load(path, identity)
    except FileNotFoundError:
        return None
    except UnusableError as reason:
        print(f"{path}: not used, the training starts anew: {reason}", file=sys.stderr)
        return None


def digest(tensors: dict[str, Tensor]) -> str:
    """Return a sha256 over names, types, shapes and bytes, independent of the order of insertion."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():
            total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
