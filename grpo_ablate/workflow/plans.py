"""Settles the key files of every step from the experiments, the code, and what the results record."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_ablate.analysis.figures import module_name
from grpo_ablate.analysis.notes import notes
from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import RECORD
from grpo_ablate.runs.start_files import PARAMETERS
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.exact_files import ExactExperiment
from grpo_ablate.spec.resolve import Experiment
from grpo_ablate.workflow.digest import TRAINING, digest_of, row_digest
from grpo_ablate.workflow.grid import (
    ACROSS,
    ARXIV,
    COMPARISON,
    CONTROLS,
    PAPERS,
    PROPOSITIONS,
    RESULTS,
    TABLES,
    Grid,
    conform_tables,
    digest_file,
    exact_table,
    made,
    plan,
    start_digest_file,
    start_file,
)
from grpo_ablate.workflow.keys import first_line, settle
from grpo_ablate.workflow.staleness import is_stale, start_code, start_trained, trained, training_code

LOG = "grpo_ablate.runs.mlflow_writer.log_experiment"
COLLECT = "grpo_ablate.analysis.collect.collect"
COMPARE = "grpo_ablate.analysis.compare_command.write_compared"
OVER_TESTBEDS = "grpo_ablate.analysis.across.write_across"
EXACT_CONTROLS = "grpo_ablate.analysis.exact_controls.write_exact_controls"
DRAW = "grpo_ablate.analysis.figures.draw"  # which imports a module per kind by name
EXACT_TABLE = "grpo_ablate.exact.tabulate.write_table"
PROPOSITION_TABLE = "grpo_ablate.exact.propositions.table.write_propositions"
PAPER_BUILD = "grpo_ablate.analysis.paper.build"
ARXIV_BUILD = "grpo_ablate.analysis.arxiv.build"
PAGE = "grpo_ablate.analysis.page.write_page"
PACKAGE = Path(__file__).parents[1]
# What trains with the other trainer, beside the training code of the rows.
OTHER_TRAINER = (*(PACKAGE / "conform").glob("*.py"), *(PACKAGE / "bench").glob("trl_*.py"))


@dataclass(frozen=True)
class Step:
    """One job as far as its key file goes. ``recorded`` is the key that ``made`` says it was built from."""

    key_file: str
    key: str
    recorded: str | None
    made: str
    outputs: list[str]
    words: str = ""


def check_writable() -> None:
    """Raise UserError where the results folder cannot be written."""
    if Path(RESULTS).exists() and not os.access(RESULTS, os.W_OK | os.X_OK):
        raise UserError(f"{RESULTS}: cannot be written: permission denied.")


def settle_all(grid: Grid) -> None:
    """Settle every key file.

    Raises:
        UserError: a key file cannot be written, or a run's record cannot be read.
    """
    steps = [
        *_starts(grid), *_training(grid), *_analysis(grid), *_exact(grid), *_conform(grid), *_smoke(grid),
    ]  # fmt: skip
    if not any(Path(".snakemake/metadata").glob("*")):
        _align(step for step in steps if step.recorded == step.key)
    for step in steps:
        settle(Path(step.key_file), step.key, step.recorded, Path(step.made), step.words)


def _align(steps: Iterable[Step]) -> None:
    """Give the outputs of finished steps one date, since a copy without Snakemake's memory scrambles them."""
    now = int(time.time())
    for step in steps:
        for output in step.outputs:
            if Path(output).exists():
                os.utime(output, (now, now))


def _starts(grid: Grid) -> Iterator[Step]:
    for start in grid.starts:
        found, outputs = start_trained(Path(RESULTS), start), [start_file(start)]
        outputs.append(f"{RESULTS}/{start.folder}/{PARAMETERS}")
        recorded = None if found is None else f"{found.code} {found.fault}".strip()
        yield Step(start_digest_file(start), start_code(start), recorded, start_file(start), outputs)


def _training(grid: Grid) -> Iterator[Step]:
    keep = {e.testbed.name for e in grid.experiments.values() if e.testbed.stale == "keep"}
    turns = _turns(grid)
    for cell in grid.cells:
        folder = Path(RESULTS, cell.folder)
        code, found = training_code(cell), trained(Path(RESULTS), cell)
        recorded = None if found is None else f"{found.code} {found.fault}".strip()
        if found and not found.fault and cell.testbed in keep:
            recorded = code
        outputs = [f"{folder}/{file}" for file in RECORD]
        yield Step(digest_file(cell), code, recorded, f"{folder}/run.json", outputs, turns[cell])


def _turns(grid: Grid) -> dict[Cell, str]:
    """Padding by which the experiments train one after another, the largest first.

    Of jobs of equal priority Snakemake's greedy scheduler starts those with the largest input. An experiment
    that is trained is logged and drawn beside the training of the next; all at once would all end at once.
    """
    turns: dict[Cell, str] = {}
    largest = sorted(grid.experiments.values(), key=lambda e: e.seeds * len(e.rows))
    for turn, experiment in enumerate(largest, 1):  # a shared cell goes with the first that needs it
        turns |= dict.fromkeys(grid.cells_of(experiment.name), "." * 64 * turn)
    return turns


def _analysis(grid: Grid) -> Iterator[Step]:
    for name, experiment in grid.experiments.items():
        content, drawn = _content(experiment), grid.figures(name)  # refuses a kind that does not exist
        rows = [[row.id, row.hash] for row in experiment.trained_rows]
        log = {"testbed": experiment.testbed.name, "seeds": experiment.seeds, "rows": rows}
        yield _step("log", name, log | {"uri": grid.tracking_uri, "code": digest_of(LOG)}, [], _log_lost(grid))
        marked = [c.folder for c in grid.cells_of(name) if is_stale(c, Path(RESULTS))] if content["keeps"] else []
        tables = {"source": grid.source, "other code": marked, "code": digest_of(COLLECT)}
        outputs = [f"{RESULTS}/tables/{name}{suffix}" for suffix in TABLES]
        yield _step("collect", name, content | tables, outputs)
        judged = _judged(experiment) | {"code": digest_of(COMPARE)}
        outputs = [f"{RESULTS}/tables/{name}{suffix}" for suffix in COMPARISON]
        yield _step("compare", name, content | judged, outputs)
        figures = {
            "figures": [[figure.kind, figure.options] for figure in experiment.figures],
            "question": experiment.question,
            "published": _bytes_digest([experiment.published] if experiment.published else []),
            "code": _drawing(experiment),
        }
        yield _step("draw", name, content | figures, drawn)
    over = {"experiments": grid.standing, "code": digest_of(OVER_TESTBEDS)}
    yield _step("across", "across", over, list(ACROSS))
    yield _step("controls", "controls", {"code": digest_of(EXACT_CONTROLS)}, list(CONTROLS))
    sources = sorted(path for path in Path("paper").rglob("*") if path.is_file() and path.suffix != ".pdf")
    paper = {"sources": _bytes_digest(sources), "code": digest_of(PAPER_BUILD)}
    names = [*grid.standing, *grid.exact]
    yield _step("paper", "paper", paper | {"experiments": names}, list(PAPERS["paper"]))
    quick = {"experiments": [*grid.quick, *grid.exact]}
    yield _step("paper", "paper-quick", paper | quick, list(PAPERS["paper-quick"]))
    latex = {"latex": digest_of(ARXIV_BUILD)}
    yield _step("arxiv", "arxiv", paper | latex | {"experiments": names}, [ARXIV["arxiv"]])
    yield _step("arxiv", "arxiv-quick", paper | latex | quick, [ARXIV["arxiv-quick"]])
    for name, experiment in grid.experiments.items():
        yield _step("page", name, {"question": experiment.question, "code": digest_of(PAGE)}, grid.pages(name))


def _exact(grid: Grid) -> Iterator[Step]:
    for name, experiment in grid.exact.items():
        table = experiment.content()
        yield _step("exact", name, {"table": table, "code": digest_of(EXACT_TABLE)}, [exact_table(name)])
        figures = {
            "figures": [[figure.kind, figure.options] for figure in experiment.figures],
            "words": [experiment.question, experiment.exact, experiment.assumed],
            "code": _drawing(experiment),
        }
        yield _step("draw", name, table | figures, grid.figures(name))
    if grid.exact:
        yield _step("exact", "propositions", {"code": digest_of(PROPOSITION_TABLE)}, list(PROPOSITIONS))


def _conform(grid: Grid) -> Iterator[Step]:
    for name, experiment in grid.conform.items():
        content = _content(experiment) | {
            "figures": [[figure.kind, figure.options] for figure in experiment.figures],
            "question": experiment.question,
            "trained": [row_digest(row.effective) for row in experiment.rows],
            "code": [_bytes_digest(sorted(OTHER_TRAINER)), _drawing(experiment)],
            "trl": version("trl"),
        }
        yield _step("conform", name, content, [*conform_tables(name), *grid.figures(name)])


def _drawing(experiment: Experiment | ExactExperiment) -> str:
    """The code that draws an experiment's figures."""
    return digest_of(DRAW, *(module_name(experiment, figure.kind) for figure in experiment.figures))


def _smoke(grid: Grid) -> Iterator[Step]:
    code = [digest_of(TRAINING, COLLECT, DRAW), _bytes_digest([Path(__file__).with_name("smoke.py")])]
    for testbed in grid.standing_testbeds:
        contents = [_content(e) for e in grid.experiments.values() if e.testbed.name == testbed]
        yield _step("smoke", testbed, {"experiments": contents, "code": code}, [])


def _step(step: str, name: str, content: dict[str, Any], outputs: list[str], lost: str | None = None) -> Step:
    recorded = first_line(Path(made(step, name)))
    words = json.dumps(content, sort_keys=True, indent=1)
    return Step(
        plan(step, name),
        hashlib.sha256(words.encode()).hexdigest()[:16],
        recorded and (lost or recorded),
        made(step, name),
        [*outputs, made(step, name)],
        words,
    )


def _log_lost(grid: Grid) -> str | None:
    gone = not grid.tracking_uri and not Path(RESULTS, "mlflow.db").exists()
    return "a database that is gone" if gone else None


def _content(experiment: Experiment) -> dict[str, Any]:
    """What tables and figures take from an experiment's files; sparse, so that a new switch changes nothing."""
    return {
        "name": experiment.name,
        "testbed": experiment.testbed.name,
        "keeps": experiment.testbed.stale == "keep",
        "baseline": experiment.baseline,
        "metric": experiment.metric,
        "seeds": experiment.seeds,
        "axes": experiment.axes,
        "rows": [
            {
                "id": row.id,
                "label": row.label,
                "hash": row.hash,
                "stated": row.stated,
                "last": row.spec.evaluation.last,
                "inert": [item.key for item in row.inert],
            }
            for row in experiment.rows
        ],
        "controls": [row.hash for row in experiment.controls],
        "at rates": [[row.id, row.hash] for rows in experiment.tuned.values() for row in rows],
    }


def _judged(experiment: Experiment) -> dict[str, Any]:
    """What a comparison takes from an experiment's file beside the rows, and what was decided after a look."""
    return {
        "question": experiment.question,
        "margin": experiment.margin,
        "held": experiment.held,
        "claims": [claim.model_dump(mode="json", exclude_unset=True) for claim in experiment.claims],
        "notes": notes(experiment, Path(RESULTS)),
    }


def _bytes_digest(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]
