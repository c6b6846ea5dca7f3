"""A reduced grid in one process: two rows and the controls, two seeds, two rounds of a testbed's experiments.

Trained, tabulated, compared and drawn by the same functions as the real one, in a results folder of its own. A
language model starts from a warm start of a few steps and is measured on a few held-out prompts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.runs.devices import leased
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import from_canonical, spec_hash
from grpo_ablate.spec.identity import replace as replace_switches
from grpo_ablate.spec.resolve import Experiment, Row, load_experiments
from grpo_ablate.spec.schema import Spec, StackedPolicy
from grpo_ablate.spec.warmstart import starts, starts_warm

ROUNDS = SEEDS = 2
# Of a language model's task and warm start.
TRAIN_PROMPTS, HELD_OUT, STEPS, DEMONSTRATIONS = 64, 16, 20, 256


def reduced(experiment: Experiment) -> Experiment:
    """Return the experiment with its baseline and the nearest row that trains otherwise, two seeds, two rounds.

    Of rows crossed from axes the nearest differs in one level, so that what is left is crossed, too.
    """
    baseline = experiment.row(experiment.baseline)
    levels = baseline.id.split("--")

    def distance(row: Row) -> int:
        own = row.id.split("--")
        differing = sum(one != other for one, other in zip(own, levels, strict=False))
        return differing if len(own) == len(levels) else len(levels) + 1

    others = sorted((row for row in experiment.rows if row.hash != baseline.hash), key=distance)
    kept = (baseline, *others[:1])
    ids = {row.id for row in kept}
    named = {level for row in kept for level in row.id.split("--")}
    rollouts = ROUNDS * max(row.spec.rollouts_per_round for row in kept)  # rows are compared at equal cost
    return replace(
        experiment,
        rows=tuple(_shortened(row, rollouts) for row in kept),
        controls=tuple(_shortened(row, rollouts) for row in experiment.controls),
        tuned={
            id: tuple(_shortened(row, rollouts) for row in rows)
            for id, rows in experiment.tuned.items()
            if id in ids
        },
        claims=tuple(claim for claim in experiment.claims if {claim.test.row, claim.test.than} <= ids),
        testbed=replace(experiment.testbed, seeds_per_job=min(SEEDS, experiment.testbed.seeds_per_job)),
        seeds=min(SEEDS, experiment.seeds),
        figures=tuple(figure for figure in experiment.figures if figure.kind != "published"),
        published=None,  # its values are of full runs
        axes={axis: tuple(level for level in own if level in named) for axis, own in experiment.axes.items()},
    )


def smoke(testbed: str, results: Path) -> None:
    """Train, tabulate, compare and draw the reduced experiments of a testbed below ``results``.

    Raises:
        UserError: no experiment uses the testbed.
    """
    everything = load_experiments()
    experiments = [reduced(e) for e in everything if e.testbed.name == testbed]
    if not experiments:
        known = {e.testbed.name for e in everything}
        raise UserError(f"no experiment uses a testbed '{testbed}'; {nearest(testbed, known)}")
    with leased(min(1, experiments[0].testbed.gpus)):
        _run(experiments, testbed, results)


def _run(experiments: list[Experiment], testbed: str, results: Path) -> None:
    from grpo_ablate.analysis.collect import collect
    from grpo_ablate.analysis.compare_command import write_compared
    from grpo_ablate.analysis.figures import draw
    from grpo_ablate.runs.train import train
    from grpo_ablate.runs.warmstart import load_start, train_start

    for start in starts(cells(experiments)):
        train_start(start, results)
    for cell in cells(experiments):
        scratch = results / cell.folder.replace("runs/", "scratch/", 1)
        seeds, spec = range(cell.first_seed, cell.last_seed + 1), from_canonical(cell.spec_json)
        begin = load_start(results, spec, seeds, "grpo-ablate smoke")
        train(spec, seeds, results / cell.folder, scratch, testbed=testbed, begin=begin)
    for experiment in experiments:
        collect(experiment, results, "records")
        write_compared(experiment, results, "table")
        draw(experiment, results)


def _shortened(row: Row, rollouts: int) -> Row:
    effective = _small(row.effective, rollouts)
    return replace(row, spec=_small(row.spec, rollouts), effective=effective, hash=spec_hash(effective))


def _small(spec: Spec, rollouts: int) -> Spec:
    """Return a spec of a few rollouts, with a small task and a short warm start where it has them."""
    changes: dict[str, dict[str, Any]] = {"budget": {"rollouts": min(spec.budget.rollouts, rollouts)}}
    if spec.task.needs_tokens:
        changes["task"] = {"train_prompts": TRAIN_PROMPTS, "held_out": HELD_OUT}
    if isinstance(spec.policy, StackedPolicy) and starts_warm(spec):
        few = {"steps": STEPS, "demonstrations": DEMONSTRATIONS}
        changes["policy"] = {"warmstart": spec.policy.warmstart.model_copy(update=few)}
    return replace_switches(spec, changes)
