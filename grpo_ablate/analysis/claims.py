"""Judges the claims that an experiment file declares: supported, contradicted, equivalent or inconclusive.

All claims of a file are one Holm family. ``better`` and ``worse`` mean a higher and a lower metric and rest on the
paired t test; ``equivalent`` and ``ratio`` on two one-sided t tests against the margin, or, where the estimate
lies outside, on the test that the truth does too. Where the file states a margin within which differences do not
matter, a difference is "equivalent" if two one-sided tests at alpha / m put it there, however surely it is not 0.
What is neither established nor equivalent is "inconclusive", with the smallest effect that would have been seen.
``exact`` is no matter of chance: bit-identical parameters, or histories of the metrics that agree within the
margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grpo_ablate.analysis import statistics
from grpo_ablate.analysis.comparison import NAN, ClaimResult, Difference, Tests, Verdict
from grpo_ablate.analysis.sign_flip_bound import seeds_needed
from grpo_ablate.analysis.statistics import Numbers
from grpo_ablate.analysis.words import estimate, number, p_value
from grpo_ablate.spec.margins import margin_of

if TYPE_CHECKING:
    from grpo_ablate.analysis.scores import Scores
    from grpo_ablate.spec.files import Claim
    from grpo_ablate.spec.resolve import Experiment

ALPHA = 0.05
TIE = 8  # units in the last place


def difference(seeds: NDArray[np.int64], own: Numbers, other: Numbers, family: int) -> Difference:
    """Return the paired differences own minus other, with everything that does not depend on a claim.

    Scores that differ by no more than ``TIE`` units in the last place of the larger are equal: so much comes of
    the order in which sums were taken.
    """
    values = _apart(own, other)
    mean = statistics.mean_of(values)
    boot = statistics.bootstrap_interval(values)
    return Difference(
        seeds=tuple(int(seed) for seed in seeds),
        values=tuple(values.tolist()),
        mean=mean.mean,
        sd=mean.sd,
        low=mean.low,
        high=mean.high,
        boot_low=boot[0],
        boot_high=boot[1],
        won=statistics.share_won(values),
        ties=int((values == 0).sum()),
        detectable=statistics.detectable(mean.sd, mean.n, family, ALPHA),
    )


def _apart(own: Numbers, other: Numbers) -> Numbers:
    values = own - other
    return np.where(np.abs(values) <= TIE * np.spacing(np.maximum(np.abs(own), np.abs(other))), 0.0, values)


@dataclass(frozen=True)
class _Measured:
    """A claim with its pairs, before the correction; ``p`` is that of the claim's own test."""

    claim: Claim
    metric: str
    margin: float
    own: Numbers
    other: Numbers
    difference: Difference
    ratio: statistics.Ratio
    inside: bool  # equivalent, ratio: the estimate lies within the margin
    p: float
    left_out: int  # pairs with a failed run, of a metric without a worst value


def judge(experiment: Experiment, scores: Scores) -> tuple[ClaimResult, ...]:
    """Return every claim with its verdict, in the order of the file."""
    family = len(experiment.claims)
    measured = [_measure(experiment, scores, claim, family) for claim in experiment.claims]
    random = [found for found in measured if found is not None]
    tests = _tests(random, family)
    corrected = dict(
        zip((f.claim.id for f in random), statistics.holm([f.p for f in random], family), strict=True)
    )
    return tuple(
        _exact(experiment, scores, claim)
        if found is None
        else _verdict(found, tests[claim.id], corrected[claim.id], family)
        for claim, found in zip(experiment.claims, measured, strict=True)
    )


def _measure(experiment: Experiment, scores: Scores, claim: Claim, family: int) -> _Measured | None:
    test = claim.test
    if test.kind == "exact":
        return None
    metric = test.metric or experiment.metric
    margin = NAN if (stated := margin_of(experiment, claim)) is None else stated
    left_out = 0
    if scores.has(test.row) and scores.has(test.than):
        one, two = (scores.of(experiment.row(name), metric) for name in (test.row, test.than))
        seeds, own, other = one.paired(two)
        left_out = len(np.intersect1d(one.seeds[~one.unmeasured], two.seeds[~two.unmeasured])) - len(seeds)
    else:
        seeds, own, other = np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
    gap = difference(seeds, own, other, family)
    apart = np.array(gap.values)
    ratio, inside, p = statistics.Ratio(NAN, NAN, NAN), False, NAN
    if test.kind == "ratio":
        assert test.value is not None
        if len(own):
            ratio = statistics.ratio_of_means(own, other)
        inside = abs(ratio.ratio - test.value) < margin
        if not math.isnan(ratio.ratio):
            p = (statistics.ratio_within if inside else statistics.ratio_beyond)(own, other, test.value, margin)
    elif test.kind == "equivalent":
        inside = bool(len(own)) and abs(gap.mean) < margin
        p = (statistics.equivalence if inside else statistics.beyond)(apart, margin)
    else:
        p = statistics.mean_of(apart).p
    return _Measured(claim, metric, margin, own, other, gap, ratio, inside, p, left_out)


def _tests(measured: list[_Measured], family: int) -> dict[str, Tests]:
    raw = [
        (
            statistics.mean_of(found.difference.values).p,
            statistics.sign_flip(found.difference.values),
            statistics.wilcoxon(found.difference.values),
        )
        for found in measured
    ]
    holm = [statistics.holm([p[kind] for p in raw], family) for kind in range(3)]
    return {
        found.claim.id: Tests(*raw[place], *(adjusted[place] for adjusted in holm))
        for place, found in enumerate(measured)
    }


def _verdict(found: _Measured, tests: Tests, p: float, family: int) -> ClaimResult:
    claim, n = found.claim, len(found.own)
    reaches = n >= seeds_needed(family, ALPHA)
    verdict, reason = _decide(found, p, family)
    words = f"{reason}; {_evidence(found, p, tests)}" if n > 1 else reason
    if found.left_out:
        words += f"; {found.left_out} failed left out, as no value of {found.metric} is the worst"
    if n > 1 and not reaches:
        words += f"; with {n} seeds no sign-flip test reaches {ALPHA:g} among {family} claims"
    return replace(
        _blank(claim, found.metric),
        margin=found.margin,
        n=n,
        difference=found.difference if n else None,
        ratio=found.ratio.ratio,
        ratio_low=found.ratio.low,
        ratio_high=found.ratio.high,
        tests=tests,
        p=p,
        verdict=verdict,
        words=words,
        sign_flip_reaches=reaches,
    )


def _decide(found: _Measured, p: float, family: int) -> tuple[Verdict, str]:
    kind, d, n = found.claim.test.kind, found.difference, len(found.own)
    if n < 2:
        return (
            "inconclusive",
            "no seed was measured in both rows" if n == 0 else "one seed tells nothing of chance",
        )
    established = p <= ALPHA
    if kind in ("equivalent", "ratio"):
        if math.isnan(p):
            return "inconclusive", "the ratio does not exist: its denominator is 0"
        if established:
            if not found.inside:
                return "contradicted", "beyond the margin"
            apart = kind == "equivalent" and (d.low > 0 or d.high < 0)
            return "supported", f"within the margin{', though its interval excludes 0' if apart else ''}"
    else:
        direction = "higher" if d.mean > 0 else "lower"
        if found.margin > 0 and statistics.equivalence(d.values, found.margin) <= ALPHA / family:
            return "equivalent", f"{f'{direction}, but ' if established else ''}within ±{number(found.margin)}"
        if established:
            return ("supported" if (d.mean > 0) == (kind == "better") else "contradicted"), direction
    if kind == "ratio":
        return "inconclusive", _ratio_seen(found, family)
    if d.ties == n:
        return "inconclusive", "equal scores on every seed"
    return "inconclusive", f"an effect of {number(d.detectable)} would have been seen"


def _ratio_seen(found: _Measured, family: int) -> str:
    """Say which deviation from the stated ratio would have been seen: that of x - value y, over the mean of y."""
    assert found.claim.test.value is not None
    spread = statistics.mean_of(found.own - found.claim.test.value * found.other).sd
    seen = statistics.detectable(spread, len(found.own), family, ALPHA) / abs(float(found.other.mean()))
    return f"a ratio {number(seen)} from {number(found.claim.test.value)} would have been seen"


def _evidence(found: _Measured, p: float, tests: Tests) -> str:
    d = found.difference
    if found.claim.test.kind == "ratio":
        measured = f"ratio {estimate(found.ratio.ratio, found.ratio.low, found.ratio.high)}"
    else:
        measured = estimate(d.mean, d.low, d.high, signed=True)
    beside = f", sign flip {p_value(tests.sign_flip_holm)}" if found.claim.test.kind in ("better", "worse") else ""
    return f"{measured}, p {p_value(p)}{beside}"


def _exact(experiment: Experiment, scores: Scores, claim: Claim) -> ClaimResult:
    """Judge by the parameters' checksums and, where a margin is given or they are unknown, by the histories."""
    test, blank = claim.test, _blank(claim, claim.test.metric or experiment.metric)
    if not (scores.has(test.row) and scores.has(test.than)):
        return replace(blank, words="a row has no runs")
    one, other = scores.lines(test.row), scores.lines(test.than)
    n = len(set(one["seed"]) & set(other["seed"]))
    identical, margin = scores.identical(test.row, test.than), test.margin or 0.0
    from grpo_ablate.analysis.scores import histories_differ

    every = [name for name in one.columns if name.startswith("eval/")]
    gap = histories_differ(one, other, every if test.metric is None else [test.metric])
    found = replace(blank, n=n, margin=margin)
    if n == 0:
        return replace(found, words="the rows share no seed")
    if experiment.row(test.row).hash == experiment.row(test.than).hash:
        return replace(found, verdict="supported", words="one run under both names: no switch of theirs acts")
    if identical:
        return replace(found, verdict="supported", words="parameters bit-identical on every seed")
    holds = gap <= margin and (identical is None or margin > 0)
    measured = f"largest difference {number(gap)}" + (f", allowed {number(margin)}" if margin else "")
    if identical is False and not margin:
        measured = f"parameters differ; {measured}"
    return replace(found, verdict="supported" if holds else "contradicted", words=measured)


def _blank(claim: Claim, metric: str) -> ClaimResult:
    test = claim.test
    return ClaimResult(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        kind=test.kind,
        row=test.row,
        than=test.than,
        metric=metric,
        margin=NAN,
        value=NAN if test.value is None else test.value,
        n=0,
        difference=None,
        ratio=NAN,
        ratio_low=NAN,
        ratio_high=NAN,
        tests=None,
        p=NAN,
        verdict="inconclusive",
        words="",
        sign_flip_reaches=True,
    )
