"""An experiment's runs as one tidy table: a line per row, seed and evaluation, from the records or from MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from grpo_ablate.analysis.alarms import alarms
from grpo_ablate.analysis.controls import judge_controls
from grpo_ablate.analysis.notes import notes
from grpo_ablate.analysis.partial import missing_runs, partial_words
from grpo_ablate.analysis.scores import Scores
from grpo_ablate.analysis.summary import summarise, summary_csv, summary_tables
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_lines import INTEGERS, Lines, record_lines
from grpo_ablate.runs.record_files import has_record
from grpo_ablate.spec.cells import cells, measured_runs

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.analysis.comparison import ControlResult
    from grpo_ablate.spec.resolve import Experiment, Row

KEYS = (
    "experiment",
    "row",
    "role",
    "testbed",
    "hash",
    "seed",
    "round",
    "updates",
    "rollouts",
    "tokens",
    "seconds",
    "stale",
    "diverged",
    "parameters",
    "partial",
)
PARAMETERS_DIGITS = 16  # of the checksum: enough to tell parameters apart
Run = tuple[str, int]  # hash, seed


@dataclass(frozen=True)
class Measured:
    """One run's lines, the digest of the training code that made them, and what became of it.

    ``parameters`` is the checksum of the final parameters of the run's block of seeds; empty where unknown.
    """

    lines: Lines
    digest: str
    diverged: bool
    parameters: str


def collect(
    experiment: Experiment,
    results: Path,
    source: str = "records",
    *,
    partial: bool = False,
    exact: Sequence[ControlResult] = (),
) -> list[Path]:
    """Write ``tables/<experiment>-runs.{parquet,csv}`` and the summary ``tables/<experiment>.{csv,md,tex,typ}``.

    ``source``: ``records``, ``mlflow`` (the store in ``results``) or the address of any MLflow store; all
    give the same bytes. ``exact``: the exact controls, of which those that failed stand above the tables. Returns
    the files written.

    Raises:
        UserError: runs are missing (unless ``partial``), a record is corrupt, or the store cannot be used.
    """
    runs = tidy(experiment, results, source, partial=partial)
    folder = results / "tables"
    parquet, text = (folder / f"{experiment.name}-runs.{ending}" for ending in ("parquet", "csv"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(runs, parquet, compression="zstd")
        write_csv(runs, text)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}).") from error
    written = [parquet, text]
    for ending, content in summary_files(experiment, runs.to_pandas(), results, exact).items():
        written.append(folder / f"{experiment.name}{ending}")
        write_whole(written[-1], content)
    return written


def write_csv(runs: pa.Table, where: Path | pa.NativeFile) -> None:
    """Write a tidy table as CSV, floats in full."""
    pyarrow.csv.write_csv(runs, where, pyarrow.csv.WriteOptions(quoting_style="needed"))


def summary_files(
    experiment: Experiment, runs: pd.DataFrame, results: Path, exact: Sequence[ControlResult]
) -> dict[str, bytes]:
    """Return the summary of a tidy table by the endings of its files: ``.csv``, ``.md``, ``.tex``, ``.typ``."""
    found = Scores(experiment, runs)
    partial = missing_runs(experiment, runs)
    own = judge_controls(experiment, found)[0] if experiment.metric in found.metrics else ()
    heading = [*alarms([*own, *exact]), *([partial] if partial else [])]
    printed = summary_tables(experiment, found, heading=heading, notes=notes(experiment, results))
    return {".csv": summary_csv(summarise(experiment, found, partial=partial)), **printed}


def tidy(experiment: Experiment, results: Path, source: str = "records", *, partial: bool = False) -> pa.Table:
    """Return the tidy table, sorted by the experiment's order of rows, then seed, then round.

    Columns: ``KEYS``, then the metrics by name. ``role`` says whether a line belongs to a ``row`` of the tables, a
    ``control``, or a row at one learning rate: on the main seeds (``rate``) or on the tuning seeds (``tuning``).
    ``seconds`` is the seed's share of its block's time so far. ``stale`` marks lines of older training code,
    which a testbed may keep; ``diverged`` all lines of a run whose parameters ceased to be finite. Rows whose
    ``parameters`` are equal on equal seeds ended bit-identical. ``partial`` says on every line how many runs there
    are where some are missing. Metrics are NaN where they do not apply; a
    ``train/*`` metric that never applies has no column.

    Raises:
        UserError: as `collect`.
    """
    wanted = [(row.hash, seed) for row, seed in measured_runs(experiment)]
    if source == "records":
        found = _from_records(experiment, results)
    else:
        found = _from_mlflow(experiment, results, None if source == "mlflow" else source, wanted)
    missing = [run for run in dict.fromkeys(wanted) if run not in found]
    if not found or (missing and not partial):
        digest, seed = missing[0]
        row = next(row.id for row in experiment.trained_rows if row.hash == digest)
        where = results if source == "records" else f"MLflow ({source})"
        raise UserError(
            f"{experiment.path}: {len(missing)} of {len(set(wanted))} runs are missing in {where}, the first is "
            f"row '{row}' seed {seed} (runs/{experiment.testbed.name}/{digest[:8]}); train and log them"
            + ("." if not found else ", or give --partial.")
        )
    return _table(experiment, found, _current_digests(experiment))


def _from_records(experiment: Experiment, results: Path) -> dict[Run, Measured]:
    from grpo_ablate.runs.record import read_cell

    found: dict[Run, Measured] = {}
    for cell in cells([experiment]):
        if not has_record(results / cell.folder):
            continue
        record = read_cell(results, cell)
        for seed, lines in record_lines(record).items():
            diverged = str(seed) in record.run["diverged"]
            checksum = record.run["checksums"]["parameters.safetensors"]
            found[cell.hash, seed] = Measured(lines, record.run["digest"], diverged, checksum)
    return found


def _from_mlflow(
    experiment: Experiment, results: Path, uri: str | None, wanted: Iterable[Run]
) -> dict[Run, Measured]:
    from grpo_ablate.runs.mlflow_reader import read_runs

    logged = read_runs(results, uri, experiment.testbed.name, wanted)
    return {
        run: Measured(
            found.lines, found.tags.get("digest", ""), "diverged" in found.tags, found.tags.get("parameters", "")
        )
        for run, found in logged.items()
    }


def _current_digests(experiment: Experiment) -> dict[str, str]:
    """Return hash -> digest of today's training code, for a testbed that keeps the results of older code."""
    if experiment.testbed.stale != "keep":
        return {}
    from grpo_ablate.workflow.staleness import training_code

    return {cell.hash: training_code(cell) for cell in cells([experiment])}


def roles(experiment: Experiment) -> list[tuple[Row, int, str]]:
    """Return every row with every seed that the tidy table holds of it, and its role there (`tidy`)."""
    known = {id(row): "row" for row in experiment.rows} | {id(row): "control" for row in experiment.controls}
    return [
        (row, seed, known.get(id(row), "rate" if seed < experiment.seeds else "tuning"))
        for row, seed in measured_runs(experiment)
    ]


def _table(experiment: Experiment, found: Mapping[Run, Measured], current: Mapping[str, str]) -> pa.Table:
    asked = [(row, seed, role) for row, seed, role in roles(experiment) if (row.hash, seed) in found]
    chosen = [(row, seed, found[row.hash, seed]) for row, seed, _ in asked]
    counts = [len(run.lines["round"]) for _, _, run in chosen]
    total = sum(counts)

    def spread(values: list[object]) -> pa.Array:
        return pa.array(values).take(pa.array(np.repeat(np.arange(len(values)), counts)))

    def joined(name: str) -> np.ndarray:
        return np.concatenate([run.lines[name] for _, _, run in chosen])

    columns: dict[str, object] = {
        "experiment": pa.array([experiment.name] * total, pa.string()),
        "row": spread([row.id for row, _, _ in chosen]),
        "role": spread([role for _, _, role in asked]),
        "testbed": pa.array([experiment.testbed.name] * total, pa.string()),
        "hash": spread([row.hash for row, _, _ in chosen]),
        "seed": spread([seed for _, seed, _ in chosen]),
        **{name: joined(name) for name in (*INTEGERS, "seconds")},
        "stale": spread([current.get(row.hash, run.digest) != run.digest for row, _, run in chosen]),
        "diverged": spread([run.diverged for _, _, run in chosen]),
        "parameters": spread([run.parameters[:PARAMETERS_DIGITS] for _, _, run in chosen]),
        "partial": pa.array([partial_words(experiment, found)] * total, pa.string()),
    }
    absent = {count: np.full(count, np.nan) for count in counts}
    for name in sorted({name for _, _, run in chosen for name in run.lines if "/" in name}):
        found_in = [run.lines.get(name, absent[count]) for (_, _, run), count in zip(chosen, counts, strict=True)]
        column = np.concatenate(found_in)
        if name.startswith("eval/") or not np.isnan(column).all():
            columns[name] = column + 0.0  # no negative zeros: SQL has none
    return pa.table(columns)
