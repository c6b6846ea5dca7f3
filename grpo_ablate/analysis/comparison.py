"""What is known after an experiment, as records: rows, claims, controls, budgets, effects; to JSON and back.

A number that does not exist (an interval from one seed, the p of a row without a claim) is NaN here and null in
the JSON; an unbounded one is "inf" or "-inf" there, since JSON has no word for it. Every list keeps the
order of the experiment's file.
"""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_ablate.errors import UserError

NAN = float("nan")
# What `compare` writes of an experiment, after its name.
FILES = (
    *(f"-{part}.{ending}" for part in ("comparison", "claims") for ending in ("csv", "md", "tex", "typ")),
    "-comparison.json",
)
Verdict = Literal["supported", "contradicted", "equivalent", "inconclusive"]
VERDICTS: dict[Verdict, str] = {
    "supported": "supported",
    "contradicted": "contradicted",
    "equivalent": "equivalent within the margin",
    "inconclusive": "inconclusive",
}


@dataclass(frozen=True)
class Difference:
    """Paired differences, one per seed that both rows have: a row's score minus another's.

    ``low``, ``high`` is the 95 % t interval of the mean, ``boot_low``, ``boot_high`` the percentile bootstrap
    interval (not primary: below 20 seeds it covers too little). ``detectable`` is the smallest effect that would
    have been seen with probability .8 at the corrected level.
    """

    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one per seed, in the order of ``seeds``
    mean: float
    sd: float
    low: float
    high: float
    boot_low: float
    boot_high: float
    won: float  # share of seeds in which the row is higher; a tie counts half
    ties: int
    detectable: float


@dataclass(frozen=True)
class Tests:
    """p values of one claim, two-sided: as computed, and after Holm over the file's claims."""

    t: float
    sign_flip: float
    wilcoxon: float
    t_holm: float
    sign_flip_holm: float
    wilcoxon_holm: float


@dataclass(frozen=True)
class Spent:
    """What a row spent: means per seed, of the seeds that ran to the end of their budget; of all if none did."""

    rollouts: float  # discarded ones included
    tokens: float  # generated, discarded ones included
    updates: float
    seconds: float


@dataclass(frozen=True)
class RowResult:
    """One row: its scores, and their differences to the baseline (None for the baseline itself).

    ``score``: the metric's mean over the last k evaluations; ``area``: its mean height over rollouts.
    ``failed`` lists the seeds that diverged or collapsed, which score the worst value of the experiment.
    """

    row: str
    label: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]  # one per seed
    n: int
    mean: float
    sd: float
    low: float
    high: float
    area: float  # mean over seeds
    failed: tuple[int, ...]
    difference: Difference | None
    area_difference: Difference | None
    claims: tuple[str, ...]  # claims that speak of this row
    p: float  # Holm's, of the claim that compares this row with the baseline; NaN: no such claim
    verdict: str  # in words
    spent: Spent
    stale: int  # seeds trained by older code
    twin_of: str | None  # an earlier row of the same spec, whose runs these are
    identical_to: tuple[str, ...]  # rows of another spec whose parameters came out bit-identical
    learning_rate: float


@dataclass(frozen=True)
class ClaimResult:
    """One claim and its verdict. ``difference`` is row minus than; of a ratio, ``ratio`` is row over than."""

    id: str
    statement: str
    source: str
    kind: str  # better, worse, equivalent, ratio, exact
    row: str
    than: str
    metric: str
    margin: float  # NaN: none
    value: float  # the stated ratio; NaN: none
    n: int
    difference: Difference | None  # None: exact
    ratio: float
    ratio_low: float
    ratio_high: float
    tests: Tests | None  # None: exact
    p: float  # Holm's, of the claim's own test; NaN where nothing random is tested
    verdict: Verdict
    words: str  # the verdict with its reason: the interval, the smallest effect that could have been seen
    sign_flip_reaches: bool  # whether with n seeds a sign-flip test could reach the corrected level
    decided: str = ""  # that the claim was added or changed after a look at results


@dataclass(frozen=True)
class ControlResult:
    """One control. ``holds`` None: it could not be judged, and ``words`` says why."""

    id: str
    label: str
    holds: bool | None
    words: str
    value: float  # what was measured: a p value, a largest difference, a cosine
    bound: float  # what it is judged against


@dataclass(frozen=True)
class Effect:
    """A main effect (one axis) or two-way interaction (two axes) of a crossed experiment, seeds as blocks.

    Main: level minus reference level, averaged over the levels of the other axes. Interaction: the difference
    that the second level makes to the first level's effect, averaged likewise. ``low``, ``high``: 95 % interval
    of the least-squares fit; ``seed_low``, ``seed_high``: t interval of the same contrast taken seed by seed.
    """

    axes: tuple[str, ...]
    levels: tuple[str, ...]
    references: tuple[str, ...]
    estimate: float
    low: float
    high: float
    seed_low: float
    seed_high: float


@dataclass(frozen=True)
class Rate:
    """The mean score of a row at one learning rate, over the tuning seeds."""

    learning_rate: float
    mean: float
    failed: int


@dataclass(frozen=True)
class TunedRow:
    """A row at every learning rate on the tuning seeds, and at the best of them on the main seeds."""

    row: str
    rates: tuple[Rate, ...]
    best: float
    at_edge: bool  # the best rate is the smallest or largest tried: the optimum may lie outside
    result: RowResult  # compared with the baseline at the baseline's own best rate


@dataclass(frozen=True)
class Failure:
    """A run that diverged (a number that is not finite) or collapsed."""

    row: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Everything that is known of an experiment's rows. ``family``: the number of claims, Holm's m."""

    experiment: str
    question: str
    testbed: str
    baseline: str
    metric: str
    seeds: int
    margin: float  # NaN: none
    alpha: float
    family: int
    sign_flip_needs: int  # seeds with which a sign-flip test can reach alpha after Holm
    held: str
    floor: float  # the score of failed runs; NaN: they are left out
    controls: tuple[ControlResult, ...]
    noise_floor: Difference | None  # the A/A control minus the baseline
    rows: tuple[RowResult, ...]
    claims: tuple[ClaimResult, ...]
    effects: tuple[Effect, ...]
    tuned: tuple[TunedRow, ...]
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]  # what a reader of every table of this experiment must know
    partial: str = ""  # how many of the runs there are, where some are missing

    @property
    def failed_controls(self) -> tuple[ControlResult, ...]:
        """The controls that do not hold."""
        return tuple(control for control in self.controls if control.holds is False)

    def row(self, name: str) -> RowResult:
        """The result of the row of that id."""
        return next(row for row in self.rows if row.row == name)


def as_json(comparison: Comparison) -> bytes:
    """Return the comparison as JSON, the same bytes for the same comparison."""
    text = json.dumps(_plain(asdict(comparison)), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def read_comparison(path: Path) -> Comparison:
    """Read what `as_json` wrote.

    Raises:
        UserError: the file is missing or is not a comparison.
    """
    try:
        found = _build(Comparison, json.loads(path.read_bytes()))
    except FileNotFoundError:
        name = path.name.removesuffix("-comparison.json")
        raise UserError(f"{path}: is missing; make it with: grpo-ablate compare experiments/{name}.yaml") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is not a comparison: {error}.") from None
    assert isinstance(found, Comparison)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _build(kind: Any, value: Any) -> Any:
    """Return ``value``, as JSON has it, as the type ``kind`` of a field."""
    if kind is float:
        return NAN if value is None else float(value)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: _build(hints[field.name], value[field.name]) for field in fields(kind)})
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple(_build(parts[0], part) for part in value)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(parts[0], value)
    return value
