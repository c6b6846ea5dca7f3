"""From slices to numbers: rates with their spread, time by part, shares of the machine's peak, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_ablate.bench.measure import Result
from grpo_ablate.bench.pacer import Slice
from grpo_ablate.bench.peak import OPERATIONS
from grpo_ablate.spec.schema import Spec


@dataclass(frozen=True)
class Spread:
    """A quantity measured once per slice."""

    median: float
    low: float
    high: float
    slices: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the extremes.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0, slices=(3.0, 1.0, 2.0))
    """
    return Spread(statistics.median(values), min(values), max(values), tuple(values))


@dataclass(frozen=True)
class Summary:
    """One side's numbers; times are wall time, rates are sums over processes."""

    side: str
    models: int  # in all processes
    models_per_process: int
    updates_per_second: Spread  # rollout rounds with all their inner steps, summed over models
    updates_per_second_per_model: float
    response_length: float  # mean tokens of a response: the work must be alike on all sides
    sampled_tokens_per_second: Spread | None  # while sampling; None where a side does not tell its parts apart
    seconds_per_round: dict[str, float] | None  # of one process: sampling, training, rest
    gflops: dict[str, float] | None  # reached by one process, of the operations needed at least
    share_of_peak: dict[str, float] | None
    peak_bytes: int  # of the largest process
    start_up_seconds: float  # of the slowest process, from its start to its first round
    evaluation_seconds: dict[str, float]  # of one process: "2 samples" -> seconds
    share_of_run: dict[str, float] | None  # sampling, training, rest and evaluation of a whole run of the testbed
    times: dict[str, Spread]  # name of another side -> how many times its updates per second
    work: tuple[tuple[Slice, ...], ...]  # everything above comes from: [slice][process]


def peak_gflops(result: Result) -> Spread:
    """Return what one process reaches in large matrix products while the others do the same, GFLOP/s."""
    return spread(
        [statistics.mean(done.rounds * OPERATIONS / done.seconds for done in each) / 1e9 for each in result.slices]
    )


def rates(result: Result) -> list[float]:
    """Return the updates per second of each slice, summed over processes."""
    return [sum(done.updates / done.seconds for done in each) for each in result.slices]


def summarise(result: Result, peak: float, others: Sequence[Result], whole: Spec) -> Summary:
    """Return the numbers of one side; ``peak`` is in GFLOP/s, ``others`` are the sides to compare it with."""
    every = [done for each in result.slices for done in each]
    models = result.side.members * len(result.slices[0])
    mine = rates(result)
    parts = _parts(every)
    gflops = None if parts is None else _gflops(every)
    evaluation = _evaluation(result)
    return Summary(
        side=result.side.name,
        models=models,
        models_per_process=result.side.members,
        updates_per_second=spread(mine),
        updates_per_second_per_model=statistics.median(mine) / models,
        response_length=_total(every, lambda done: done.tokens) / _total(every, lambda done: done.responses),
        sampled_tokens_per_second=None
        if parts is None
        else spread([sum(done.tokens / (done.sampling_seconds or 1) for done in each) for each in result.slices]),
        seconds_per_round=parts,
        gflops=gflops,
        share_of_peak=None if gflops is None else {part: reached / peak for part, reached in gflops.items()},
        peak_bytes=max(done.peak_bytes for done in every),
        start_up_seconds=max(result.start_up),
        evaluation_seconds=evaluation,
        share_of_run=None if parts is None or not evaluation else _share_of_run(parts, evaluation, whole),
        work=result.slices,
        times={
            other.side.name: spread([a / b for a, b in zip(mine, rates(other), strict=True)]) for other in others
        },
    )


def _total(slices: Sequence[Slice], value: Callable[[Slice], float | None]) -> float:
    return sum(value(done) or 0.0 for done in slices)


def _parts(slices: Sequence[Slice]) -> dict[str, float] | None:
    if any(done.sampling_seconds is None for done in slices):
        return None
    rounds = _total(slices, lambda done: done.rounds)
    sampling = _total(slices, lambda done: done.sampling_seconds) / rounds
    training = _total(slices, lambda done: done.training_seconds) / rounds
    seconds = _total(slices, lambda done: done.seconds) / rounds
    return {"sampling": sampling, "training": training, "rest": seconds - sampling - training}


def _gflops(slices: Sequence[Slice]) -> dict[str, float]:
    return {
        "sampling": _total(slices, lambda done: done.sampling_flops)
        / _total(slices, lambda done: done.sampling_seconds)
        / 1e9,
        "training": _total(slices, lambda done: done.training_flops)
        / _total(slices, lambda done: done.training_seconds)
        / 1e9,
    }


def _evaluation(result: Result) -> dict[str, float]:
    return {
        f"{samples} samples": statistics.mean(process[place] for process in result.evaluations)
        for place, samples in enumerate(result.side.evaluations)
    }


def evaluations_of(spec: Spec) -> dict[int, int]:
    """Return how many evaluations a whole run makes, by samples a prompt.

    The initial policy and every ``every`` rounds are evaluated, the last ``final_evaluations`` with
    ``final_samples``.
    """
    evaluation = spec.evaluation
    count = 1 + -(-spec.rounds // evaluation.every)
    samples = evaluation.samples if isinstance(evaluation.samples, int) else 0
    final = samples if evaluation.final_samples == "same" else evaluation.final_samples
    last = min(evaluation.final_evaluations, count)
    found = {samples: count - last}
    found[final] = found.get(final, 0) + last
    return found


def _share_of_run(parts: dict[str, float], evaluation: dict[str, float], whole: Spec) -> dict[str, float]:
    seconds = {part: value * whole.rounds for part, value in parts.items()}
    seconds["evaluation"] = sum(
        times * evaluation[f"{samples} samples"] for samples, times in evaluations_of(whole).items()
    )
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items()}
