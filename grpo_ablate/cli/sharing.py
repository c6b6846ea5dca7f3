"""Commands on what leaves or enters a results folder: checks, reference tables, archives, other machines' runs."""

from __future__ import annotations

from pathlib import Path

from grpo_ablate.cli import options
from grpo_ablate.cli.options import Add, Arguments


def add_commands(add: Add) -> None:
    """Add verify, publish, archive, merge and published."""
    sub = add("verify", _verify, "check every record and table, and compare with the tables of a published run")
    options.experiments(sub)
    sub.add_argument(
        "--against",
        type=Path,
        default=Path("results/published"),
        metavar="DIR|ARCHIVE",
        help="default: results/published",
    )
    options.results(sub)
    options.as_json(sub)

    sub = add("publish", _publish, "write the small reference tables that `verify` compares with")
    options.experiments(sub)
    sub.add_argument("--to", type=Path, default=Path("results/published"), metavar="DIR")
    options.results(sub)

    sub = add("archive", _archive, "one file of records, checksums, plans, files, lock, commit and checklist")
    options.experiments(sub)
    sub.add_argument("--to", type=Path, required=True, metavar="FILE.tar.gz|.zip")
    options.results(sub)

    sub = add("merge", _merge, "add the runs of another machine's results folder")
    sub.add_argument("other", type=Path, metavar="DIR")
    options.results(sub)
    options.as_json(sub)

    sub = add("published", _published, "train an experiment anew in memory and judge it by its published table")
    options.experiment(sub)
    sub.add_argument("--seeds", type=int, metavar="N", help="default: the experiment's")
    sub.add_argument("--random-key", type=int, metavar="K", help="another key of the random numbers")


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
