"""Which tables are not what the records give: every table that exists is made anew in memory and set beside it.

A table is derived from the records, the experiment's file, the plans and the code: whoever edits one leaves it at
odds with those. Text must be equal; numbers with decimals may differ by rounding (`ROUNDING`), since the order of
a sum depends on the processor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from grpo_ablate.analysis.comparison import Comparison
    from grpo_ablate.spec.exact_files import ExactExperiment
    from grpo_ablate.spec.resolve import Experiment

ROUNDING = 1e-9  # relative
NOTHING = 1e-12  # below it, digits are those of rounding
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
Content: TypeAlias = "bytes | pa.Table"


@dataclass(frozen=True)
class Derived:
    """What the records of one experiment give: its tables by their endings, and its comparison.

    ``comparison`` is None where the rows cannot be compared; ``reason`` says why.
    """

    tables: dict[str, Content]
    comparison: Comparison | None
    reason: str = ""


def derive(experiment: Experiment, runs: pa.Table, results: Path) -> Derived:
    """Return every table of an experiment from its tidy table; controls are judged anew."""
    from grpo_ablate.analysis.collect import summary_files, write_csv
    from grpo_ablate.analysis.compare import compare
    from grpo_ablate.analysis.compare_command import compared_files
    from grpo_ablate.analysis.exact_controls import exact_controls
    from grpo_ablate.analysis.notes import changes_after_a_look
    from grpo_ablate.analysis.partial import missing_runs

    lines, exact, text = runs.to_pandas(), exact_controls(), pa.BufferOutputStream()
    write_csv(runs, text)
    tables: dict[str, Content] = {"-runs.parquet": runs, "-runs.csv": text.getvalue().to_pybytes()}
    tables |= summary_files(experiment, lines, results, exact)
    try:
        changes = changes_after_a_look(experiment, results)
        found = compare(experiment, lines, exact, changes, missing_runs(experiment, lines))
    except UserError as error:
        return Derived(tables, None, str(error))
    return Derived(tables | compared_files(experiment, lines, found), found)


def altered(experiment: Experiment, derived: Derived | None, results: Path) -> list[str]:
    """Return a sentence for every table of an experiment on disk that is not what its records give.

    ``derived`` is None where the experiment has no records: then nothing supports a table.
    """
    from grpo_ablate.analysis.comparison import FILES
    from grpo_ablate.analysis.page import TABLES as SHOWN
    from grpo_ablate.analysis.page import page

    folder, name = results / "tables", experiment.name
    collected = ("-runs.parquet", "-runs.csv", ".csv", ".md", ".tex", ".typ")
    found = [folder / f"{name}{ending}" for ending in (*collected, *FILES, ".html")]
    if derived is None:
        said = f"no run of {experiment.path} is in {results} to support it; remove it"
        return [f"{path}: {said}." for path in found if path.exists()]
    tables = dict(derived.tables)
    shown = {ending: tables.get(f"{ending}.md") for ending in SHOWN if (folder / f"{name}{ending}.md").exists()}
    texts = {ending: text.decode() for ending, text in shown.items() if isinstance(text, bytes)}
    if "" in texts:
        tables[".html"] = page(experiment, texts)
    made = dict.fromkeys(collected, f"grpo-ablate collect {experiment.path}")
    made |= dict.fromkeys(FILES, f"grpo-ablate compare {experiment.path}")
    made[".html"] = f"grpo-ablate page {experiment.path}"
    sentences = list(_differing(folder / name, tables, made))
    if derived.comparison is None:
        paths = [path for path in (folder / f"{name}{ending}" for ending in FILES) if path.exists()]
        sentences += [f"{path}: cannot be made of the records: {derived.reason}" for path in paths]
    return sentences


def altered_controls(results: Path) -> list[str]:
    """Return a sentence for every table of the exact controls that differs from what they are judged to be now."""
    from grpo_ablate.analysis.exact_controls import controls_files

    if not any((results / "tables").glob("controls.*")):
        return []
    return _all_differing(results / "tables" / "controls", controls_files(), "grpo-ablate controls")


def altered_across(comparisons: Sequence[Comparison | None], results: Path) -> list[str]:
    """Return a sentence for every table over testbeds that differs from what the comparisons of the records give.

    ``comparisons`` are those of all experiments. Where one is None the tables cannot be made, and are not checked.
    """
    from grpo_ablate.analysis.across import across_files

    known = [comparison for comparison in comparisons if comparison is not None]
    if len(known) < len(comparisons) or not any((results / "tables").glob("across.*")):
        return []
    return _all_differing(results / "tables" / "across", across_files(known), "grpo-ablate across")


def altered_exact(experiments: Iterable[ExactExperiment], results: Path) -> list[str]:
    """Return a sentence for every table of an exact experiment, or of the propositions, that was altered."""
    folder = results / "tables"
    found: list[str] = []
    for experiment in experiments:
        if (folder / f"{experiment.name}.csv").exists():
            from grpo_ablate.exact.tabulate import as_csv, lines

            tables = {".csv": as_csv(lines(experiment)).encode()}
            command = f"grpo-ablate exact-table {experiment.path}"
            found += _all_differing(folder / experiment.name, tables, command)
    if any(folder.glob("propositions.*")):
        from grpo_ablate.exact.propositions.table import propositions_files

        found += _all_differing(folder / "propositions", propositions_files(), "grpo-ablate propositions")
    return found


def _all_differing(stem: Path, tables: Mapping[str, bytes], command: str) -> list[str]:
    return list(_differing(stem, tables, dict.fromkeys(tables, command)))


def _differing(stem: Path, tables: Mapping[str, Content], commands: Mapping[str, str]) -> Iterator[str]:
    for ending, content in tables.items():
        path = stem.with_name(f"{stem.name}{ending}")
        if path.exists() and not _holds(path, content):
            yield (
                f"{path}: differs from what the records, files and code give now; make it anew with: "
                f"{commands[ending]}"
            )


def _holds(path: Path, content: Content) -> bool:
    """Whether a file holds that content, up to rounding."""
    try:
        if isinstance(content, bytes):
            there = path.read_bytes()
            return there == content or alike(there.decode(), content.decode())
        return _same_lines(pyarrow.parquet.read_table(path), content)
    except (OSError, ValueError):  # of pyarrow, too: it is no table
        return False


def alike(one: str, other: str) -> bool:
    """Return whether two texts are equal but for rounding of the numbers with decimals in them.

    >>> alike("a 0.30000000000000004, 3", "a 0.3, 3"), alike("0.31", "0.3"), alike("1 seed", "2 seed")
    (True, False, False)
    """
    if _NUMBER.split(one) != _NUMBER.split(other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(mine == theirs or _near(mine, theirs) for mine, theirs in pairs)


def _near(one: str, other: str) -> bool:
    whole = any("." not in text and "e-" not in text for text in (one, other))
    return not whole and math.isclose(float(one), float(other), rel_tol=ROUNDING, abs_tol=NOTHING)


def _same_lines(one: pa.Table, other: pa.Table) -> bool:
    if one.column_names != other.column_names or one.num_rows != other.num_rows:
        return False
    for mine, theirs in zip(one.columns, other.columns, strict=True):
        if pa.types.is_floating(mine.type) and pa.types.is_floating(theirs.type):
            one_side, other_side = mine.to_numpy(), theirs.to_numpy()
            if not np.isclose(one_side, other_side, rtol=ROUNDING, atol=NOTHING, equal_nan=True).all():
                return False
        elif mine.to_pylist() != theirs.to_pylist():
            return False
    return True
