"""Run a job of Snakemake's as a Job of Kubernetes, by kubectl: what the profile beside this file calls.

``submit`` prints the name of the Job that it makes of a script, ``status`` one word as Snakemake wants it, and
``cancel`` deletes Jobs. All run in the project's folder, on a volume that every pod has at the same path.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def manifest(script: str, options: argparse.Namespace) -> dict[str, object]:
    """Return the Job that runs ``script``: one pod, never tried again; Snakemake does that."""
    wanted = {"cpu": options.cpus, "memory": f"{options.memory}Mi"}
    if options.gpus != "0":
        wanted["nvidia.com/gpu"] = options.gpus
    container = {
        "name": "job",
        "image": options.image,
        "command": ["sh", script],
        "workingDir": str(Path.cwd()),
        "resources": {"requests": wanted, "limits": wanted},
        "volumeMounts": [{"name": "project", "mountPath": options.at}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "project", "persistentVolumeClaim": {"claimName": options.claim}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "grpo-ablate-"},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 86400, "template": {"spec": pod}},
    }


def kubectl(*arguments: str, told: str = "") -> str:
    """Return what kubectl says; end as it does where it fails."""
    done = subprocess.run(["kubectl", *arguments], input=told, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.strip()


def status(name: str) -> str:
    """Return success, failed or running."""
    told = kubectl("get", name, "--output", "jsonpath={.status.succeeded},{.status.failed}")
    succeeded, _, failed = told.partition(",")
    return "success" if succeeded else "failed" if failed else "running"


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    submit = commands.add_parser("submit")
    for option in ("image", "claim", "at", "cpus", "memory", "gpus"):
        submit.add_argument(f"--{option}", required=True)
    submit.add_argument("script")
    commands.add_parser("status").add_argument("name")
    commands.add_parser("cancel").add_argument("names", nargs="+")
    options = parser.parse_args()
    if options.command == "submit":
        told = json.dumps(manifest(options.script, options))
        print(kubectl("create", "--filename", "-", "--output", "name", told=told))
    elif options.command == "status":
        print(status(options.name))
    else:
        kubectl("delete", *options.names, "--wait=false")


if __name__ == "__main__":
    main()
