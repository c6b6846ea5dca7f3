"""How long 5,000 runs take from their records to tables and verdicts, and how much memory.

Writes records that nobody trained into a temporary folder, then times ``collect`` and ``compare`` on them, each in
a process of its own: ``python benchmarks/aggregate.py [RUNS]``. The target is 30 seconds and 2 GB for 5,000 runs.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_ablate.metrics import METRICS
from grpo_ablate.runs.record import metrics_table, publish
from grpo_ablate.spec.cells import Cell, cells
from grpo_ablate.spec.resolve import Experiment, load_experiment

SEEDS, BLOCK, EVALUATIONS = 100, 8, 18
TESTBED = f"""
description: records that nobody trained
seeds_per_job: {BLOCK}
task:
  name: selection
  prompts:
    - {{source: a, target: b, candidates: [{{text: c, quality: 1}}, {{text: d, quality: 0}}]}}
evaluation: {{every: 4, samples: exact, last: 3}}
sampling: {{prompts: 1, group_size: 8}}
optimizer: {{name: sgd, learning_rate: 0.3}}
budget: {{rollouts: 544}}
"""


def experiment(folder: Path, runs: int) -> Experiment:
    """Write and load an experiment of that many runs, its two controls included; every fifth row has a claim."""
    rows = {
        f"row-{number}": f"{{optimizer: {{learning_rate: 0.{number + 100}}}}}"
        for number in range(runs // SEEDS - 2)
    }
    claims = [
        f"  - {{id: claim-{place}, statement: It helps, source: nobody,"
        f" test: {{is: better, row: {row}, than: row-0}}}}"
        for place, row in enumerate(list(rows)[5::5])
    ]
    text = ["question: Which?", "testbed: large", "baseline: row-0", f"seeds: {SEEDS}", "margin: 0.01", "rows:"]
    text += [f"  {row}: {switches}" for row, switches in rows.items()] + ["claims:", *claims, ""]
    (folder / "experiments" / "testbeds").mkdir(parents=True)
    (folder / "experiments" / "testbeds" / "large.yaml").write_text(TESTBED)
    (folder / "experiments" / "large.yaml").write_text("\n".join(text))
    return load_experiment(folder / "experiments" / "large.yaml")


def write(results: Path, cell: Cell) -> None:
    """Publish a record with every published metric, noise in all of them."""
    lines, numbers = BLOCK * EVALUATIONS, np.random.default_rng([int(cell.hash[:6], 16), cell.first_seed])
    rounds = torch.arange(EVALUATIONS).repeat(BLOCK) * 4
    columns = {"seed": torch.tensor(cell.seeds).repeat_interleave(EVALUATIONS), "round": rounds, "updates": rounds}
    columns |= {"rollouts": rounds * 8, "tokens": rounds * 8}
    names = [name for name in METRICS if not name.endswith(("_k", "_group"))]
    columns |= {name: torch.from_numpy(numbers.normal(0.5, 0.01, lines)) for name in names}
    run = {
        "schema_version": 1, "hash": cell.hash, "spec": json.loads(cell.spec_json), "testbed": cell.testbed,
        "seeds": cell.seeds, "status": "finished", "diverged": {}, "digest": "0" * 16,
        "budget": {name: [spent] * BLOCK for name, spent in (("rollouts", 544), ("tokens", 544), ("updates", 68))},
    }  # fmt: skip
    timing = {
        "seconds": 1.0, "parts": {}, "curve": [[4 * line, line / 18] for line in range(EVALUATIONS)],
        "peak_memory_bytes": 0, "updates": 68 * BLOCK, "machine": "none",
    }  # fmt: skip
    made: dict[str, Any] = {
        "commit": None, "dirty": None, "versions": {}, "processor": "none", "threads": 1,
        "started": "2025-01-02T03:04:05+00:00", "interrupted": [],
    }  # fmt: skip
    parameters = {"logits": torch.from_numpy(numbers.normal(size=(BLOCK, 2)))}
    apart: dict[str, dict[str, Any]] = {"timing": timing, "provenance": made}
    publish(results / cell.folder, results / "aside", metrics_table(columns), [], parameters, run, apart)


def timed(folder: Path, command: str) -> None:
    """Run a command on the experiment and print its wall time, its processor time and its largest memory."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    arguments = [sys.executable, "-m", "grpo_ablate", command, "experiments/large.yaml"]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{command}: {wall:.1f} s ({used:.1f} s of a processor), {after.ru_maxrss / 2**20:.2f} GB at most so far"
    )


def main() -> None:
    """Write the records and time both commands."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for cell in cells([experiment(folder, runs)]):
            write(folder / "results", cell)
        # As the workflow does first: whoever finds no table of the exact controls judges them again.
        subprocess.run([sys.executable, "-m", "grpo_ablate", "controls"], cwd=folder, check=True)
        for command in ("collect", "compare"):
            timed(folder, command)


if __name__ == "__main__":
    main()
