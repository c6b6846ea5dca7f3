"""Commands that plan and train runs, and that show or hand on what was trained."""

from __future__ import annotations

from pathlib import Path

from grpo_ablate.cli import options
from grpo_ablate.cli.options import Add, Arguments


def add_commands(add: Add) -> None:
    """Add plan, status, train, warmstart, smoke, samples, bench, doctor and export."""
    sub = add("plan", _plan, "rows x seeds, budgets, twins, what is done, and the time the rest would take")
    options.experiments(sub)
    options.results(sub)
    options.as_json(sub)

    sub = add("status", _status, "cells done, missing, failed and stale")
    options.experiments(sub)
    options.results(sub)
    options.as_json(sub)

    sub = add("train", _train, "train one row on a block of seeds and publish its record")
    sub.add_argument("row", nargs="?", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument("--cell", metavar="JSON", help="a sparse spec, as the workflow passes it, in place of a row")
    sub.add_argument("--testbed", help="with --cell: the testbed's name")
    sub.add_argument("--seeds", metavar="A-B", help="the seeds to train (default: all of the experiment's)")
    sub.add_argument("--stop-with-parent", action="store_true", help="stop at a checkpoint when the caller dies")
    sub.add_argument("--stream", metavar="URI", help="log to this MLflow server while training")
    sub.add_argument("--gpus", type=int, metavar="N", help="GPUs to lease (default: as the testbed says)")
    sub.add_argument("--dump-round", type=int, metavar="K", help="write round K as a batch for `explain`")
    sub.add_argument("--dump", type=Path, metavar="FILE", help="where to (default: round-K.json)")
    options.results(sub)

    sub = add("warmstart", _warmstart, "train what the runs of a row begin from, on noisy demonstrations")
    sub.add_argument("row", nargs="?", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument(
        "--cell", metavar="JSON", help="task and policy, as the workflow passes them, in place of a row"
    )
    sub.add_argument("--seeds", metavar="A-B", help="where each seed has its own start: the seeds to train")
    sub.add_argument("--stop-with-parent", action="store_true", help="stop at a checkpoint when the caller dies")
    options.results(sub)

    sub = add("smoke", _smoke, "train two rows x two seeds x two rounds of each of a testbed's experiments")
    sub.add_argument("testbed")
    options.results(sub)

    sub = add("samples", _samples, "responses at a run's start, middle and end: rewards, advantages, steps")
    sub.add_argument("row", metavar="EXPERIMENT.yaml:ROW")
    options.results(sub)

    sub = add("bench", _bench, "measure how fast training is here, beside other trainers on the same work")
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
    options.results(sub)
    options.as_json(sub)

    sub = add("doctor", _doctor, "what this machine can run, what is missing for the rest, and how to get it")
    options.results(sub)
    options.as_json(sub)

    sub = add("export", _export, "write a trained language model as a folder that transformers reads")
    sub.add_argument("row", metavar="EXPERIMENT.yaml:ROW")
    sub.add_argument("--seed", type=int, required=True, metavar="S")
    sub.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    options.results(sub)


def _plan(arguments: Arguments) -> None:
    from grpo_ablate.spec.estimate import calibrate
    from grpo_ablate.spec.plan import as_json, as_text, plan
    from grpo_ablate.spec.resolve import load_experiment, load_experiments

    loaded = [load_experiment(path) for path in arguments.experiments] or load_experiments()
    prices = calibrate(arguments.results)
    plans = [plan(experiment, arguments.results, prices) for experiment in loaded]
    print(as_json(plans) if arguments.json else as_text(plans))


def _status(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import load_experiment, load_experiments
    from grpo_ablate.workflow.status import as_json, as_text, status

    loaded = [load_experiment(path) for path in arguments.experiments] or load_experiments()
    found = status(loaded, arguments.results)
    print(as_json(found) if arguments.json else as_text(found))


def _train(arguments: Arguments) -> int | None:
    from grpo_ablate.runs.command import train_command

    return train_command(arguments)


def _warmstart(arguments: Arguments) -> int:
    from grpo_ablate.runs.command import warmstart_command

    return warmstart_command(arguments)


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


def _doctor(arguments: Arguments) -> None:
    from grpo_ablate.doctor import run

    print(run(arguments.results, arguments.json))


def _export(arguments: Arguments) -> None:
    from grpo_ablate.spec.resolve import find_row

    experiment, row = find_row(arguments.row)
    from grpo_ablate.runs.export import export

    export(experiment, row, arguments.seed, arguments.results, arguments.to)
    print(f"{arguments.to}: {arguments.row}, seed {arguments.seed}, for transformers.AutoModelForCausalLM")
