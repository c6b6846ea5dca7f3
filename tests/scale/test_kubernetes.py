"""The Kubernetes profile as far as it goes without a cluster: what would run, and what pods would ask for."""

from __future__ import annotations

import importlib.util
import re

import pytest
from project import Project, build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_kubernetes") is None,
        reason="snakemake-executor-plugin-kubernetes is not installed",
    ),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = build(tmp_path_factory.mktemp("kubernetes") / "project")
    testbed = found.path / "experiments/testbeds/tiny.yaml"
    testbed.write_text(testbed.read_text() + "gpus: 1\n")
    return found


def test_a_dry_run_under_the_profile_plans_what_one_without_it_does(project: Project) -> None:
    profile = ("--workflow-profile", "profiles/kubernetes")
    assert project.planned(*profile) == project.planned()
    assert project.planned(*profile)["train"] > 0


def test_pods_ask_for_a_gpu_where_the_testbed_says_so_and_nowhere_else(project: Project) -> None:
    done = project.run("-n", "--workflow-profile", "profiles/kubernetes", "alpha", "beta")
    told = re.findall(r"^ +resources: (.*)$", done.stdout + done.stderr, re.MULTILINE)
    asked = [dict(part.split("=", 1) for part in line.split(", ") if "=" in part) for line in told]
    training = [resources for resources in asked if "row" in resources]
    assert training
    for resources in training:
        wanted = "1" if resources["row"].startswith("alpha") else None
        assert resources.get("gpu") == wanted
        assert resources["gpu_manufacturer"] == "nvidia" and resources["scale"] == "0"
