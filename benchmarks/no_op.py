"""How long a workflow with nothing to do takes, beside a Snakefile of one rule timed in turn with it.

Run it in a folder whose targets are made: ``python benchmarks/no_op.py [TARGET ...]``. The target in
seconds above the one-rule Snakefile is 2.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
ONE_RULE = 'rule all:\n    output:\n        "made.txt",\n    shell:\n        "touch {output}"\n'


def seconds(folder: Path, *targets: str) -> float:
    """Wall time of one ``snakemake --cores 2``."""
    snakemake = Path(sys.executable).with_name("snakemake")
    began = time.perf_counter()
    done = subprocess.run([snakemake, "--cores", "2", *targets], cwd=folder, capture_output=True, text=True)
    taken = time.perf_counter() - began
    if done.returncode:
        sys.exit(done.stderr)
    return taken


def main(targets: list[str]) -> None:
    """Print the medians and their difference."""
    with tempfile.TemporaryDirectory() as name:
        one_rule, here = Path(name), Path.cwd()
        (one_rule / "Snakefile").write_text(ONE_RULE)
        for folder, wanted in ((one_rule, []), (here, targets)):  # make, and warm the caches
            seconds(folder, *wanted)
        pairs = [(seconds(one_rule), seconds(here, *targets)) for _ in range(REPEATS)]
    plain, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"one rule {plain:.2f} s, nothing to do here {ours:.2f} s: {ours - plain:+.2f} s, {ours / plain:.1f} times"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
