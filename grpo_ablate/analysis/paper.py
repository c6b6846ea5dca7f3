"""Builds the paper: every number it prints is computed here from tables and records, then typeset by Typst.

The sources in ``paper/`` hold words and formulas. ``numbers.json`` holds what they print: values already rounded
to the digits shown, so that the typesetting decides nothing. Equal tables and records give an equal PDF, byte for
byte.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis import paper_experiments, paper_testbeds, theory
from grpo_ablate.analysis.notation import power_of_ten, scientific, signed
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from grpo_ablate.analysis.figures.material import Material
    from grpo_ablate.analysis.published import Verdict
    from grpo_ablate.spec.exact_files import ExactExperiment
    from grpo_ablate.spec.resolve import Experiment

REPRODUCTION = "selection"  # the experiment with a published table
SWEEP = "selection-group-size"
FIGURES = (*theory.FIGURES, f"{REPRODUCTION}-curves", f"{SWEEP}-sweep")
VERSIONS = ("python", "torch", "numpy", "grpo-ablate")


@dataclass(frozen=True)
class Edition:
    """One paper: of every experiment, or of those that take seconds; and the files it becomes."""

    name: str
    pdf: str  # in the folder of the sources
    numbers: str  # below results, like the next
    overview: str

    @property
    def files(self) -> tuple[str, ...]:
        """What ``build`` writes below ``results``."""
        return (self.numbers, *(f"{self.overview}.{suffix}" for suffix in ("pdf", "png")))


WHOLE = Edition("paper", "paper.pdf", "paper/numbers.json", "figures/overview")
QUICK = Edition("paper-quick", "paper-quick.pdf", "paper/numbers-quick.json", "figures/overview-quick")


def told(
    experiments: Iterable[Experiment | ExactExperiment], edition: Edition
) -> list[Experiment | ExactExperiment]:
    """Return the experiments that an edition tells of."""
    return [e for e in experiments if edition is WHOLE or not hasattr(e, "testbed") or e.testbed.quick]


def inputs(experiments: Iterable[Experiment | ExactExperiment]) -> list[str]:
    """Return the files that ``build`` reads, relative to the results folder, where these are the experiments."""
    from grpo_ablate.spec.exact_files import ExactExperiment

    every = list(experiments)
    trained = [e for e in every if not isinstance(e, ExactExperiment)]
    runs = [f"tables/{experiment.name}-runs.parquet" for experiment in trained]
    exact = [f"tables/{e.name}.csv" for e in every if e.name in theory.TOLD]
    drawn = [f"figures/{name}.pdf" for name in FIGURES]
    return list(dict.fromkeys([*runs, *paper_experiments.files(trained), *exact, theory.PROPOSITIONS, *drawn]))


def build(
    results: Path,
    folder: Path,
    experiments: Sequence[Experiment | ExactExperiment] | None = None,
    edition: Edition = WHOLE,
) -> None:
    """Write the edition's numbers and overview below ``results``, then its PDF into the folder of the sources.

    Args:
        results: where tables, figures and run records lie.
        folder: where ``main.typ`` lies.
        experiments: trained and exact; default: those of the folder ``experiments`` beside the paper's.
        edition: which of them the paper tells of.
    """
    import typst

    from grpo_ablate.analysis.figures import overview
    from grpo_ablate.spec.exact_files import ExactExperiment, load_exact_experiments
    from grpo_ablate.spec.resolve import load_experiments, standing

    beside = folder.absolute().parent / "experiments"
    every = experiments or [*standing(load_experiments(beside)), *load_exact_experiments(beside)]
    known = {e.name: e for e in told(every, edition)}
    for name in (REPRODUCTION, SWEEP, *theory.TOLD):
        if name not in known:
            raise UserError(
                f"{folder / 'main.typ'}: the paper tells of the experiment {name}, which does not exist."
            )
    for name in inputs(known.values()):
        if not (results / name).exists():
            target = "quick" if edition is QUICK else "all"
            raise UserError(
                f"{results / name}: the paper needs this file; make it with: snakemake --cores all {target}"
            )
    trained = [e for e in known.values() if not isinstance(e, ExactExperiment)]
    overview.write(trained, results, Path(edition.overview).name)
    found = numbers(known, results, edition)
    written = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    write_whole(results / edition.numbers, written.encode())
    root = Path(os.path.commonpath([results.resolve(), folder.resolve()]))
    try:
        pdf = typst.compile(
            folder.resolve() / "main.typ",
            root=root,
            ignore_system_fonts=True,  # the fonts inside the compiler are the same everywhere
            sys_inputs={
                "results": "/" + results.resolve().relative_to(root).as_posix(),
                "numbers": edition.numbers,
            },
            timestamp=0,
        )
    except RuntimeError as error:
        raise UserError(f"{folder / 'main.typ'}: Typst says: {error}.") from None
    write_whole(folder / edition.pdf, pdf)


def numbers(
    experiments: Mapping[str, Experiment | ExactExperiment], results: Path, edition: Edition = WHOLE
) -> dict[str, Any]:
    """Return everything that the paper prints and that is not its own words."""
    from grpo_ablate.analysis import figures
    from grpo_ablate.analysis.figures import overview
    from grpo_ablate.analysis.figures.material import load
    from grpo_ablate.spec.exact_files import ExactExperiment

    exact = {name: e for name, e in experiments.items() if isinstance(e, ExactExperiment)}
    trained = {name: e for name, e in experiments.items() if not isinstance(e, ExactExperiment)}
    every = list(trained.values())
    materials = {name: load(e, results) for name, e in trained.items()}
    compared = paper_experiments.compared(every, results)
    sections = paper_experiments.sections(every, compared)
    captions = theory.captions(exact, results) | {
        f"{name}-{figure}": caption
        for name, material in materials.items()
        for figure, caption in figures.captions(material.experiment, material).items()
    }
    drawn = [*FIGURES, *(figure["name"] for s in sections for e in s["experiments"] for figure in e["figures"])]
    overall = {"caption": overview.caption(overview.blocks(every, results)), "path": f"{edition.overview}.pdf"}
    return {
        "question": {name: materials[name].experiment.question for name in (REPRODUCTION, SWEEP)},
        "setting": setting(trained[REPRODUCTION]),
        "reproduction": reproduction(materials[REPRODUCTION]),
        "rows": rows(materials[REPRODUCTION]),
        "gaps": gaps(materials[REPRODUCTION]),
        "noise": [
            f"{row.spec.reward.noise_std:g}"
            for row in trained[REPRODUCTION].rows
            if row.spec.reward.transform == "noise"
        ],
        "sweep": sweep(materials[SWEEP]),
        "theory": theory.numbers(exact, results),
        "sections": sections,
        "claims": paper_experiments.verdicts(compared),
        "controls": paper_experiments.controls(compared),
        "partial": paper_experiments.partial(compared),
        "late": paper_experiments.late(compared),
        "testbeds": paper_testbeds.testbeds(materials),
        "figures": {name: {"caption": captions[name], "path": f"figures/{name}.pdf"} for name in drawn}
        | {"overview": overall},
        "provenance": provenance(every, results) | paper_testbeds.cost(materials),
    }


def setting(experiment: Experiment) -> dict[str, str]:
    """Return how the reproduced experiment was run, from the spec of its baseline row."""
    from grpo_ablate.spec.schema import SelectionTask

    spec = experiment.row(experiment.baseline).spec
    assert isinstance(spec.task, SelectionTask)
    prompts = spec.task.prompts
    return {
        "prompts": str(len(prompts)),
        "candidates": str(len(prompts[0].candidates)),
        "qualities": ", ".join(f"{candidate.quality:g}" for candidate in prompts[0].candidates),
        "group_size": str(spec.sampling.group_size),
        "updates": f"{spec.rounds * spec.steps_per_round:,}",
        "rollouts": f"{spec.budget.rollouts:,}",
        "learning_rate": f"{spec.optimizer.learning_rate:g}",
        "beta": f"{spec.kl.beta:g}",
        "eps": power_of_ten(spec.advantage.eps),
        "seeds": str(experiment.seeds),
        "every": str(spec.evaluation.every),
        "rows": str(len(experiment.rows)),
        "source": prompts[0].source.removesuffix("."),
        "best": max(prompts[0].candidates, key=lambda candidate: candidate.quality).text.removesuffix("."),
    }


def rows(material: Material) -> dict[str, dict[str, str]]:
    """Return the final quality of every row: the mean over seeds and the 95 % t interval."""
    from grpo_ablate.analysis.figures.material import interval

    found = {}
    for row in material.rows:
        mean, half = interval(material.final(row, material.experiment.metric))
        found[row.id] = {
            "reward": typst_reward(row.spec.reward),
            "mean": f"{mean:.4f}",
            "interval": f"95 % t interval {mean - half:.4f} to {mean + half:.4f}",
        }
    return found


def gaps(material: Material) -> dict[str, str]:
    """Return how far rows that should coincide lie apart, at the worst evaluation of the worst seed."""
    from grpo_ablate.analysis.published import curves_of

    curves = curves_of(material.runs, material.experiment.metric)
    pairs = {"affine-eps-0": "identity-eps-0", "per-prompt-affine": "identity--group-std"}
    return {
        row: scientific(float(abs(curves[row] - curves[other]).max()))
        for row, other in pairs.items()
        if row in curves and other in curves and curves[row].shape == curves[other].shape
    }


def reproduction(material: Material) -> dict[str, Any]:
    """Return the published table beside ours, with a verdict on every comparison."""
    from grpo_ablate.analysis.figures.material import levels
    from grpo_ablate.analysis.published import curves_of, judge

    experiment = material.experiment
    curves = curves_of(material.runs, experiment.metric)
    lines = []
    every: list[Verdict] = []
    singles: dict[str, Verdict] = {}
    for published in material.published(experiment.metric):
        verdicts = judge(curves, [published])
        every += verdicts
        if published.statement != "final":
            singles[published.statement] = verdicts[0]
            continue
        row, digits = experiment.row(published.row), published.digits
        mean = verdicts[0]
        lines.append(
            {
                "row": row.id,
                "reward": typst_reward(row.spec.reward),
                "advantage": levels(experiment, row).get("advantage", row.label),
                "ours": f"{mean.ours:.{digits}f}",
                "published": f"{mean.published:.{digits}f}",
                "difference": signed(mean.difference, digits + 1),
                "allowed": f"{mean.tolerance:.{digits + 1}f}",
                "agrees": all(verdict.holds for verdict in verdicts),
                **_spread(verdicts[1:], digits),
            }
        )
    return {
        "rows": lines,
        "comparisons": str(len(every)),
        "agreeing": str(sum(verdict.holds for verdict in every)),
        "all": bool(every) and all(verdict.holds for verdict in every),
        "seeds": str(max((verdict.seeds for verdict in every if verdict.quantity == "mean"), default=0)),
        "gap": scientific(singles["gap"].ours) if "gap" in singles else "",
        "gap_allowed": power_of_ten(singles["gap"].tolerance) if "gap" in singles else "",
        "initial": f"{singles['initial'].ours:.4f}" if "initial" in singles else "",
    }


def _spread(verdicts: Sequence[Verdict], digits: int) -> dict[str, str]:
    if not verdicts:
        return {"ours_sd": "", "published_sd": "", "difference_sd": "", "allowed_sd": ""}
    verdict, smallest = verdicts[0], 10.0**-digits
    ours = f"< {smallest:.{digits}f}" if verdict.ours < smallest / 2 else f"{verdict.ours:.{digits}f}"
    theirs = f"{verdict.published:.{digits}f}"
    if verdict.bound:
        beside = {"difference_sd": f"{'within' if verdict.holds else 'above'} the bound", "allowed_sd": ""}
    else:
        beside = {
            "difference_sd": signed(verdict.difference, digits + 1),
            "allowed_sd": f"{verdict.tolerance:.{digits + 1}f}",
        }
    return {"ours_sd": ours, "published_sd": f"< {theirs}" if verdict.bound else theirs, **beside}


def sweep(material: Material) -> dict[str, Any]:
    """Return final quality at every group size, for each way of holding the budget and each advantage."""
    from grpo_ablate.analysis.figures.material import axis_values, interval, levels

    experiment = material.experiment
    options = next(figure.options for figure in experiment.figures if figure.kind == "sweep")
    axis, by, panel = options["axis"], options["by"], options["panel"]
    values = axis_values(experiment, axis)[1]
    means = {
        tuple(levels(experiment, row)[name] for name in (by, panel, axis)): float(
            interval(material.final(row, experiment.metric))[0]
        )
        for row in material.rows
    }
    sizes = sorted(experiment.axes[axis], key=lambda level: values[level])
    lines: dict[str, dict[str, Any]] = {}
    for held in experiment.axes[by]:
        for advantage in experiment.axes[panel]:
            line = [means.get((held, advantage, size), -math.inf) for size in sizes]
            best = line.index(max(line))
            lines[f"{held}--{advantage}"] = {
                "held": held,
                "advantage": advantage,
                "cells": [f"{mean:.4f}" if math.isfinite(mean) else "" for mean in line],
                "best": best,
                "best_size": f"{values[sizes[best]]:g}",
            }
    return {"sizes": [f"{values[size]:g}" for size in sizes], "rows": lines, "seeds": material.seeds()}


def provenance(experiments: Iterable[Experiment], results: Path) -> dict[str, Any]:
    """Return which code and versions made the runs, from the runs' own records, and how many runs there are."""
    from grpo_ablate.runs.record_files import read_provenance
    from grpo_ablate.spec.cells import cells

    every = list(experiments)
    folders = [results / cell.folder for cell in cells(every)]
    records = [read_provenance(folder) for folder in folders if (folder / "provenance.json").exists()]
    # Not whole blocks of seeds: a block may hold more seeds than an experiment asks for.
    runs = {(e.testbed.name, row.hash, seed) for e in every for row in e.rows for seed in range(e.seeds)}
    versions = {
        name: ", ".join(sorted({r["versions"].get(name, "unknown") for r in records})) for name in VERSIONS
    }
    return {
        "commits": sorted({(record["commit"] or "unknown")[:12] for record in records}),
        "dirty": any(record["dirty"] for record in records),
        "versions": [f"{name} {version}" for name, version in versions.items() if version not in ("", "unknown")],
        "processors": sorted({record["processor"] for record in records if record["processor"]}),
        "runs": f"{len(runs):,}",
        "specs": str(len({digest for _, digest, _ in runs})),
    }


def typst_reward(reward: Any) -> str:
    """Return the training reward as Typst mathematics.

    >>> from grpo_ablate.spec.schema import Reward
    >>> typst_reward(Reward(transform="affine", scale=10, shift=3))
    '10 r + 3'
    >>> typst_reward(Reward(transform="power", power=4))
    'r^4'
    """
    if reward.transform == "power":
        return f"r^{reward.power:g}"
    if reward.transform == "affine":
        exponent = math.log10(reward.scale) if reward.scale > 0 else 0
        scale = f"{reward.scale:g}" if abs(exponent) < 4 else power_of_ten(reward.scale)
        shift = f" {'+' if reward.shift > 0 else '-'} {abs(reward.shift):g}" if reward.shift else ""
        return f"{scale} r{shift}"
    return "r" if reward.transform == "identity" else f'"{reward.transform}"'
