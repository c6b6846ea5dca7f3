"""``grpo-ablate compare``: from records, MLflow or the collected table to the comparison, its files, its text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.comparison import Comparison
from grpo_ablate.analysis.notes import notes
from grpo_ablate.analysis.partial import missing_runs
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
    from grpo_ablate.analysis.exact_controls import read_exact_controls

    runs = _runs(experiment, results, source, partial)
    return compare(
        experiment,
        runs,
        read_exact_controls(results),
        notes(experiment, results),
        missing_runs(experiment, runs),
    )


def _runs(experiment: Experiment, results: Path, source: str, partial: bool) -> pd.DataFrame:
    if source != "table":
        from grpo_ablate.analysis.collect import tidy

        return tidy(experiment, results, source, partial=partial).to_pandas()
    import pandas as pd

    path = results / "tables" / f"{experiment.name}-runs.parquet"
    try:
        return pd.read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; make it with `grpo-ablate collect {experiment.path}`.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is not a table of runs: {error}.") from None
