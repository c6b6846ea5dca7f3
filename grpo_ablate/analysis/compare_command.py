"""``grpo-ablate compare``: from records, MLflow or the collected table to the comparison, its files, its text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.compare_tables import comparison_files, headings
from grpo_ablate.analysis.comparison import Comparison
from grpo_ablate.analysis.notes import changes_after_a_look
from grpo_ablate.analysis.partial import missing_runs
from grpo_ablate.analysis.scores import Scores
from grpo_ablate.analysis.summary import summary_tables
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.spec.resolve import Experiment


def compared(
    experiment: Experiment, results: Path, source: str = "records", *, partial: bool = False
) -> Comparison:
    """Return the comparison of an experiment's runs.

    ``source``: ``records`` (verified against their checksums), ``mlflow``, the address of an MLflow store, or
    ``table``: what `collect` wrote.

    Raises:
        UserError: runs are missing (unless ``partial``) or damaged, or rows cost more or less than the baseline.
    """
    return judged(experiment, _runs(experiment, results, source, partial), results)


def write_compared(
    experiment: Experiment, results: Path, source: str = "records", *, partial: bool = False
) -> Comparison:
    """Write what `compared` finds, and the printed summary anew, which speaks of the same; return it.

    Raises:
        UserError: as `compared`, or a file cannot be written.
    """
    runs = _runs(experiment, results, source, partial)
    found = judged(experiment, runs, results)
    for ending, content in compared_files(experiment, runs, found).items():
        write_whole(results / "tables" / f"{experiment.name}{ending}", content)
    return found


def judged(experiment: Experiment, runs: pd.DataFrame, results: Path) -> Comparison:
    """Return the comparison of a tidy table; controls and plans are those in ``results``."""
    from grpo_ablate.analysis.exact_controls import read_exact_controls

    return compare(
        experiment,
        runs,
        read_exact_controls(results),
        changes_after_a_look(experiment, results),
        missing_runs(experiment, runs),
    )


def compared_files(experiment: Experiment, runs: pd.DataFrame, found: Comparison) -> dict[str, bytes]:
    """Return every file that holds a judgement by its ending: the comparison, the claims, the printed summary.

    The summary waits for no control when it is collected; here all controls are known.
    """
    printed = summary_tables(experiment, Scores(experiment, runs), heading=headings(found), notes=found.notes)
    return comparison_files(found) | printed


def _runs(experiment: Experiment, results: Path, source: str, partial: bool) -> pd.DataFrame:
    from grpo_ablate.analysis.collect import roles, tidy

    if source != "table":
        return tidy(experiment, results, source, partial=partial).to_pandas()
    import pandas as pd

    path = results / "tables" / f"{experiment.name}-runs.parquet"
    anew = f"make it with `grpo-ablate collect {experiment.path}`"
    try:
        found = pd.read_parquet(path)
        lines = list(zip(*(found[name].tolist() for name in ("row", "role", "hash", "seed")), strict=True))
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; {anew}.") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: is not a table of runs: {error}; {anew}.") from None
    # A table of before the file was edited holds rows by these names that trained otherwise, and other seeds.
    own = {(row.id, role, row.hash, seed) for row, seed, role in roles(experiment)}
    kept = [line in own for line in lines]
    if not any(kept):
        raise UserError(f"{path}: holds no run of {experiment.path} as it stands; {anew}.")
    return found if all(kept) else found[kept]
