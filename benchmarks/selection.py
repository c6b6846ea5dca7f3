"""What the published selection experiment costs: the processor's seconds of its eight rows of 40 seeds.

``python benchmarks/selection.py`` in the project's root. The target is 6 s of one core, imports apart.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from grpo_ablate.runs.train import train
from grpo_ablate.spec.resolve import load_experiment


def main() -> None:
    """Train the rows one after another and print the time."""
    experiment = load_experiment(Path("experiments/selection.yaml"))
    rows = [row for row in experiment.rows if row.id.endswith(("--group-std", "--mean-only"))]
    with tempfile.TemporaryDirectory() as name:
        began = time.process_time()
        for row in rows:
            train(
                row.effective,
                range(40),
                Path(name) / row.id,
                Path(name) / f"{row.id}.scratch",
                testbed="selection",
            )
        taken = time.process_time() - began
    print(f"{len(rows)} rows of 40 seeds: {taken:.1f} s of one core")


if __name__ == "__main__":
    main()
