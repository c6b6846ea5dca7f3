"""The table of an exact experiment: a line per row and combination of varied values, written as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError
from grpo_ablate.exact.columns import QUANTITIES, Found
from grpo_ablate.exact.dynamics import UpdateField, iterate
from grpo_ablate.exact.points import Point, combinations, points
from grpo_ablate.exact.token import token_objective
from grpo_ablate.exact.update import expected_update
from grpo_ablate.spec.exact_files import ExactExperiment

Line = dict[str, str | float | int]


def write_table(experiment: ExactExperiment, results: Path) -> Path:
    """Write ``tables/<name>.csv`` below ``results``; return its path. Raises UserError.

    Columns: ``experiment``, ``row``, ``label``, what varies under the names of the file (``success``,
    ``sampling.group_size``), and the quantities. Numbers have every digit; a number that does not exist is
    empty. Equal files and equal code give equal bytes.
    """
    path = results / "tables" / f"{experiment.name}.csv"
    write_whole(path, as_csv(lines(experiment)).encode())
    return path


def lines(experiment: ExactExperiment) -> list[Line]:
    """Return the lines of the table."""
    return list(KINDS[experiment.kind](experiment))


def as_csv(table: list[Line]) -> str:
    """Return lines as CSV; a column that a line lacks, or NaN, is empty."""
    names = list(dict.fromkeys(name for line in table for name in line))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for line in table:
        writer.writerow([_cell(line.get(name, math.nan)) for name in names])
    return text.getvalue()


def _cell(value: str | float | int) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value + 0.0)
    return str(value)


def _updates(experiment: ExactExperiment) -> Iterator[Line]:
    for point in points(experiment):
        yield _start(experiment, point) | _quantities(experiment, point)


def _quantities(experiment: ExactExperiment, point: Point) -> Line:
    found = Found(point)
    result: Line = {}
    for name in experiment.quantities:
        try:
            result.update(QUANTITIES[name](found))
        except ValueError as error:
            raise UserError(f"{experiment.path}: quantities: {name}: {error}.") from None
    return result


def _iterated(experiment: ExactExperiment) -> Iterator[Line]:
    """Follow the expected update; ``rollouts`` charges one group per update, rejected groups included."""
    plan = experiment.iterate
    assert plan is not None  # the form was checked
    for start in points(experiment):
        point = _anchored(start) if plan.reference == "start" else start
        field = UpdateField(point.policy, point.switches)
        path = iterate(point.policy.parameters, field, plan.learning_rate, plan.steps)
        size, generated = point.switches.sampling.group_size, 0.0
        filtered = point.switches.sampling.dynamic != "off"
        for number, parameters in enumerate(path):
            here = Point(point.row, point.values, point.switches, point.policy.at(parameters), parameters)
            if number % plan.every == 0 or number == plan.steps:
                trace: Line = {"updates": number, "rollouts": generated}
                yield _start(experiment, point) | trace | _quantities(experiment, here)
            generated += size / (expected_update(here.policy, here.switches).accepted if filtered else 1.0)


def _anchored(point: Point) -> Point:
    """Return the point with the reference at its policy."""
    parameters = point.policy.parameters
    prompts = tuple(replace(prompt, reference=prompt.logits(parameters)) for prompt in point.policy.prompts)
    return replace(point, policy=replace(point.policy, prompts=prompts))


def _tokens(experiment: ExactExperiment) -> Iterator[Line]:
    for row, values in combinations(experiment):
        objective, slope = token_objective(row.switches.update, float(values["ratio"]), float(values["advantage"]))
        known = {"objective": objective, "slope": slope}
        start: Line = {"experiment": experiment.name, "row": row.id, "label": row.label}
        yield start | values | {name: known[name] for name in experiment.quantities}


def _start(experiment: ExactExperiment, point: Point) -> Line:
    start: Line = {"experiment": experiment.name, "row": point.row.id, "label": point.row.label}
    return start | point.values


KINDS: dict[str, Callable[[ExactExperiment], Iterator[Line]]] = {
    "update": _updates,
    "iterate": _iterated,
    "token": _tokens,
}
