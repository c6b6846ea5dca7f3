"""Show the responses that a row's runs kept, with advantages and step scores under their tokens."""

from __future__ import annotations

import shutil
import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record, read_samples
from grpo_ablate.spec.cells import row_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, Row

Sample = dict[str, Any]
OF_A_RESPONSE = ("seed", "round", "prompt", "response", "tokens", "reward", "advantages", "steps")
INDENT = "  "


def as_text(experiment: Experiment, row: Row, results: Path, width: int | None = None) -> str:
    """Return the kept responses of the experiment's seeds, as far as a row is trained.

    ``width`` in characters: the terminal's where it is None. Raises UserError where no block of the row has been
    trained, or a record is damaged.
    """
    found: list[Sample] = []
    for cell in row_cells(experiment, row):
        folder = results / cell.folder
        if has_record(folder):
            found += [sample for sample in read_samples(folder) if sample["seed"] < experiment.seeds]
    if not found:
        raise UserError(f"{experiment.path}:{row.id}: no run of this row is in {results}; train it first.")
    return format_samples(found, width or shutil.get_terminal_size().columns)


def format_samples(samples: list[Sample], width: int) -> str:
    """Return samples as plain text of at most ``width`` columns where a token's column is no wider than that.

    Responses to one prompt stand under it; each row of tokens has its advantages below, and its step scores where
    the task gives some.
    """
    lines: list[str] = []
    for (seed, round), of_round in groupby(samples, key=lambda sample: (sample["seed"], sample["round"])):
        lines += [f"seed {seed}, round {round}", ""]
        for heading, responses in groupby(of_round, key=_heading):
            lines += textwrap.wrap(heading, width, subsequent_indent=INDENT)
            for response in responses:
                lines += _response(response, width)
            lines.append("")
    return "\n".join(lines).rstrip()


def _heading(sample: Sample) -> str:
    """Return the prompt and what else the task says of it."""
    more = [f"{name}: {value}" for name, value in sample.items() if name not in OF_A_RESPONSE]
    return f"{sample['prompt']}  [{', '.join(more)}]" if more else str(sample["prompt"])


def _response(sample: Sample, width: int) -> list[str]:
    """Return a response's reward and its table of tokens, wrapped."""
    reward = sample["reward"]
    title = f"{INDENT}reward {'missing' if reward is None else f'{reward:.3f}'}"
    if sample["tokens"] != [sample["response"]]:
        title += f"  {sample['response']}"
    rows = {"token": list(sample["tokens"]), "advantage": [f"{value:+.3f}" for value in sample["advantages"]]}
    steps = sample.get("steps")
    if steps is not None:
        scores = {end: f"{score:+g}" for end, score in steps}
        rows["step score"] = [scores.get(place, "") for place in range(len(rows["token"]))]
    return textwrap.wrap(title, width, subsequent_indent=2 * INDENT) + _aligned(rows, width)


def _aligned(rows: dict[str, list[str]], width: int) -> list[str]:
    """Return named rows of cells under one another, a new block of rows wherever the width ends."""
    margin = max(map(len, rows)) + 2 * len(INDENT)
    columns = [max(map(len, cells)) for cells in zip(*rows.values(), strict=True)]
    lines, first = [], 0
    while first < len(columns):
        last, used = first + 1, margin + len(INDENT) + columns[first]
        while last < len(columns) and used + len(INDENT) + columns[last] <= width:
            used += len(INDENT) + columns[last]
            last += 1
        for name, cells in rows.items():
            padded = [cell.rjust(size) for cell, size in zip(cells[first:last], columns[first:last], strict=True)]
            lines.append(INDENT.join([(2 * INDENT + name).ljust(margin), *padded]).rstrip())
        first = last
    return lines
