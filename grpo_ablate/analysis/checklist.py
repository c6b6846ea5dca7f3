"""The reproducibility checklist of an archive, every answer read from the records.

Its questions follow the machine learning reproducibility checklist (Pineau et al., "Improving Reproducibility in
Machine Learning Research", version 2.0) and the NeurIPS paper checklist: claims, code, data, experiments,
statistics, compute. A box is ticked where the records answer yes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate import __version__
from grpo_ablate.analysis.notes import AFTER, changes_after_a_look
from grpo_ablate.analysis.planned import history
from grpo_ablate.runs.record_files import has_record, read_provenance, read_run, read_timing
from grpo_ablate.spec.cells import Cell, cells
from grpo_ablate.spec.margins import margin_of
from grpo_ablate.workflow.staleness import is_stale

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment


@dataclass(frozen=True)
class Evidence:
    """What the records of one experiment say: how many there should be, and the files of those there are."""

    experiment: Experiment
    wanted: int
    runs: tuple[dict[str, Any], ...]
    timings: tuple[dict[str, Any], ...]
    provenance: tuple[dict[str, Any], ...]
    stale: int


def evidence(experiment: Experiment, results: Path) -> Evidence:
    """Return what the records of an experiment say. Raises UserError where one is damaged."""
    own: list[Cell] = cells([experiment])
    trained = [cell for cell in own if has_record(results / cell.folder)]
    folders = [results / cell.folder for cell in trained]
    return Evidence(
        experiment,
        len(own),
        tuple(read_run(folder) for folder in folders),
        tuple(read_timing(folder) for folder in folders),
        tuple(read_provenance(folder) for folder in folders),
        sum(is_stale(cell, results) for cell in trained),
    )


def checklist(experiments: Sequence[Experiment], results: Path, commit: str | None, dirty: bool | None) -> str:
    """Return the checklist as Markdown.

    Args:
        experiments: those archived.
        results: where their records lie.
        commit: of the code that archives; None where it is in no git working tree.
        dirty: whether that code has uncommitted changes.
    """
    found = [evidence(experiment, results) for experiment in experiments]
    parts = [
        "# Reproducibility checklist\n\nGenerated from the records. A ticked box is answered yes by them.",
        _claims(found, results),
        _code(found, commit, dirty),
        _data(found),
        *[_experiment(one, results) for one in found],
        _statistics(found),
        _compute(found),
        _REBUILDING,
    ]
    return "\n\n".join(parts) + "\n"


_REBUILDING = """## Rebuilding

In this folder, with grpo-ablate installed at the commit above and `requirements.lock` as constraints:

```
sha256sum --check --quiet MANIFEST.sha256
grpo-ablate verify --against results/published
grpo-ablate collect experiments/NAME.yaml
grpo-ablate compare experiments/NAME.yaml
```

`collect` and `compare` write every table to `results/tables`. To train a row once more, apart from these records:
`grpo-ablate train experiments/NAME.yaml:ROW --results again`."""


def _box(yes: bool, text: str) -> str:
    return f"- [{'x' if yes else ' '}] {text}"


def _claims(found: Sequence[Evidence], results: Path) -> str:
    lines = ["## Claims", ""]
    for one in found:
        changed = dict(changes_after_a_look(one.experiment, results).claims)
        for claim in one.experiment.claims:
            test = claim.test
            margin = margin_of(one.experiment, claim)
            asked = f"{test.kind}: {test.row} against {test.than}"
            asked += f" in {test.metric or one.experiment.metric}" + (
                "" if margin is None else f", margin {margin:g}"
            )
            mark = f" **{changed[claim.id]} {AFTER}**" if claim.id in changed else ""
            lines.append(
                _box(
                    claim.id not in changed,
                    f"{one.experiment.name}, {claim.id}: {claim.statement} ({claim.source}) "
                    f"Tested as {asked}.{mark}",
                )
            )
        lines += [
            _box(False, f"{one.experiment.name}, {name}: planned, and **dropped {AFTER}**")
            for name, what in changed.items()
            if what == "dropped"
        ]
    if len(lines) == 2:
        lines.append("No claims are declared: rows have intervals, and no p values.")
    return "\n".join(lines)


def _code(found: Sequence[Evidence], commit: str | None, dirty: bool | None) -> str:
    sessions = [record for one in found for record in one.provenance]
    commits = sorted({str(record["commit"] or "unknown") for record in sessions})
    versions = sorted({f"{name} {text}" for record in sessions for name, text in record["versions"].items()})
    changed = sum(bool(record["dirty"]) for record in sessions)
    stale = sum(one.stale for one in found)
    here = f"{commit or 'unknown'}{' with uncommitted changes' if dirty else ''}"
    return "\n".join(
        [
            "## Code",
            "",
            _box(commit is not None and not dirty, f"Archived by grpo-ablate {__version__}, commit {here}."),
            _box("unknown" not in commits, f"Trained by commit {', '.join(commits)}."),
            _box(changed == 0, f"Seed blocks trained with uncommitted changes: {changed}."),
            _box(stale == 0, f"Seed blocks trained by other training code than the archiving commit's: {stale}."),
            _box(True, f"Versions that trained: {', '.join(versions)}; every dependency: `requirements.lock`."),
        ]
    )


def _data(found: Sequence[Evidence]) -> str:
    tasks = sorted(
        {
            f"testbed {one.experiment.testbed.name}: task {row.spec.task.name}, version {row.spec.task.version}"
            for one in found
            for row in one.experiment.rows
        }
    )
    return "\n".join(
        ["## Data", "", *[_box(True, f"{task}, generated or written out in its file.") for task in tasks]]
    )


def _experiment(one: Evidence, results: Path) -> str:
    experiment = one.experiment
    changes = changes_after_a_look(experiment, results)
    known = history(experiment.name, results)
    if changed := replace(changes, claims=()).sentences:  # the claims have boxes of their own
        planned = [_box(False, sentence) for sentence in changed]
    elif not known:
        planned = [_box(False, "The plan was not recorded.")]
    else:
        planned = [_box(True, f"The plan was first recorded before any run of it existed, {known[0].recorded}.")]
    diverged = sum(len(run["diverged"]) for run in one.runs)
    return "\n".join(
        [
            f"## Experiment {experiment.name}",
            "",
            experiment.question,
            "",
            _box(len(one.runs) == one.wanted, f"Seed blocks finished: {len(one.runs)} of {one.wanted}."),
            *planned,
            _box(
                True,
                f"{len(experiment.rows)} rows, {experiment.seeds} paired seeds, baseline {experiment.baseline}, "
                f"score: {experiment.metric}.",
            ),
            _box(
                True,
                f"Every switch and hyper-parameter: `experiments/{experiment.path.name}`, "
                f"`experiments/testbeds/{experiment.testbed.path.name}`, and resolved in every `run.json`.",
            ),
            _box(
                bool(experiment.tuned),
                "Learning rates tuned for each row, on seeds of their own."
                if experiment.tuned
                else "Learning rates are the testbed's, tuned for no row.",
            ),
            _box(diverged == 0, f"Seeds that diverged, kept and scored worst: {diverged}."),
        ]
    )


def _statistics(found: Sequence[Evidence]) -> str:
    claims = ", ".join(f"{one.experiment.name} {len(one.experiment.claims)}" for one in found)
    margins = ", ".join(
        f"{one.experiment.name} {one.experiment.margin:g}" for one in found if one.experiment.margin is not None
    )
    return "\n".join(
        [
            "## Statistics",
            "",
            _box(
                True,
                "The unit is the seed; the score of a seed is the mean of its last evaluations, never the best.",
            ),
            _box(
                True, "Means with sample standard deviation (n - 1) and 95 % t interval over seeds; n is printed."
            ),
            _box(True, "Rows differ from the baseline by paired differences: t interval and paired t test."),
            _box(True, f"Holm's correction over the claims declared in the file: {claims}."),
            _box(bool(margins), f"Margins for equivalence, in units of the score: {margins or 'none stated'}."),
            _box(
                True, "Controls in every experiment: the baseline under other random numbers, and a random reward."
            ),
        ]
    )


def _compute(found: Sequence[Evidence]) -> str:
    lines = [
        "## Compute",
        "",
        "| experiment | rollouts | tokens | updates | seconds | peak of a job, MiB | GPU-hours | of a GPU, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        spent = [
            sum(sum(run["budget"].get(name, [])) for run in one.runs) for name in ("rollouts", "tokens", "updates")
        ]
        seconds = sum(timing["seconds"] for timing in one.timings)
        peak = max((timing["peak_memory_bytes"] for timing in one.timings), default=0) / 2**20
        numbers = " | ".join(f"{number:,}" for number in spent)
        hours = sum(timing.get("device_hours", 0.0) for timing in one.timings)  # records of older code have none
        most = max((timing.get("peak_device_memory_bytes", 0) for timing in one.timings), default=0) / 2**20
        lines.append(
            f"| {one.experiment.name} | {numbers} | {seconds:,.1f} | {peak:,.0f} | {hours:,.2f} | {most:,.0f} |"
        )
    sessions = [record for one in found for record in one.provenance]
    threads = _listed(record["threads"] for record in sessions)
    processors = _listed(record["processor"] or "unknown" for record in sessions)
    return "\n".join(
        [
            *lines,
            "",
            "A record that experiments share is counted in each. Interrupted sessions are in `provenance.json`.",
            "",
            _box(True, f"Processor: {processors}; threads of a job: {threads}."),
            _box(True, "Random numbers are functions of a key; on one processor records are equal byte for byte."),
        ]
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
