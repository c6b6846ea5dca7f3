"""How long jobs would take on this machine, by what earlier jobs of the same policy on the same task took.

A job is a start and three parts: sampling, training, evaluation. A part costs so much a call (a round, an
optimiser step, an evaluation) and so much a response that it handles; both prices are fitted, by least squares
of relative errors, to the parts' times in the records of finished jobs.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import read_run, read_timing
from grpo_ablate.runs.start_files import read_start
from grpo_ablate.spec.schema import Spec, StackedPolicy
from grpo_ablate.spec.warmstart import Start, training_spec

FORWARD = 1 / 3  # of a forward and backward pass: what the reference's log-probabilities cost
PARTS = ("sampling", "training", "evaluation")


class Work(NamedTuple):
    """What a part of a job does: calls that all seeds share, and responses (prompts included) of all seeds."""

    calls: float
    volume: float


class Observed(NamedTuple):
    """A part of a finished job, and its seconds."""

    work: Work
    seconds: float


@dataclass(frozen=True)
class Prices:
    """Seconds a job, and seconds a call and a response of each part."""

    start: float
    parts: Mapping[str, tuple[float, float]]

    def seconds(self, works: Mapping[str, Work]) -> float:
        """Return the seconds of a job without its start."""
        return sum(
            call * works[part].calls + response * works[part].volume
            for part, (call, response) in self.parts.items()
        )


def family(spec: Spec) -> str:
    """Return what jobs must have in common for one to tell the time of another: task and shape of the policy."""
    shape = spec.policy.model_dump(exclude={"warmstart"})
    return f"{spec.task.name} {sorted(shape.items())}"


def families(spec: Spec) -> tuple[str, str]:
    """Return whose jobs tell the time of a spec's: those with its limit of tokens where there are any, or all."""
    return f"{family(spec)} up to {spec.sampling.max_tokens} tokens", family(spec)


def prices_of(spec: Spec, prices: Mapping[str, Prices]) -> Prices | None:
    """Return the prices of a spec's jobs; None where nothing tells them."""
    return next((prices[name] for name in families(spec) if name in prices), None)


def works(spec: Spec, seeds: int) -> dict[str, Work]:
    """Return the work of each part of a run of a spec on a number of seeds, when nothing is resampled."""
    rounds, evaluation = spec.rounds, spec.evaluation
    # A prompt is computed once for its group.
    responses = rounds * spec.sampling.prompts * (spec.sampling.group_size + 1) * seeds
    passes = float(spec.update.inner_passes)
    if spec.kl.beta > 0:
        passes += FORWARD * (passes if spec.kl.estimator == "exact" else 1)
    measured = 1 + -(-rounds // evaluation.every)
    last = min(measured, evaluation.final_evaluations)
    plain = _samples(evaluation.samples)
    final = plain if evaluation.final_samples == "same" else _samples(evaluation.final_samples)
    held_out = getattr(spec.task, "held_out", spec.task.pool_size) * seeds
    # Beside the samples one greedy response and the prompt.
    drawn = held_out * ((measured - last) * (plain + 2) + last * (final + 2))
    return {
        "sampling": Work(rounds, responses),
        "training": Work(rounds * spec.steps_per_round, responses * passes),
        "evaluation": Work(measured, drawn),
    }


def _samples(number: int | str) -> int:
    return number if isinstance(number, int) else 1


def calibrate(results: Path) -> dict[str, Prices]:
    """Return the prices of all `families` of which this machine has finished a job."""
    observed: dict[str, list[tuple[Spec, int, dict[str, Any]]]] = {}
    for path in sorted((results / "runs").glob("*/*/*/timing.json")):
        try:
            timing = read_timing(path.parent)
            if timing["machine"] != platform.node():
                continue
            run = read_run(path.parent)
            spec = Spec.model_validate(run["spec"])
        except (UserError, ValueError):
            continue  # a damaged record tells nothing; `status` reports it
        for name in families(spec):
            observed.setdefault(name, []).append((spec, len(run["seeds"]), timing))
    return {name: _prices(jobs) for name, jobs in observed.items()}


def _prices(jobs: Sequence[tuple[Spec, int, dict[str, Any]]]) -> Prices:
    parts: dict[str, list[Observed]] = {part: [] for part in PARTS}
    starts = 0.0
    for spec, seeds, timing in jobs:
        told = timing["parts"]
        # What belongs to no part, as checkpoints and samples, is paid once a job.
        starts += told.get("start_up", 0.0) + max(
            0.0, timing["seconds"] - sum(told.get(part, 0.0) for part in PARTS)
        )
        for part, work in works(spec, seeds).items():
            parts[part].append(Observed(work, told.get(part, 0.0)))
    by_volume = jobs[0][0].policy.name != "tabular"
    return Prices(starts / len(jobs), {part: fitted(found, by_volume) for part, found in parts.items()})


def fitted(observed: Iterable[Observed], by_volume: bool) -> tuple[float, float]:
    """Return the seconds a call and a response that come nearest to what was observed, neither below 0.

    Where the observations cannot tell the two apart, one of them is taken to be everything: the response where
    ``by_volume``, else the call.

    >>> fitted([Observed(Work(10, 100), 30.0), Observed(Work(10, 300), 70.0)], True)
    (1.0, 0.2)
    >>> fitted([Observed(Work(10, 100), 30.0), Observed(Work(20, 200), 60.0)], True)
    (0.0, 0.3)
    """
    # Both columns and the target divided by the seconds, so that every job's relative error counts alike.
    rows = [(work.calls / seconds, work.volume / seconds) for work, seconds in observed if seconds > 0]
    if not rows:
        return 0.0, 0.0
    cc, cv, vv = (sum(a[i] * a[j] for a in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    c, v = sum(row[0] for row in rows), sum(row[1] for row in rows)
    alone = {True: (0.0, v / vv if vv else 0.0), False: (c / cc if cc else 0.0, 0.0)}
    determinant = cc * vv - cv * cv
    if determinant <= 1e-6 * cc * vv:
        return _rounded(alone[by_volume])
    call, response = (c * vv - v * cv) / determinant, (v * cc - c * cv) / determinant
    if call < 0 or response < 0:
        return _rounded(alone[call < 0])
    return _rounded((call, response))


def _rounded(prices: tuple[float, float]) -> tuple[float, float]:
    return float(f"{prices[0]:.9g}"), float(f"{prices[1]:.9g}")


def start_seconds(start: Start, results: Path, prices: Prices | None) -> float | None:
    """Return the seconds that a warm start would take; None where nothing tells.

    As an earlier start of the same policy took a demonstration, or as a response of a run does in training.
    """
    spec = training_spec(start)
    for earlier, seconds in _earlier_starts(results):
        stated = training_spec(earlier)
        if family(stated) == family(spec):
            return seconds * _demonstrations(start) / _demonstrations(earlier)
    if prices is None:
        return None
    call, response = prices.parts["training"]
    assert isinstance(spec.policy, StackedPolicy)
    return prices.start + spec.policy.warmstart.steps * call + 2 * _demonstrations(start) * response


def _demonstrations(start: Start) -> int:
    """Demonstrations that are trained on, of all members."""
    policy = training_spec(start).policy
    assert isinstance(policy, StackedPolicy)
    return policy.warmstart.steps * policy.warmstart.batch * len(start.members)


def _earlier_starts(results: Path) -> Iterator[tuple[Start, float]]:
    """Warm starts that this machine trained, the longest first, with their seconds."""
    found = []
    folder = results / "warmstarts"
    for path in (*folder.glob("*/timing.json"), *folder.glob("*/seeds-*/timing.json")):
        try:
            timing = read_timing(path.parent)
            if timing["machine"] == platform.node():
                told = read_start(path.parent)
                seeds = None if told["seeds"] is None else (told["seeds"][0], told["seeds"][-1])
                start = Start(told["hash"], seeds, json.dumps(told["spec"]))
                found.append((start, timing["seconds"] + timing["parts"].get("start_up", 0.0)))
        except (UserError, ValueError, KeyError):
            continue
    return iter(sorted(found, key=lambda pair: -pair[1]))
