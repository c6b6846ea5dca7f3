"""``grpo-ablate bench``: checks what the command line asks for, measures it, prints the report."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from grpo_ablate.bench.workload import DEFAULT, Workload, check_comparable, prepared, spec_of_testbed
from grpo_ablate.errors import UserError, nearest

AGAINST = ("transformers", "trl")
MEMBERS = {"cpu": (1, 4, 8, 16), "cuda": (1, 8, 64, 256)}
PRODUCTS = 8  # matrix products in a slice of the machine's peak: about a second


def bench_command(arguments: argparse.Namespace) -> int:
    """Measure what the command line names and print it; return the exit code."""
    members = None if arguments.members is None else _members(arguments.members)
    for option in ("processes", "slices", "rounds"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: expected at least 1.")
    against = list(dict.fromkeys(arguments.against))
    for name in against:
        if name not in AGAINST:
            raise UserError(f"--against {name}: {nearest(name, AGAINST)}")
        if importlib.util.find_spec(name) is None:
            extra = name if name == "transformers" else f"grpo-ablate[{name}]"
            raise UserError(f"--against {name}: the package {name} is not installed; pip install '{extra}'.")
    testbeds = list(dict.fromkeys(arguments.testbeds)) or list(DEFAULT)
    for name in testbeds:
        spec = spec_of_testbed(name)
        if against:
            check_comparable(spec, against, name)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"  # as the policy chooses
    from grpo_ablate.bench.report import as_json, head, page

    machine, reports = _machine(), []
    if not arguments.json:
        print(head(machine))
    with tempfile.TemporaryDirectory() as scratch:
        for name in testbeds:
            rounds = arguments.rounds or -(-spec_of_testbed(name).rounds // arguments.slices)
            work = prepared(name, arguments.results, 1 + rounds * arguments.slices, Path(scratch))
            reports.append(
                _measured(
                    work, members or MEMBERS[device], against, processes=arguments.processes,
                    slices=arguments.slices, rounds=rounds, device=device, scratch=Path(scratch) / name,
                )
            )  # fmt: skip
            if not arguments.json:  # what is measured is not lost when the next testbed is interrupted
                print("\n" + page(reports[-1]), flush=True)
    if arguments.json:
        print(as_json(reports, machine))
    return 0


def _measured(
    work: Workload,
    members: tuple[int, ...],
    against: list[str],
    *,
    processes: int,
    slices: int,
    rounds: int,
    device: str,
    scratch: Path,
) -> Any:
    from grpo_ablate.bench.job import Job, language_task
    from grpo_ablate.bench.measure import Side, measure
    from grpo_ablate.bench.mlflow_cost import mlflow_cost
    from grpo_ablate.bench.report import Report
    from grpo_ablate.bench.summary import evaluations_of, peak_gflops, summarise
    from grpo_ablate.policies.stacked.architecture import Architecture
    from grpo_ablate.spec.identity import canonical_json
    from grpo_ablate.spec.schema import StackedPolicy

    samples = tuple(evaluations_of(work.whole))
    sides = [
        Side("matmul", 0, PRODUCTS),
        *(Side("grpo-ablate", count, rounds, samples) for count in members),
        *(Side(name, 1, rounds) for name in against),
    ]
    text = canonical_json(work.spec)
    peak, *results = measure(
        sides,
        lambda side, process: Job(side.name, text, str(work.results), max(1, side.members), process, device),
        processes=processes,
        slices=slices,
        say=lambda said: _say(f"{work.testbed}: {said}"),
    )
    others = [result for result in results if result.side.name in against]
    reached = peak_gflops(peak)
    _say(f"{work.testbed}: MLflow")
    assert isinstance(work.whole.policy, StackedPolicy)
    return Report(
        testbed=work.testbed,
        spec=work.whole,
        parameters=Architecture(work.whole.policy, len(language_task(work.whole).vocabulary)).size,
        origin=work.origin,
        processes=processes,
        slices=slices,
        rounds=rounds,
        device=device,
        peak_gflops=reached,
        sides=tuple(
            summarise(result, reached.median, [] if result in others else others, work.whole) for result in results
        ),
        mlflow=mlflow_cost(work.whole, work.testbed, scratch),
    )  # fmt: skip


def _members(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text) is None:
        raise UserError(f"--members {text}: expected whole numbers between commas, as in 1,4,8,16.")
    return tuple(dict.fromkeys(int(count) for count in text.split(",")))


def _machine() -> dict[str, Any]:
    from grpo_ablate.runs.provenance import provenance

    found = provenance(1)
    for name in AGAINST:
        try:
            found["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found["versions"][name] = None
    return found


def _say(text: str) -> None:
    """Say how far it is, out of the way of the report."""
    print(text, file=sys.stderr, flush=True)
