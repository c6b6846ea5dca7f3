"""The HTML page of what is finished: Snakemake's report, made by a Snakemake of its own that only looks.

A report of the whole grid would need the whole grid. This one takes the experiments whose files all exist and
come from today's code; it runs nothing and holds no lock, so that a rule of a running workflow may call it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.spec.exact_files import load_exact_experiments
from grpo_ablate.spec.resolve import load_experiments
from grpo_ablate.workflow.grid import OPTIONS, RESULTS, Grid
from grpo_ablate.workflow.staleness import is_stale


def finished(grid: Grid) -> list[str]:
    """Return the experiments whose every file exists and whose runs today's code made, or their testbed keeps."""
    return [
        name
        for name, experiment in grid.experiments.items()
        if all(Path(path).exists() for path in grid.results(name))
        and (
            experiment.testbed.stale == "keep"
            or not any(is_stale(cell, Path(RESULTS)) for cell in grid.cells_of(name))
        )
    ]


def reported(grid: Grid) -> list[str]:
    """Return what the report shows: finished experiments and the quick ones, with the pages of their tables."""
    names = list(dict.fromkeys([*grid.quick, *finished(grid)]))
    return [*grid.results(*names), *grid.pages(*names), *grid.exact_results, *_paper(grid, names)]


def _paper(grid: Grid, names: list[str]) -> list[str]:
    """The paper that tells of these experiments and no other: the report trains nothing."""
    return grid.paper if set(names) >= set(grid.standing) else grid.quick_paper


def build(target: Path) -> list[str]:
    """Write the report of what is finished to ``target``; return the names of its experiments.

    Raises:
        UserError: nothing is finished, or Snakemake refuses.
    """
    grid = Grid(load_experiments(), dict(OPTIONS), load_exact_experiments())
    names = finished(grid)
    pages = [path for path in grid.pages(*names) if Path(path).exists()]
    exact = ["exact"] if grid.exact_results and all(Path(path).exists() for path in grid.exact_results) else []
    paper = [path for path in _paper(grid, names) if Path(path).exists()]
    if not names and not exact:
        raise UserError(f"{RESULTS}: no experiment is finished; run: snakemake --cores all quick")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "snakemake", "--report", str(target), "--", *names, *pages, *exact, *paper]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise UserError(f"{target}: Snakemake says: {said[-1].strip().rstrip('.') if said else 'nothing'}.")
    return [*names, *exact, *(["paper"] if paper else [])]
