"""The facts about a machine that decide what it can run, and the probes that find them here."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_ablate.runs.devices import VISIBLE, Device, installed, visible

PROGRAMS = ("latexmk", "sbatch", "sinfo", "kubectl")
# Built for a certain torch: beside another one they cannot be imported, and transformers stumbles over them.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
EXTRA = re.compile(r"""^([A-Za-z0-9._-]+).*;.*extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True)
class Machine:
    """What is known of a machine. Memory and disk are in bytes, names of packages as pip spells them."""

    python: tuple[int, int]
    packages: Mapping[str, str]  # every installed package -> version
    extras: Mapping[str, str] = field(default_factory=dict)  # package -> the extra of this project that brings it
    programs: frozenset[str] = frozenset()  # those of PROGRAMS on the path
    broken: tuple[str, ...] = ()  # installed COMPANIONS that cannot be imported
    torch_fault: str = ""  # why torch, though installed, cannot be imported
    gpus: tuple[Device, ...] = ()  # that the driver shows
    visible: tuple[Device, ...] = ()  # that CUDA_VISIBLE_DEVICES leaves
    setting: str | None = None  # CUDA_VISIBLE_DEVICES
    cuda: str | None = None  # the CUDA that torch was built for
    torch_gpus: int = 0  # GPUs that torch can use
    bfloat16: bool = False  # whether they compute in it
    slurm: str | None = None  # what sinfo says of partitions; None: no answer
    cluster: bool = False  # whether there is a configuration of a Kubernetes cluster
    smollm2: bool = False  # whether the model's folder has been made
    processors: int = 1
    memory: int = 0
    disk: int = 0  # free where results go


def probe(results: Path) -> Machine:
    """Return the facts about this machine, as this process sees it."""
    gpus, setting = installed(), os.environ.get(VISIBLE)
    packages = _packages()
    fault = _fault("torch") if "torch" in packages else ""
    cuda, torch_gpus, bfloat16 = _torch() if "torch" in packages and not fault else (None, 0, False)
    return Machine(
        python=sys.version_info[:2],
        packages=packages,
        extras=_extras(),
        programs=frozenset(name for name in PROGRAMS if shutil.which(name)),
        broken=tuple(name for name in COMPANIONS if name in packages and _fault(name)),
        torch_fault=fault,
        gpus=gpus,
        visible=visible(gpus, setting),
        setting=setting,
        cuda=cuda,
        torch_gpus=torch_gpus,
        bfloat16=bfloat16,
        slurm=_says("sinfo", "--noheader", "--format=%P %D"),
        cluster=any(map(_there, _configurations())),
        smollm2=_there(results / "models" / "smollm2" / "config.json"),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk=shutil.disk_usage(next(filter(_there, (results, *results.absolute().parents)))).free,
    )


def _packages() -> dict[str, str]:
    """Return package -> version; of one that is installed twice, that which is imported: the first on the path."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        try:
            name, version = package.metadata["Name"], package.version
        except (FileNotFoundError, KeyError):  # of a folder that pip left where it was interrupted
            continue
        if name:
            found.setdefault(_spelled(name), version)
    return found


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _extras() -> dict[str, str]:
    """Return package -> the first extra of this project that asks for it, as the project's metadata say."""
    try:
        wanted = importlib.metadata.requires("grpo-ablate") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return extras_of(wanted)


def extras_of(requirements: list[str]) -> dict[str, str]:
    """Return package -> extra of requirements as a package's metadata list them; ``dev`` is for its developers.

    >>> extras_of(["numpy", "peft>=0.21; extra == 'lora'", 'trl==1.16.0; extra == "trl"', "ruff; extra == 'dev'"])
    {'peft': 'lora', 'trl': 'trl'}
    """
    found: dict[str, str] = {}
    for match in filter(None, map(EXTRA.match, requirements)):
        if match[2] != "dev":
            found.setdefault(_spelled(match[1]), match[2])
    return found


def _torch() -> tuple[str | None, int, bool]:
    """Return the CUDA that torch was built for, the GPUs that it can use, and whether they know bfloat16."""
    import torch

    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        capable = all(torch.cuda.get_device_capability(place) >= (8, 0) for place in range(count))
    except RuntimeError:  # the driver shows a GPU that it cannot start
        return torch.version.cuda, 0, False
    return torch.version.cuda, count, count > 0 and capable


def _fault(name: str) -> str:
    """Return why a module cannot be imported, on one line; empty where it can."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return (str(error).partition("\n")[0] or type(error).__name__)[:100]
    return ""


def _says(*command: str) -> str | None:
    """Return what a program answers in a few seconds; None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _there(path: Path) -> bool:
    """Return whether a file is there and this user may know it."""
    try:
        return path.exists()
    except OSError:
        return False


def _configurations() -> list[Path]:
    """Return where a Kubernetes configuration may lie: named, in the home folder, or given to a pod."""
    named = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    home = Path(os.environ.get("HOME", "/"))  # a user of a container may have none
    return [*named, home / ".kube/config", Path("/var/run/secrets/kubernetes.io/serviceaccount/token")]
