"""The benchmark's page for a terminal, at most 100 columns wide, and the same as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_ablate.bench.mlflow_cost import MlflowCost
from grpo_ablate.bench.peak import SIZE
from grpo_ablate.bench.summary import Spread, Summary
from grpo_ablate.spec.identity import canonical_json
from grpo_ablate.spec.schema import Spec

WIDTH = 100


@dataclass(frozen=True)
class Report:
    """One testbed's measurement."""

    testbed: str
    spec: Spec  # the testbed's own
    parameters: int  # of one model
    origin: str
    processes: int
    slices: int
    rounds: int  # of a slice
    device: str
    peak_gflops: Spread  # of one process, in large float32 matrix products
    sides: tuple[Summary, ...]
    mlflow: MlflowCost


def as_json(reports: Sequence[Report], machine: dict[str, Any]) -> str:
    """Return everything that was measured, slices included."""
    found = [{**asdict(report), "spec": json.loads(canonical_json(report.spec))} for report in reports]
    return json.dumps({"machine": machine, "testbeds": found}, indent=2)


def head(machine: dict[str, Any]) -> str:
    """Return what was measured on."""
    versions = machine["versions"]
    return _wrapped(
        f"{machine['processor']}, {machine['processors']} processors; torch {versions['torch']}, transformers "
        f"{versions['transformers']}" + (f", trl {versions['trl']}" if versions["trl"] else "")
    )


def page(report: Report) -> str:
    """Return one testbed's page."""
    return "\n\n".join([_head(report), _rates(report), *_ratios(report), _parts(report), _costs(report)])


def _head(report: Report) -> str:
    spec = report.spec
    sampling, update, plural = spec.sampling, spec.update, "es" if report.processes > 1 else ""
    return "\n".join(
        [
            _wrapped(
                f"{report.testbed}: {sampling.prompts} prompts x {sampling.group_size} responses a round, at most "
                f"{sampling.max_tokens} tokens; {update.inner_passes} passes x {update.minibatches} minibatches, "
                f"{spec.optimizer.name} {spec.optimizer.learning_rate:g}; {report.parameters:,} parameters"
            ),
            _wrapped(
                f"{report.processes} process{plural} of one thread on {report.device}, {report.slices} slices of "
                f"{report.rounds} rounds, all sides in turn; from {report.origin}",
                indent="  ",
            ),
        ]
    )


def _rates(report: Report) -> str:
    rows = [("", "models", "updates/s", "lowest-highest", "a model", "tokens/s", "length", "memory", "start-up")]
    for side in report.sides:
        sampled = side.sampled_tokens_per_second
        rows.append(
            (
                side.side,
                str(side.models),
                _number(side.updates_per_second.median),
                f"{_number(side.updates_per_second.low)}-{_number(side.updates_per_second.high)}",
                _number(side.updates_per_second_per_model),
                "-" if sampled is None else f"{sampled.median:,.0f}",
                f"{side.response_length:.1f}",
                f"{side.peak_bytes / 2**20:,.0f} MB",
                f"{side.start_up_seconds:.1f} s",
            )
        )
    return "\n".join(
        [
            _table(rows),
            _note(
                "updates: rollout rounds with all their inner steps, summed over models; tokens/s: while "
                "sampling, all processes; length: tokens of a response; memory: of one process"
            ),
        ]
    )


def _ratios(report: Report) -> list[str]:
    others = list(dict.fromkeys(name for side in report.sides for name in side.times))
    if not others:
        return []
    rows: list[tuple[str, ...]] = [
        ("times as many updates a second as", *(f"{other} (lowest-highest)" for other in others))
    ]
    for side in report.sides:
        if side.times:
            cells = (f"{t.median:.2f} ({t.low:.2f}-{t.high:.2f})" for t in (side.times[name] for name in others))
            rows.append((_name(side), *cells))
    return [_table(rows)]


def _parts(report: Report) -> str:
    parts = ("sampling", "training", "rest")
    rows: list[tuple[str, ...]] = [
        ("milliseconds, a round of a model", *parts, "GFLOP/s sampling", "GFLOP/s training")
    ]
    for side in report.sides:
        seconds, gflops, share = side.seconds_per_round, side.gflops, side.share_of_peak
        if seconds is None or gflops is None or share is None:
            continue
        times = [f"{1e3 * seconds[part] / side.models_per_process:.1f}" for part in parts]
        reached = [f"{gflops[part]:.1f}, {100 * share[part]:.0f} % of peak" for part in parts[:2]]
        rows.append((_name(side), *times, *reached))
    peak = report.peak_gflops
    return "\n".join(
        [
            _table(rows),
            _note(
                f"peak: {peak.median:.0f} GFLOP/s ({peak.low:.0f}-{peak.high:.0f}) a thread in float32 products "
                f"of {SIZE:,} x {SIZE:,} while all processes do the same; counted are the products that a round "
                "needs at least: no padding, a prompt once a group, no training of groups of equal rewards"
            ),
        ]
    )


def _costs(report: Report) -> str:
    parts = ("sampling", "training", "rest", "evaluation")
    whole = [side for side in report.sides if side.share_of_run is not None]
    names = list(whole[0].evaluation_seconds) if whole else []
    title = f"a whole run, {report.spec.rounds} rounds"
    rows: list[tuple[str, ...]] = [(title, *parts, *(f"ms, {name}" for name in names))]
    for side in whole:
        shares = (f"{100 * (side.share_of_run or {})[part]:.0f} %" for part in parts)
        seconds = (f"{1e3 * side.evaluation_seconds[name] / side.models_per_process:.0f}" for name in names)
        rows.append((_name(side), *shares, *seconds))
    cost = report.mlflow
    rate = 1e3 * cost.points_per_run / cost.milliseconds_per_run
    return "\n".join(
        [
            *(
                [_table(rows), _note("ms: an evaluation of a model with so many samples for each held-out prompt")]
                if whole
                else []
            ),
            _wrapped(
                f"MLflow: {cost.milliseconds_per_run:.0f} ms a run of {cost.points_per_run:,.0f} points "
                f"({rate:,.0f} points/s); {cost.store_seconds:.1f} s to create the database, once"
            ),
        ]
    )


def _name(side: Summary) -> str:
    return f"{side.side}, {side.models} model{'s' if side.models > 1 else ''}"


def _number(value: float) -> str:
    """Return three digits or so.

    >>> _number(34.26), _number(4.263), _number(123.4)
    ('34.3', '4.26', '123')
    """
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _note(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)
