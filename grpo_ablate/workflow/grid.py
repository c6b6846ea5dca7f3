"""What the rules need to know at parse time: experiments, their cells, and the files of each step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo_ablate.analysis.comparison import FILES
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.cells import Cell, cells, experiment_cells
from grpo_ablate.spec.exact_files import ExactExperiment, load_exact_experiments
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.resolve import Experiment, load_conform_experiments, load_experiments
from grpo_ablate.spec.resolve import standing as standing_of
from grpo_ablate.spec.warmstart import Start, start_of, starts
from grpo_ablate.workflow.guard import guard

RESULTS = "results"
DEMANDED = ("metrics.parquet", "run.json")  # a record without any other file is found at parse time
TABLES = ("-runs.parquet", "-runs.csv", ".csv")
# The printed summary is the comparison's: above it stand controls that the collected table does not wait for.
COMPARISON = (".md", ".tex", ".typ", *FILES)
CONTROLS = tuple(f"{RESULTS}/tables/controls{suffix}" for suffix in (".csv", ".md", ".tex", ".typ"))
PAPERS = {  # edition -> its files: one tells of every experiment, the other of those that take seconds
    name: (
        f"paper/{name}.pdf",
        f"{RESULTS}/paper/numbers{suffix}.json",
        f"{RESULTS}/figures/overview{suffix}.pdf",
        f"{RESULTS}/figures/overview{suffix}.png",
    )
    for name, suffix in (("paper", ""), ("paper-quick", "-quick"))
}
ARXIV = {name: f"{RESULTS}/arxiv/{name}.tar.gz" for name in ("arxiv", "arxiv-quick")}
ACROSS = tuple(f"{RESULTS}/tables/across{suffix}" for suffix in (".csv", ".md", ".tex", ".typ"))
PROPOSITIONS = tuple(f"{RESULTS}/tables/propositions{suffix}" for suffix in (".csv", ".md", ".tex", ".typ"))
TARGETS = (
    "all", "grid", "quick", "smoke", "paper", "paper-quick", "train", "log", "collect", "compare", "controls",
    "across", "exact", "arxiv", "arxiv-quick", "verify", "page", "report",
)  # fmt: skip
OPTIONS = {"source": "records", "tracking_uri": None}

# With one of these Snakemake looks or tidies, and runs no job.
_LOOKING = frozenset(
    {
        "--lint", "--summary", "-S", "--detailed-summary", "-D", "--report", "--dag", "--rulegraph",
        "--filegraph", "--d3dag", "--list", "--list-rules", "-l", "--list-target-rules", "--lt",
        "--list-changes", "--list-input-changes", "--list-params-changes", "--list-untracked", "--lu",
        "--unlock", "--cleanup-metadata", "--cm", "--archive", "--containerize", "--generate-unit-tests",
        "--print-compilation",
    }
)  # fmt: skip


class Grid:
    """Every experiment, and where its files lie. All paths are relative to the working directory."""

    def __init__(
        self,
        experiments: Iterable[Experiment],
        options: dict[str, str | None],
        exact: Iterable[ExactExperiment] = (),
        conform: Iterable[Experiment] = (),
    ) -> None:
        self.experiments = {experiment.name: experiment for experiment in experiments}
        self.exact = {experiment.name: experiment for experiment in exact}
        self.conform = {experiment.name: experiment for experiment in conform}
        self.standing = [experiment.name for experiment in standing_of(self.experiments.values())]
        self.cells = cells(self.experiments.values())
        self._specs = {(cell.testbed, cell.hash[:8]): cell.spec_json for cell in self.cells}
        self.starts = starts([*self.cells, *cells(self.conform.values())])
        self._starts = {start.name: start.spec_json for start in self.starts}
        self._testbeds = {e.testbed.name: e.testbed for e in self.experiments.values()}
        self.tracking_uri = options["tracking_uri"]
        self.source = options["source"] or "records"
        if self.source not in ("records", "mlflow"):  # an address: log there and read back from there
            self.tracking_uri = self.tracking_uri or self.source
        elif self.source == "mlflow" and self.tracking_uri:
            self.source = self.tracking_uri

    def spec(self, testbed: str, short_hash: str) -> str:
        """The sparse canonical JSON of the cell in that folder."""
        return self._specs[testbed, short_hash]

    def start(self, testbed: str, short_hash: str, seeds: str) -> list[str]:
        """The file that says of which warm start the cell in that folder begins; empty for one that has none."""
        first, last = map(int, seeds.split("-"))
        start = start_of(from_canonical(self.spec(testbed, short_hash)), first, last)
        return [] if start is None else [start_file(start)]

    def conform_starts(self, name: str) -> list[str]:
        """The files that say of which warm starts the rows of an experiment of two trainers begin."""
        experiment = self.conform[name]
        found = (start_of(row.effective, 0, experiment.seeds - 1) for row in experiment.rows)
        return sorted({start_file(start) for start in found if start is not None})

    def start_spec(self, name: str) -> str:
        """The canonical JSON of the warm start in that folder."""
        return self._starts[name]

    def start_seeds(self, name: str) -> str:
        """The option that names the seeds of a warm start; empty where all seeds share it."""
        return f"--seeds {name.partition('/seeds-')[2]}" if "/" in name else ""

    def options(self, testbed: str) -> str:
        """What a testbed's jobs are told beside the spec: the GPUs to lease, where to log while they train."""
        own = self._testbeds[testbed]
        uri = self.tracking_uri or f"sqlite:///{RESULTS}/mlflow.db"
        gpus = f"--gpus {own.gpus}" if own.gpus else ""
        return f"{gpus} {f'--stream {uri}' if own.stream else ''}".strip()

    def gpus(self, testbed: str) -> int:
        """The GPUs that a job of a testbed leases."""
        return self._testbeds[testbed].gpus

    def row(self, testbed: str, short_hash: str) -> str:
        """The row, or the first of several, that the cells in that folder belong to."""
        names = [
            f"{experiment.name}: {row.id}"
            for experiment in self.experiments.values()
            for row in experiment.trained_rows
            if (experiment.testbed.name, row.hash[:8]) == (testbed, short_hash)
        ]
        return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"

    def cells_of(self, name: str) -> list[Cell]:
        """The distinct cells of an experiment, sorted."""
        return experiment_cells(self.experiments[name])

    def runs(self, name: str) -> list[str]:
        """The ``run.json`` of every cell of an experiment: it holds the checksums of the rest."""
        return [f"{RESULTS}/{cell.folder}/run.json" for cell in self.cells_of(name)]

    def logged(self, name: str) -> list[str]:
        """What tables must wait for beside the records: the MLflow log where they are read from there."""
        return [] if self.source == "records" else [made("log", name)]

    def figures(self, name: str) -> list[str]:
        """The figure files of an experiment."""
        from grpo_ablate.analysis.figures import outputs

        known: dict[str, Experiment | ExactExperiment] = {**self.experiments, **self.exact, **self.conform}
        return [f"{RESULTS}/{path}" for path in outputs(known[name])]

    def label(self, name: str, path: str) -> dict[str, str]:
        """How the report calls a figure file."""
        file = Path(path)
        return {"what": file.stem.removeprefix(f"{name}-"), "format": file.suffix[1:]}

    def pages(self, *names: str) -> list[str]:
        """The tables of these experiments as pages of the report."""
        return [f"{RESULTS}/tables/{name}.html" for name in names]

    def page_inputs(self, name: str) -> list[str]:
        """The tables that an experiment's page shows."""
        from grpo_ablate.analysis.page import TABLES as SHOWN

        return [f"{RESULTS}/tables/{name}{ending}.md" for ending in SHOWN]

    def results(self, *names: str) -> list[str]:
        """Every file of these experiments: the records, the log, the tables, the figures."""
        return [
            path
            for name in names
            for path in (
                *(f"{RESULTS}/{cell.folder}/{file}" for cell in self.cells_of(name) for file in DEMANDED),
                *(f"{RESULTS}/tables/{name}{suffix}" for suffix in (*TABLES, *COMPARISON)),
                *(made(step, name) for step in ("log", "collect", "compare", "draw")),
                *self.figures(name),
            )
        ]

    @cached_property
    def across(self) -> list[str]:
        """The table of what holds over several testbeds, where there are several."""
        return [*ACROSS, made("across", "across")] if len(self.standing_testbeds) > 1 else []

    @cached_property
    def exact_results(self) -> list[str]:
        """Every table and figure of the exact experiments, and the propositions where there are any."""
        found = [
            path
            for name in self.exact
            for path in (exact_table(name), *self.figures(name), made("exact", name), made("draw", name))
        ]
        return [*found, *PROPOSITIONS, made("exact", "propositions")] if found else []

    @cached_property
    def paper_inputs(self) -> list[str]:
        """The tables and figures that the paper reads."""
        return _paper_inputs([*(self.experiments[name] for name in self.standing), *self.exact.values()])

    @cached_property
    def quick_paper_inputs(self) -> list[str]:
        """The same of the paper that tells of the quick experiments alone."""
        return _paper_inputs([*(self.experiments[name] for name in self.quick), *self.exact.values()])

    @cached_property
    def paper(self) -> list[str]:
        """The paper, where the experiments that it tells of exist."""
        known = {*self.results(*self.standing), *self.exact_results}
        return [*PAPERS["paper"], made("paper", "paper")] if known.issuperset(self.paper_inputs) else []

    @cached_property
    def quick_paper(self) -> list[str]:
        """The paper of the quick experiments, where those that it tells of exist."""
        known = {*self.results(*self.quick), *self.exact_results}
        found = [*PAPERS["paper-quick"], made("paper", "paper-quick")]
        return found if known.issuperset(self.quick_paper_inputs) else []

    @cached_property
    def verified(self) -> list[str]:
        """What must be up to date to be compared with published runs: quick experiments with a table there."""
        published = [name for name in self.quick if Path(RESULTS, "published", f"{name}.csv").exists()]
        tables = [f"{RESULTS}/tables/{name}{ending}" for name in published for ending in (*TABLES, *COMPARISON)]
        return [*(path for name in published for path in self.runs(name)), *tables]

    @cached_property
    def quick(self) -> list[str]:
        """The experiments that take seconds."""
        return [name for name, experiment in self.experiments.items() if experiment.testbed.quick]

    @cached_property
    def testbeds(self) -> list[str]:
        """The testbeds that experiments use."""
        return sorted({experiment.testbed.name for experiment in self.experiments.values()})

    @cached_property
    def standing_testbeds(self) -> list[str]:
        """The testbeds of the whole grid: those that are not trained on request alone."""
        return sorted({self.experiments[name].testbed.name for name in self.standing})


def _paper_inputs(experiments: list[Experiment | ExactExperiment]) -> list[str]:
    from grpo_ablate.analysis.paper import inputs

    return [f"{RESULTS}/{path}" for path in inputs(experiments)]


def digest_file(cell: Cell) -> str:
    """The key file of a training job."""
    return f"{RESULTS}/{cell.folder.replace('runs/', 'digests/', 1)}.txt"


def start_file(start: Start) -> str:
    """The file that a warm start leaves last."""
    return f"{RESULTS}/{start.folder}/start.json"


def start_digest_file(start: Start) -> str:
    """The key file of a warm start."""
    return f"{RESULTS}/digests/{start.folder}.txt"


def exact_table(name: str) -> str:
    """The table of an exact experiment."""
    return f"{RESULTS}/tables/{name}.csv"


def conform_tables(name: str) -> list[str]:
    """The table of an experiment of two trainers."""
    return [f"{RESULTS}/tables/{name}-runs{suffix}" for suffix in (".parquet", ".csv")]


def plan(step: str, name: str) -> str:
    """The key file of one step of the workflow."""
    return f"{RESULTS}/plans/{step}/{name}.txt"


def made(step: str, name: str) -> str:
    """The copy of its key file that a step leaves when it is done."""
    return f"{RESULTS}/made/{step}/{name}.txt"


def start(workflow: Any, config: dict[str, Any]) -> Grid:
    """Guard the folder, read the experiments, settle the key files; a user's mistake ends Snakemake here."""
    _use_this_python(workflow.basedir)
    if not workflow.is_main_process:  # SLURM warns all processes of a job; this one ends after its trainer
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        if workflow.is_main_process:
            guard(Path(), executes=_executes(workflow))
        beside = load_conform_experiments() if find_spec("trl") is not None else []
        grid = Grid(load_experiments(), _options(config), load_exact_experiments(), beside)
        for name in grid.experiments:
            if name in TARGETS:
                raise UserError(
                    f"experiments/{name}.yaml: '{name}' is the name of a target; call the file otherwise."
                )
        if workflow.is_main_process:
            from grpo_ablate.workflow.plans import check_writable, settle_all

            check_writable()
            if _executes(workflow):  # first: what a plan is now enters the keys of the tables that speak of it
                from grpo_ablate.analysis.planned import record_plan

                for experiment in grid.experiments.values():
                    record_plan(experiment, Path(RESULTS))
            settle_all(grid)
        return grid
    except UserError as error:
        print(f"grpo-ablate: error: {error}", file=sys.stderr)
        sys.exit(2)


def _use_this_python(folder: str) -> None:
    """Let ``python -m grpo_ablate`` in a rule mean this interpreter and the package beside the Snakefile."""
    for variable, first in (("PATH", str(Path(sys.executable).parent)), ("PYTHONPATH", str(folder))):
        rest = [part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != first]
        os.environ[variable] = os.pathsep.join([first, *rest])


def _executes(workflow: Any) -> bool:
    return not workflow.output_settings.dryrun and not any(
        argument.partition("=")[0] in _LOOKING for argument in sys.argv[1:]
    )


def _options(config: dict[str, Any]) -> dict[str, str | None]:
    for key in config:
        if key not in OPTIONS:
            raise UserError(f"--config {key}: no such option; {nearest(key, OPTIONS)}")
    return {
        key: None if (value := config.get(key, default)) is None else str(value)
        for key, default in OPTIONS.items()
    }
