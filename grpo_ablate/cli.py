"""The command line: thin, and quick to start; every command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from grpo_ablate import __version__
from grpo_ablate.errors import UserError

Arguments = argparse.Namespace


def main(argv: list[str] | None = None) -> None:
    """Run one command; a user's mistake becomes one sentence on stderr and exit code 2."""
    arguments = _parser().parse_args(argv)
    try:
        _check_results(getattr(arguments, "results", None))
        code = arguments.run(arguments)
    except UserError as error:
        print(f"grpo-ablate: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def _check_results(results: Path | None) -> None:
    """Refuse a file where the results folder should be, before a command takes it for an empty folder."""
    if results is None:
        return
    nearest = next(path for path in (results, *results.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UserError(f"--results {results}: {nearest} is not a folder.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grpo-ablate", description="Which of GRPO's switches matter, by how much, and how would we know?"
    )
    parser.add_argument("--version", action="version", version=f"grpo-ablate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Arguments], int | None], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    sub = command("plan", _plan, "rows x seeds, budgets, twins, what is done, and the time the rest would take")
    _experiments(sub)
    _results(sub)
    _json(sub)

    sub = command("status", _status, "cells done, missing, failed and stale")
    _experiments(sub)
    _results(sub)
    _json(sub)

    sub = command("train", _train, "train one row on a block of seeds and publish its record")
    sub.add_argument("row", nargs="?", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument("--cell", metavar="JSON", help="a sparse spec, as the workflow passes it, in place of a row")
    sub.add_argument("--testbed", help="with --cell: the testbed's name")
    sub.add_argument("--seeds", metavar="A-B", help="the seeds to train (default: all of the experiment's)")
    sub.add_argument("--stop-with-parent", action="store_true", help="stop at a checkpoint when the caller dies")
    sub.add_argument("--stream", metavar="URI", help="log to this MLflow server while training")
    sub.add_argument("--gpus", type=int, metavar="N", help="GPUs to lease (default: as the testbed says)")
    sub.add_argument("--dump-round", type=int, metavar="K", help="write round K as a batch for `explain`")
    sub.add_argument("--dump", type=Path, metavar="FILE", help="where to (default: round-K.json)")
    _results(sub)

    sub = command("warmstart", _warmstart, "train what the runs of a row begin from, on noisy demonstrations")
    sub.add_argument("row", nargs="?", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument(
        "--cell", metavar="JSON", help="task and policy, as the workflow passes them, in place of a row"
    )
    sub.add_argument("--seeds", metavar="A-B", help="where each seed has its own start: the seeds to train")
    sub.add_argument("--stop-with-parent", action="store_true", help="stop at a checkpoint when the caller dies")
    _results(sub)

    sub = command("explain", _explain, "show what a row does to one batch: advantages, weights, ratios, gradient")
    sub.add_argument("batch", type=Path, metavar="BATCH.json")
    _switches(sub)
    _json(sub)

    sub = command("exact", _exact, "a row's expected update on a small policy, by enumeration: bias and variance")
    sub.add_argument("policy", type=Path, metavar="POLICY.json")
    _switches(sub)
    _json(sub)
    sub.add_argument("--monte-carlo", type=int, metavar="N", help="estimate from N sampled groups instead")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="of the estimate (default: 0)")

    sub = command("exact-table", _exact_table, "the table of an exact experiment, experiments/exact-*.yaml")
    _experiment(sub)
    _results(sub)

    sub = command("propositions", _propositions, "settle every proposition by enumeration: tables/propositions.*")
    _results(sub)

    sub = command("log", _log, "log an experiment's runs to MLflow")
    _experiment(sub)
    sub.add_argument("--tracking-uri", metavar="URI", help="default: mlflow.db in the results folder")
    _results(sub)

    sub = command("collect", _collect, "gather an experiment's runs into its tables")
    _experiment(sub)
    sub.add_argument("--source", default="records", metavar="records|mlflow|URI", help="default: records")
    sub.add_argument("--partial", action="store_true", help="use the runs that exist, though some are missing")
    _results(sub)

    sub = command("compare", _compare, "judge an experiment's rows and claims: differences, intervals, verdicts")
    _experiment(sub)
    sub.add_argument(
        "--source",
        default="records",
        metavar="records|mlflow|URI|table",
        help="default: records; table: collected",
    )
    sub.add_argument("--partial", action="store_true", help="use the runs that exist, though some are missing")
    _results(sub)
    _json(sub)

    sub = command("across", _across, "what holds over several testbeds, from every comparison: tables/across.*")
    _results(sub)

    sub = command("controls", _controls, "train the controls that hold exactly and judge them: tables/controls.*")
    _results(sub)

    sub = command("figures", _figures, "draw an experiment's figures from its tables")
    _experiment(sub)
    _results(sub)

    sub = command("conform", _conform, "train an experiment's rows with trl beside: tables and figure")
    _experiment(sub)
    _results(sub)

    sub = command("paper", _paper, "build paper/paper.pdf from the tables and figures")
    sub.add_argument("--quick", action="store_true", help="paper-quick.pdf: of the experiments that take seconds")
    _results(sub)

    sub = command("arxiv", _arxiv, "pack the paper's LaTeX source for arXiv; compile it where latexmk is")
    sub.add_argument("--quick", action="store_true", help="the edition that tells of the quick experiments")
    _results(sub)

    sub = command("page", _page, "lay out an experiment's tables as a page: tables/EXPERIMENT.html")
    _experiment(sub)
    _results(sub)

    sub = command("report", _report, "gather what is finished in one HTML page, by Snakemake's report")
    sub.add_argument("--to", type=Path, default=Path("results/report.html"), metavar="FILE.html|.zip")

    sub = command("verify", _verify, "check every record, and compare with the tables of a published run")
    _experiments(sub)
    sub.add_argument(
        "--against",
        type=Path,
        default=Path("results/published"),
        metavar="DIR|ARCHIVE",
        help="default: results/published",
    )
    _results(sub)
    _json(sub)

    sub = command("publish", _publish, "write the small reference tables that `verify` compares with")
    _experiments(sub)
    sub.add_argument("--to", type=Path, default=Path("results/published"), metavar="DIR")
    _results(sub)

    sub = command("archive", _archive, "one file of records, checksums, plans, files, lock, commit and checklist")
    _experiments(sub)
    sub.add_argument("--to", type=Path, required=True, metavar="FILE.tar.gz|.zip")
    _results(sub)

    sub = command("merge", _merge, "add the runs of another machine's results folder")
    sub.add_argument("other", type=Path, metavar="DIR")
    _results(sub)
    _json(sub)

    sub = command(
        "published", _published, "train an experiment anew in memory and judge it by its published table"
    )
    _experiment(sub)
    sub.add_argument("--seeds", type=int, metavar="N", help="default: the experiment's")
    sub.add_argument("--random-key", type=int, metavar="K", help="another key of the random numbers")

    sub = command("smoke", _smoke, "train two rows x two seeds x two rounds of each of a testbed's experiments")
    sub.add_argument("testbed")
    _results(sub)

    sub = command("samples", _samples, "responses at a run's start, middle and end: rewards, advantages, steps")
    sub.add_argument("row", metavar="EXPERIMENT.yaml:ROW")
    _results(sub)

    sub = command("bench", _bench, "measure how fast training is here, beside other trainers on the same work")
    sub.add_argument("testbeds", nargs="*", metavar="TESTBED", help="default: arithmetic translation")
    sub.add_argument(
        "--members", metavar="M,M", help="models trained side by side in a process (1,4,8,16; a GPU: 1,8,64,256)"
    )
    sub.add_argument(
        "--against", action="append", default=[], metavar="transformers|trl", help="the same work with it, in turn"
    )
    sub.add_argument("--processes", type=int, default=2, metavar="N", help="of one thread each (default: 2)")
    sub.add_argument("--slices", type=int, default=6, metavar="K", help="of work, all sides in turn (default: 6)")
    sub.add_argument("--rounds", type=int, metavar="N", help="of a slice (default: the slices make a whole run)")
    _results(sub)
    _json(sub)

    sub = command("export", _export, "write a trained language model as a folder that transformers reads")
    sub.add_argument("row", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument("--seed", type=int, required=True, metavar="S")
    sub.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    _results(sub)

    sub = command("doctor", _doctor, "what this machine can run, what is missing for the rest, and how to get it")
    _results(sub)
    _json(sub)

    sub = command("presets", _presets, "other libraries' settings as switches, and what they leave out")
    _json(sub)

    sub = command("metrics", _metrics, "every metric of a run's record, with its meaning and denominator")
    _json(sub)
    return parser


def _experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml")


def _experiments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiments", type=Path, nargs="*", metavar="EXPERIMENT.yaml", help="default: all in experiments/"
    )


def _results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _switches(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row", metavar="EXPERIMENT.yaml:ROW", help="the switches of a row")
    parser.add_argument("--preset", metavar="NAME", help="the switches of a preset (default: documents)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set one switch, as in kl.beta=0.1"
    )


def _plan(arguments: Arguments) -> None:
    from grpo_ablate.spec.estimate import calibrate
    from grpo_ablate.spec.plan import as_json, as_text, plan
    from grpo_ablate.spec.resolve import load_experiment, load_experiments

    loaded = [load_experiment(path) for path in arguments.experiments] or load_experiments()
    prices = calibrate(arguments.results)
    plans = [plan(experiment, arguments.results, prices) for experiment in loaded]
    print(as_json(plans) if arguments.json else as_text(plans))


def _train(arguments: Arguments) -> int | None:
    from grpo_ablate.runs.command import train_command

    return train_command(arguments)


def _warmstart(arguments: Arguments) -> int:
    from grpo_ablate.runs.command import warmstart_command

    return warmstart_command(arguments)


def _explain(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import switches

    chosen = switches(arguments.row, arguments.preset, arguments.set)
    from grpo_ablate.explain import run

    print(run(arguments.batch, chosen, arguments.json))


def _exact(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import switches

    chosen = switches(arguments.row, arguments.preset, arguments.set)
    from grpo_ablate.exact import run

    print(run(arguments.policy, chosen, arguments.set, arguments.json, arguments.monte_carlo, arguments.seed))


def _exact_table(arguments: Arguments) -> None:
    from grpo_ablate.spec.exact_files import load_exact_experiment

    experiment = load_exact_experiment(arguments.experiment)
    from grpo_ablate.exact.tabulate import write_table

    write_table(experiment, arguments.results)


def _propositions(arguments: Arguments) -> None:
    from grpo_ablate.exact.propositions.table import write_propositions

    print(f"propositions settled, verdicts in {write_propositions(arguments.results)[-1].with_suffix('.md')}")


def _log(arguments: Arguments) -> None:
    from grpo_ablate.runs.mlflow_writer import log_experiment
    from grpo_ablate.spec.resolve import load_experiment

    experiment = load_experiment(arguments.experiment)
    logged = log_experiment(experiment, arguments.results, arguments.tracking_uri)
    print(f"{experiment.name}: {logged.written} runs written to MLflow, {logged.unchanged} unchanged")


def _collect(arguments: Arguments) -> None:
    from grpo_ablate.analysis.collect import collect
    from grpo_ablate.spec.resolve import load_experiment

    collect(load_experiment(arguments.experiment), arguments.results, arguments.source, partial=arguments.partial)


def _compare(arguments: Arguments) -> None:
    from grpo_ablate.analysis.compare_command import compared
    from grpo_ablate.analysis.compare_tables import write_comparison
    from grpo_ablate.analysis.compare_text import as_text
    from grpo_ablate.analysis.comparison import as_json
    from grpo_ablate.spec.resolve import load_experiment

    experiment = load_experiment(arguments.experiment)
    found = compared(experiment, arguments.results, arguments.source, partial=arguments.partial)
    write_comparison(experiment, found, arguments.results / "tables")
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


def _verify(arguments: Arguments) -> int:
    from grpo_ablate.analysis.study import run_verify

    return run_verify(arguments.experiments, arguments.results, arguments.against, arguments.json)


def _publish(arguments: Arguments) -> None:
    from grpo_ablate.analysis.study import run_publish

    run_publish(arguments.experiments, arguments.results, arguments.to)


def _archive(arguments: Arguments) -> None:
    from grpo_ablate.analysis.study import run_archive

    run_archive(arguments.experiments, arguments.results, arguments.to)


def _merge(arguments: Arguments) -> int:
    from grpo_ablate.analysis.merge import as_json, as_text, merge

    found = merge(arguments.other, arguments.results)
    print(as_json(found) if arguments.json else as_text(found))
    return 1 if any(folder.state == "refused" for folder in found) else 0


def _published(arguments: Arguments) -> int:
    from grpo_ablate.analysis.published import run_published

    report = run_published(arguments.experiment, arguments.seeds, arguments.random_key)
    print(report.text)
    return 0 if report.agrees else 1


def _status(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import load_experiment, load_experiments
    from grpo_ablate.workflow.status import as_json, as_text, status

    loaded = [load_experiment(path) for path in arguments.experiments] or load_experiments()
    found = status(loaded, arguments.results)
    print(as_json(found) if arguments.json else as_text(found))


def _smoke(arguments: Arguments) -> None:
    from grpo_ablate.workflow.smoke import smoke

    smoke(arguments.testbed, arguments.results)


def _samples(arguments: Arguments) -> None:
    from grpo_ablate.runs.samples import as_text
    from grpo_ablate.spec.resolve import find_row

    experiment, row = find_row(arguments.row)
    print(as_text(experiment, row, arguments.results))


def _bench(arguments: Arguments) -> int:
    from grpo_ablate.bench.command import bench_command

    return bench_command(arguments)


def _export(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import find_row

    experiment, row = find_row(arguments.row)
    from grpo_ablate.runs.export import export

    export(experiment, row, arguments.seed, arguments.results, arguments.to)
    print(f"{arguments.to}: {arguments.row}, seed {arguments.seed}, for transformers.AutoModelForCausalLM")


def _doctor(arguments: Arguments) -> None:
    from grpo_ablate.doctor import run

    print(run(arguments.results, arguments.json))


def _presets(arguments: Arguments) -> None:
    from grpo_ablate.spec import presets

    print(presets.as_json() if arguments.json else presets.format_presets())


def _metrics(arguments: Arguments) -> None:
    from grpo_ablate import metrics

    print(metrics.as_json() if arguments.json else metrics.as_text())
