"""A machine with fake GPUs: an ``nvidia-smi`` that names them, and a folder of leases of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from project import Project

from grpo_ablate.runs.devices import FOLDER, HELD, ORDER, VISIBLE

SCRIPT = """#!/bin/sh
cat <<'LIST'
{lines}
LIST
"""


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-fake"


def fake_machine(folder: Path, count: int) -> dict[str, str]:
    """Return the environment of a process on a machine with ``count`` GPUs."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"{number}, {uuid(number)}, Fake GPU, 1024" for number in range(count))
    (programs / "nvidia-smi").write_text(SCRIPT.format(lines=lines))
    (programs / "nvidia-smi").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in (VISIBLE, ORDER, HELD)}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"PATH": path, FOLDER: str(folder / "leases")}


def run_files(project: Project) -> list[str]:
    """The run.json of every cell of a project, sorted: targets of Snakemake that leave out tables and figures."""
    done = subprocess.run(
        [sys.executable, "-m", "grpo_ablate", "status", "--json"],
        cwd=project.path, env={**os.environ, "PYTHONPATH": str(project.path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return sorted({f"results/{cell['folder']}/run.json" for cell in json.loads(done.stdout)["cells"]})
