"""A reduced grid in one process: two rows, two seeds, two rounds of every experiment of a testbed.

Trained, tabulated and drawn by the same functions as the real one, in a results folder of its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import from_canonical, spec_hash
from grpo_ablate.spec.identity import replace as replace_switches
from grpo_ablate.spec.resolve import Experiment, Row, load_experiments
from grpo_ablate.spec.schema import Spec

ROUNDS = SEEDS = 2


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
    named = {level for row in kept for level in row.id.split("--")}
    return replace(
        experiment,
        rows=tuple(_shortened(row) for row in kept),
        testbed=replace(experiment.testbed, seeds_per_job=SEEDS),
        seeds=min(SEEDS, experiment.seeds),
        figures=tuple(figure for figure in experiment.figures if figure.kind != "published"),
        published=None,  # its values are of full runs
        axes={axis: tuple(level for level in own if level in named) for axis, own in experiment.axes.items()},
    )


def smoke(testbed: str, results: Path) -> None:
    """Train, tabulate and draw the reduced experiments of a testbed below ``results``.

    Raises:
        UserError: no experiment uses the testbed.
    """
    everything = load_experiments()
    experiments = [reduced(e) for e in everything if e.testbed.name == testbed]
    if not experiments:
        known = {e.testbed.name for e in everything}
        raise UserError(f"no experiment uses a testbed '{testbed}'; {nearest(testbed, known)}")
    from grpo_ablate.analysis.collect import collect
    from grpo_ablate.analysis.figures import draw
    from grpo_ablate.runs.train import train

    for cell in cells(experiments):
        scratch = results / cell.folder.replace("runs/", "scratch/", 1)
        seeds = range(cell.first_seed, cell.last_seed + 1)
        train(from_canonical(cell.spec_json), seeds, results / cell.folder, scratch, testbed=testbed)
    for experiment in experiments:
        collect(experiment, results, "records")
        draw(experiment, results)


def _shortened(row: Row) -> Row:
    effective = _two_rounds(row.effective)
    return replace(row, spec=_two_rounds(row.spec), effective=effective, hash=spec_hash(effective))


def _two_rounds(spec: Spec) -> Spec:
    rollouts = min(spec.budget.rollouts, ROUNDS * spec.rollouts_per_round)
    return replace_switches(spec, {"budget": {"rollouts": rollouts}})
