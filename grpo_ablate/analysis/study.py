"""The commands on a whole study: which experiments `verify`, `publish` and `archive` take, and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record
from grpo_ablate.spec.cells import experiment_cells
from grpo_ablate.spec.exact_files import load_exact_experiments
from grpo_ablate.spec.resolve import EXACT, Experiment, load_experiment, load_experiments


def run_verify(paths: Sequence[Path], results: Path, against: Path, json: bool) -> int:
    """Print how the records compare with reference tables; return 1 unless all is as it should be.

    It is not where a record is damaged, a table is not what its records give, or a cell differs.

    Raises:
        UserError: an experiment named has no reference table, or there is nothing to compare or check.
    """
    from grpo_ablate.analysis.archive import references
    from grpo_ablate.analysis.verify import as_json, as_text, verify

    experiments = _chosen(paths)
    tables = references(against)
    for experiment in experiments if paths else ():
        if experiment.name not in tables:
            raise UserError(f"{experiment.path}: {against} holds no reference table of this experiment.")
    exact = None if paths else load_exact_experiments()
    found = verify(experiments, results, tables, exact)
    if not found.cells and not found.faults and not found.altered:
        raise UserError(f"{results}: holds no run of an experiment that {against} has a reference table of.")
    print(as_json(found) if json else as_text(found))
    return 0 if found.holds else 1


def run_publish(paths: Sequence[Path], results: Path, folder: Path) -> None:
    """Write and name the reference tables: of the experiments named, else of all that are trained.

    Raises:
        UserError: an experiment is not trained whole.
    """
    from grpo_ablate.analysis.reference import publish

    for path in publish(_trained(paths, results), results, folder):
        print(path)


def run_archive(paths: Sequence[Path], results: Path, target: Path) -> None:
    """Write the archive of the experiments named, else of all that are trained and of the exact ones.

    Prints its name, then what of the work is not in it.
    """
    from grpo_ablate.analysis.archive import archive, unfinished

    experiments = _trained(paths, results)
    folder = experiments[0].path.parent
    others = (
        () if paths else (*sorted(folder.glob(f"{EXACT}*.yaml")), *sorted((folder / "policies").glob("*.json")))
    )
    print(archive(experiments, results, target, others))
    for words in filter(None, (unfinished(experiment, results) for experiment in experiments)):
        print(words)
    kept = {experiment.name for experiment in experiments}
    if untrained := [experiment.name for experiment in _chosen(paths) if experiment.name not in kept]:
        print(f"left out, nothing of them is trained: {', '.join(untrained)}")


def _chosen(paths: Sequence[Path]) -> list[Experiment]:
    return [load_experiment(path) for path in dict.fromkeys(paths)] or load_experiments()


def _trained(paths: Sequence[Path], results: Path) -> list[Experiment]:
    """Return the experiments named, else those with a run."""
    found = _chosen(paths)
    if not paths:
        found = [e for e in found if any(has_record(results / cell.folder) for cell in experiment_cells(e))]
    if not found:
        raise UserError(f"{results}: holds no run of any experiment; train some with: snakemake --cores all")
    return found
