"""Commands that say what a row's switches do, with nothing trained, and what names mean."""

from __future__ import annotations

from pathlib import Path

from grpo_ablate.cli import options
from grpo_ablate.cli.options import Add, Arguments


def add_commands(add: Add) -> None:
    """Add explain, exact, exact-table, propositions, presets and metrics."""
    sub = add("explain", _explain, "show what a row does to one batch: advantages, weights, ratios, gradient")
    sub.add_argument("batch", type=Path, metavar="BATCH.json")
    options.switches(sub)
    options.as_json(sub)

    sub = add("exact", _exact, "a row's expected update on a small policy, by enumeration: bias and variance")
    sub.add_argument("policy", type=Path, metavar="POLICY.json")
    options.switches(sub)
    options.as_json(sub)
    sub.add_argument("--monte-carlo", type=int, metavar="N", help="estimate from N sampled groups instead")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="of the estimate (default: 0)")

    sub = add("exact-table", _exact_table, "the table of an exact experiment, experiments/exact-*.yaml")
    options.experiment(sub)
    options.results(sub)

    sub = add("propositions", _propositions, "settle every proposition by enumeration: tables/propositions.*")
    options.results(sub)

    sub = add("presets", _presets, "other libraries' settings as switches, and what they leave out")
    options.as_json(sub)

    sub = add("metrics", _metrics, "every metric of a run's record, with its meaning and denominator")
    options.as_json(sub)


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


def _presets(arguments: Arguments) -> None:
    from grpo_ablate.spec import presets

    print(presets.as_json() if arguments.json else presets.format_presets())


def _metrics(arguments: Arguments) -> None:
    from grpo_ablate import metrics

    print(metrics.as_json() if arguments.json else metrics.as_text())
