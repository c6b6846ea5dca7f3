"""Reference tables of a full run, small enough to be published: ``results/published/<experiment>.csv``.

One line per row and ``eval/*`` metric: ``row, hash, metric, n, mean, sd, ci_low, ci_high``, over seeds. Scores are
as measured, so that no cell depends on another row: a failed run has the score that it ended with, and ``n`` is
without those that are not finite. ``hash`` begins the row's hash: a table of another spec is known as such.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from grpo_ablate.analysis.collect import tidy
from grpo_ablate.analysis.summary import estimate, scores
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

COLUMNS = ("row", "hash", "metric", "n", "mean", "sd", "ci_low", "ci_high")
NUMBERS = ("mean", "sd", "ci_low", "ci_high")
HASH_DIGITS = 16


def reference_table(experiment: Experiment, results: Path, *, partial: bool = False) -> pd.DataFrame:
    """Return the reference table of an experiment, computed from its records, whose checksums are verified.

    Raises:
        UserError: a record is damaged, or missing (unless ``partial``), or there is none at all.
    """
    return reference_of(experiment, tidy(experiment, results, partial=partial).to_pandas())


def reference_of(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the reference table of an experiment's tidy table."""
    found: list[tuple[object, ...]] = []
    every = [name for name in runs.columns if name.startswith("eval/")]
    for row in experiment.rows:
        lines = runs[runs["row"] == row.id]
        if lines.empty:
            continue
        measured = [name for name in every if name == experiment.metric or not lines[name].isna().all()]
        scored = scores(lines, measured, row.spec.evaluation.last)
        found += [(row.id, row.hash[:HASH_DIGITS], name, *estimate(scored[name])) for name in measured]
    return pd.DataFrame(found, columns=list(COLUMNS))


def reference_bytes(table: pd.DataFrame) -> bytes:
    """Return the table as CSV, floats so that they are read back the same."""
    return table.to_csv(index=False, lineterminator="\n").encode()


def publish(experiments: Iterable[Experiment], results: Path, folder: Path) -> list[Path]:
    """Write the reference table of every experiment, none before all are computed; return the files.

    Raises:
        UserError: as `reference_table`, or the folder cannot be written.
    """
    contents = {
        folder / f"{experiment.name}.csv": reference_bytes(reference_table(experiment, results))
        for experiment in experiments
    }
    for path, content in contents.items():
        write_whole(path, content)
    return list(contents)


def read_reference(content: bytes, where: str) -> pd.DataFrame:
    """Return a reference table from its CSV; ``where`` names it in an error.

    Raises:
        UserError: the text is not such a table, or has a row and metric twice.
    """
    try:
        table = pd.read_csv(io.BytesIO(content), dtype={"hash": str, "row": str})
        if list(table.columns) != list(COLUMNS):
            raise ValueError
        table = table.astype({"n": "int64", **dict.fromkeys(NUMBERS, "float64")})
    except (ValueError, TypeError):
        raise UserError(f"{where}: is not a reference table; expected the columns {', '.join(COLUMNS)}.") from None
    finite = np.isfinite(table["mean"]) & (table["sd"].isna() | (table["sd"] >= 0) & np.isfinite(table["sd"]))
    if wrong := table[(table["n"] < 0) | (table["n"] > 0) & ~finite].to_dict("records"):
        raise UserError(
            f"{where}: {wrong[0]['metric']} of row '{wrong[0]['row']}' has no n of 0 or more, finite mean, and sd."
        )
    if twice := table[table.duplicated(["row", "metric"])].to_dict("records"):
        raise UserError(f"{where}: {twice[0]['metric']} of row '{twice[0]['row']}' stands there twice.")
    return table
