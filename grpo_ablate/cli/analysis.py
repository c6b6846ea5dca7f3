"""Commands from records to results: MLflow, tables, verdicts, figures, the paper."""

from __future__ import annotations

import sys
from pathlib import Path

from grpo_ablate.cli import options
from grpo_ablate.cli.options import Add, Arguments


def add_commands(add: Add) -> None:
    """Add log, collect, compare, across, controls, figures, conform, paper, arxiv, page and report."""
    sub = add("log", _log, "log an experiment's runs to MLflow")
    options.experiment(sub)
    sub.add_argument("--tracking-uri", metavar="URI", help="default: mlflow.db in the results folder")
    options.results(sub)

    sub = add("collect", _collect, "gather an experiment's runs into its tables")
    options.experiment(sub)
    sub.add_argument("--source", default="records", metavar="records|mlflow|URI", help="default: records")
    options.partial(sub)
    options.results(sub)

    sub = add("compare", _compare, "judge an experiment's rows and claims: differences, intervals, verdicts")
    options.experiment(sub)
    sub.add_argument(
        "--source",
        default="records",
        metavar="records|mlflow|URI|table",
        help="default: records; table: collected",
    )
    options.partial(sub)
    options.results(sub)
    options.as_json(sub)

    sub = add("across", _across, "what holds over several testbeds, from every comparison: tables/across.*")
    options.results(sub)

    sub = add("controls", _controls, "train the controls that hold exactly and judge them: tables/controls.*")
    options.results(sub)

    sub = add("figures", _figures, "draw an experiment's figures from its tables")
    options.experiment(sub)
    options.results(sub)

    sub = add("conform", _conform, "train an experiment's rows with trl beside: tables and figure")
    options.experiment(sub)
    options.results(sub)

    sub = add("paper", _paper, "build paper/paper.pdf from the tables and figures")
    sub.add_argument("--quick", action="store_true", help="paper-quick.pdf: of the experiments that take seconds")
    options.results(sub)

    sub = add("arxiv", _arxiv, "pack the paper's LaTeX source for arXiv; compile it where latexmk is")
    sub.add_argument("--quick", action="store_true", help="the edition that tells of the quick experiments")
    options.results(sub)

    sub = add("page", _page, "lay out an experiment's tables as a page: tables/EXPERIMENT.html")
    options.experiment(sub)
    options.results(sub)

    sub = add("report", _report, "gather what is finished in one HTML page, by Snakemake's report")
    sub.add_argument("--to", type=Path, default=Path("results/report.html"), metavar="FILE.html|.zip")


def _log(arguments: Arguments) -> None:
    from grpo_ablate.runs.mlflow_writer import log_experiment
    from grpo_ablate.spec.resolve import load_experiment

    experiment = load_experiment(arguments.experiment)
    logged = log_experiment(experiment, arguments.results, arguments.tracking_uri)
    print(f"{experiment.name}: {logged.written} runs written to MLflow, {logged.unchanged} unchanged")


def _collect(arguments: Arguments) -> None:
    from grpo_ablate.analysis.collect import collect
    from grpo_ablate.analysis.exact_controls import read_exact_controls
    from grpo_ablate.spec.resolve import load_experiment

    experiment, results = load_experiment(arguments.experiment), arguments.results
    exact = read_exact_controls(results)
    collect(experiment, results, arguments.source, partial=arguments.partial, exact=exact)


def _compare(arguments: Arguments) -> None:
    from grpo_ablate.analysis.compare_command import write_compared
    from grpo_ablate.analysis.compare_text import as_text
    from grpo_ablate.analysis.comparison import as_json
    from grpo_ablate.spec.resolve import load_experiment

    experiment = load_experiment(arguments.experiment)
    found = write_compared(experiment, arguments.results, arguments.source, partial=arguments.partial)
    print(as_json(found).decode() if arguments.json else as_text(found), end="" if arguments.json else "\n")


def _across(arguments: Arguments) -> None:
    from grpo_ablate.analysis.across import write_across
    from grpo_ablate.analysis.comparison import read_comparison
    from grpo_ablate.spec.resolve import load_experiments, standing

    tables = arguments.results / "tables"
    names = [experiment.name for experiment in standing(load_experiments())]
    found = [read_comparison(tables / f"{name}-comparison.json") for name in names]
    path = write_across(found, arguments.results)[0]
    print(f"rows over several testbeds: {path.with_suffix('.md')}")


def _controls(arguments: Arguments) -> int:
    from grpo_ablate.analysis.alarms import alarms
    from grpo_ablate.analysis.exact_controls import read_exact_controls, write_exact_controls

    path = write_exact_controls(arguments.results)[0]
    failed = alarms(read_exact_controls(arguments.results))
    print("\n".join(failed) if failed else f"every control holds: {path.with_suffix('.md')}")
    return 0


def _figures(arguments: Arguments) -> None:
    from grpo_ablate.analysis.figures import draw
    from grpo_ablate.spec.exact_files import load_exact_experiment
    from grpo_ablate.spec.resolve import EXACT, load_experiment

    exact = arguments.experiment.name.startswith(EXACT)
    draw((load_exact_experiment if exact else load_experiment)(arguments.experiment), arguments.results)


def _conform(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import load_experiment

    experiment = load_experiment(arguments.experiment)
    from grpo_ablate.conform.table import write_table

    write_table(experiment, arguments.results, lambda text: print(text, file=sys.stderr, flush=True))
    from grpo_ablate.analysis.figures import draw, outputs

    draw(experiment, arguments.results)
    print("\n".join(str(arguments.results / path) for path in outputs(experiment)))


def _paper(arguments: Arguments) -> None:
    from grpo_ablate.analysis.paper import QUICK, WHOLE, build

    build(arguments.results, Path("paper"), edition=QUICK if arguments.quick else WHOLE)


def _arxiv(arguments: Arguments) -> None:
    from grpo_ablate.analysis.arxiv import QUICK, WHOLE, build

    edition = QUICK if arguments.quick else WHOLE
    print("\n".join(str(path) for path in build(arguments.results, Path("paper"), edition)))


def _page(arguments: Arguments) -> None:
    from grpo_ablate.analysis.page import write_page
    from grpo_ablate.spec.resolve import load_experiment

    write_page(load_experiment(arguments.experiment), arguments.results)


def _report(arguments: Arguments) -> None:
    from grpo_ablate.workflow.reporting import build

    print(f"{arguments.to}: {', '.join(build(arguments.to))}")
