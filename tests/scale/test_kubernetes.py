"""The Kubernetes profile as far as it goes without a cluster: a kubectl that runs the pods' commands here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from machine import fake_machine, run_files
from project import Project, build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_cluster_generic") is None,
        reason="snakemake-executor-plugin-cluster-generic is not installed",
    ),
]
PROFILE = ("--workflow-profile", "profiles/kubernetes")
# Keeps each Job's manifest, runs its command, and answers as kubectl does.
KUBECTL = f"""#!{sys.executable}
import json, os, subprocess, sys
from pathlib import Path
jobs = Path(os.environ["JOBS"])
if sys.argv[1] == "create":
    manifest = json.load(sys.stdin)
    number = len(list(jobs.glob("*.json")))
    (jobs / f"{{number}}.json").write_text(json.dumps(manifest))
    pod = manifest["spec"]["template"]["spec"]["containers"][0]
    with (jobs / f"{{number}}.said").open("wb") as said:
        code = subprocess.run(pod["command"], cwd=pod["workingDir"], stdout=said, stderr=said).returncode
    (jobs / f"{{number}}.status").write_text("1," if code == 0 else ",1")
    print(f"job.batch/{{number}}")
elif sys.argv[1] == "get":
    print((jobs / f"{{Path(sys.argv[2]).name}}.status").read_text(), end="")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = build(tmp_path_factory.mktemp("kubernetes") / "project")
    testbed = found.path / "experiments/testbeds/tiny.yaml"
    testbed.write_text(testbed.read_text() + "gpus: 1\n")
    return found


def test_a_dry_run_under_the_profile_plans_what_one_without_it_does(project: Project) -> None:
    assert project.planned(*PROFILE) == project.planned()
    assert project.planned(*PROFILE)["train"] > 0


def test_jobs_run_in_pods_which_ask_for_a_gpu_where_the_testbed_says_so(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [next(path for path in run_files(project) if f"/{name}/" in path) for name in ("kept", "tiny")]
    here = project.cloned(tmp_path / "here")
    for name, value in fake_machine(tmp_path, 1).items():
        monkeypatch.setenv(name, value)
    here.run("--cores", "1", *targets)
    (tmp_path / "bin/kubectl").write_text(KUBECTL)
    (tmp_path / "bin/kubectl").chmod(0o755)
    (tmp_path / "jobs").mkdir()
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs"))
    project.run(*targets, *PROFILE)
    assert project.records() == here.records() != {}
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*.json")]
    pods = [manifest["spec"]["template"]["spec"] for manifest in manifests]
    for pod in pods:
        (container,) = pod["containers"]
        assert container["image"] == "grpo-ablate:0.1.0" and container["workingDir"] == str(project.path)
        assert container["volumeMounts"] == [{"name": "project", "mountPath": "/grpo-ablate"}]
        assert pod["volumes"] == [{"name": "project", "persistentVolumeClaim": {"claimName": "grpo-ablate"}}]
    asked = [pod["containers"][0]["resources"] for pod in pods]
    plain = {"cpu": "1", "memory": "4000Mi"}
    for limits in (plain, plain | {"nvidia.com/gpu": "1"}):
        assert asked.count({"requests": limits, "limits": limits}) == 1
    assert len(asked) == 2
