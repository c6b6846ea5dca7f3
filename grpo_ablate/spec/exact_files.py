"""Exact experiments: a question about expected updates, as rows of switches over named ranges.

``experiments/exact-*.yaml`` have a form of their own (they train nothing, so they have no testbed and no seeds).
Reading one imports no numerics; what is enumerated is settled in ``grpo_ablate.exact``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.combinations import refusal
from grpo_ablate.spec.files import Figures
from grpo_ablate.spec.json_text import parse_json
from grpo_ablate.spec.reading import checked, read_yaml
from grpo_ablate.spec.resolve import EXACT, FigureSpec, Sparse, figure_specs, merged, preset_switches
from grpo_ablate.spec.schema import (
    Advantage,
    Count,
    Finite,
    Kl,
    Name,
    Positive,
    Reward,
    Sampling,
    Section,
    Switches,
    Update,
)

# What may vary beside a switch, with what it means. The kind `token` knows the last two alone.
VARIED = {
    "success": "probability of the first of two responses",
    "distance": "the policy, groups and gradient alike, at policy + distance x direction",
    "step": "groups drawn from the policy, the gradient at policy + step x direction",
    "ratio": "probability ratio of the one token",
    "advantage": "advantage of the one token",
}
OF_A_TOKEN = ("ratio", "advantage")

Quantity = Literal[
    "gradient", "update", "cosine", "norm_ratio", "bias", "variance", "variance_per_rollout", "noise_per_rollout",
    "p_mixed", "accepted", "gain", "gain_per_rollout", "limit", "baseline", "push", "push_classes", "ratios",
    "expected_reward", "kl", "kl_estimate", "kl_agreement", "pair",
    "objective", "slope",
]  # fmt: skip
PropositionName = Literal[
    "group-mean", "counterexample", "binary-factor", "mixed-groups", "population-limit", "length", "kl",
    "variance", "rollout-budget", "kl-optimum", "process", "clip", "dynamics", "pairs",
]  # fmt: skip
OF_A_TOKEN_QUANTITIES = ("objective", "slope")
POINTS = 20_000  # of a table
LARGEST = 1e300  # of varied numbers


class Span(Section):
    """Evenly spaced values, both ends included."""

    start: Finite
    stop: Finite
    count: Annotated[int, Field(ge=2, le=POINTS)]
    spacing: Literal["linear", "log"] = "linear"

    def values(self) -> list[float]:
        """Return the values, rounded to twelve digits so that 0.07 is printed as 0.07."""
        shares = [i / (self.count - 1) for i in range(self.count)]
        if self.spacing == "log":
            found = [self.start * (self.stop / self.start) ** share for share in shares]
        else:
            found = [self.start + (self.stop - self.start) * share for share in shares]
        return [float(f"{value:.12g}") for value in found]


class ExactChanges(Section):
    """Switches that differ from the preset ``documents``."""

    preset: str | None = None
    reward: Reward = Reward()
    sampling: Sampling = Sampling()
    advantage: Advantage = Advantage()
    update: Update = Update()
    kl: Kl = Kl()

    def stated(self) -> Sparse:
        """Return the switches that were written, nested by section."""
        sections = set(Switches.model_fields)
        return {name: keys for name, keys in self.model_dump(exclude_unset=True, include=sections).items() if keys}


class ExactRowFile(ExactChanges):
    """One row. ``constant_at`` sets ``advantage.constant`` anew at every point."""

    label: str | None = None
    constant_at: Literal["expected-reward", "variance-minimising"] | None = None


class IterateFile(Section):
    """Expected updates followed as if learning: theta + learning_rate x expected update."""

    learning_rate: Positive
    steps: Count
    every: Count = 1  # updates between lines of the table
    reference: Literal["policy", "start"] = (
        "policy"  # the policy file's reference, or the law each row starts from
    )


class ExactExperimentFile(Section):
    """One exact experiment as a user writes it."""

    question: str
    exact: str  # what the numbers are, for captions
    assumed: str  # and under which assumptions
    kind: Literal["update", "iterate", "token"] = "update"
    policy: str | dict[str, Any] | None = None  # a policy in place, or a JSON file beside this one
    direction: list[Finite] | None = None
    defaults: ExactChanges = ExactChanges()
    rows: Annotated[dict[Name, ExactRowFile], Field(min_length=1)]
    vary: dict[str, list[Any] | dict[str, Any]] = {}  # values in a list, or the keys of a Span
    iterate: IterateFile | None = None
    quantities: Annotated[list[Quantity], Field(min_length=1)]
    figures: Figures = []
    propositions: list[PropositionName] = []


@dataclass(frozen=True)
class ExactRow:
    """One resolved row."""

    id: str
    label: str
    switches: Switches
    constant_at: str | None


@dataclass(frozen=True)
class ExactExperiment:
    """One exact experiment, resolved and checked."""

    name: str
    path: Path
    question: str
    exact: str
    assumed: str
    kind: str
    policy: dict[str, Any] | None = field(compare=False)
    direction: tuple[float, ...] | None
    rows: tuple[ExactRow, ...]
    vary: dict[str, tuple[float | str, ...]] = field(compare=False)
    iterate: IterateFile | None
    quantities: tuple[str, ...]
    figures: tuple[FigureSpec, ...]
    propositions: tuple[str, ...]

    def content(self) -> dict[str, Any]:
        """Return all that the table depends on beside the code, as JSON has it."""
        return {
            "kind": self.kind,
            "policy": self.policy,
            "direction": self.direction,
            "rows": [
                [row.id, row.label, row.constant_at, row.switches.model_dump(mode="json", exclude_defaults=True)]
                for row in self.rows
            ],
            "vary": self.vary,
            "iterate": self.iterate and self.iterate.model_dump(),
            "quantities": self.quantities,
        }


def load_exact_experiments(folder: Path = Path("experiments")) -> list[ExactExperiment]:
    """Return every exact experiment of a folder, by name."""
    return [load_exact_experiment(path) for path in sorted(folder.glob(f"{EXACT}*.yaml"))]


def load_exact_experiment(path: Path) -> ExactExperiment:
    """Read an exact experiment; resolve and check every row and every varied value.

    Raises:
        UserError: one sentence that names the file, the row and the key at fault.
    """
    file = checked(ExactExperimentFile, read_yaml(path), str(path))
    vary = {key: _values(path, key, given) for key, given in file.vary.items()}
    _check_form(path, file, vary)
    rows = []
    for name, row in file.rows.items():
        where = f"{path}: row '{name}'"
        stated = _layers(where, file.defaults, row)
        for key in vary:
            section, _, switch = key.partition(".")
            if switch and switch in row.stated().get(section, {}):
                raise UserError(f"{where}: {key} is set here and varied; leave one.")
        rows.append(ExactRow(name, row.label or name, _switches(where, stated, vary), row.constant_at))
        if row.constant_at is not None and rows[-1].switches.advantage.baseline != "constant":
            raise UserError(f"{where}: constant_at goes with advantage.baseline constant.")
    policy = _policy(path, file.policy)
    if policy is not None and "group_size" in policy:
        raise UserError(
            f"{path}: policy: group_size is no part of an experiment's policy; "
            "set sampling.group_size in defaults or a row, or vary it."
        )
    experiment = ExactExperiment(
        name=path.stem,
        path=path,
        question=file.question,
        exact=file.exact,
        assumed=file.assumed,
        kind=file.kind,
        policy=policy,
        direction=None if file.direction is None else tuple(file.direction),
        rows=tuple(rows),
        vary=vary,
        iterate=file.iterate,
        quantities=tuple(file.quantities),
        figures=figure_specs(file.figures),
        propositions=tuple(file.propositions),
    )
    from grpo_ablate.analysis.figures import named

    named(experiment)  # refuses figures that could not be drawn
    return experiment


def varied(switches: Switches, values: dict[str, float | str], where: str) -> Switches:
    """Return the switches with varied ones set, ``{"advantage.eps": 0.1, "success": 0.3}``; others are left out.

    Raises:
        UserError: a value that the switch does not take, or a combination that means nothing.
    """
    changes: Sparse = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            changes.setdefault(section, {})[name] = value
    base = {name: getattr(switches, name).model_dump() for name in Switches.model_fields}
    found = checked(Switches, merged(base, changes), f"{where}: vary")
    reason = refusal(found)
    if reason is not None:
        raise UserError(f"{where}: {reason}")
    return found


def _values(path: Path, key: str, given: list[Any] | dict[str, Any]) -> tuple[float | str, ...]:
    section, dot, name = key.partition(".")
    if not dot and key not in VARIED:
        switches = [f"{s}.{key}" for s, info in Switches.model_fields.items() if key in _fields(info.annotation)]
        offer = nearest(switches[0] if switches else key, [*VARIED, *switches])
        raise UserError(f"{path}: vary: no '{key}'; {offer}")
    if dot and section not in Switches.model_fields:
        raise UserError(f"{path}: vary: {key}: no section '{section}'; {nearest(section, Switches.model_fields)}")
    if dot and name not in _fields(Switches.model_fields[section].annotation):
        known = _fields(Switches.model_fields[section].annotation)
        raise UserError(f"{path}: vary: no switch '{key}'; {nearest(name, known)}")
    values = _listed(f"{path}: vary: {key}", given)
    if dot and isinstance(_fields(Switches.model_fields[section].annotation)[name].default, int):
        # A span of whole numbers is written in floats.
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    for number, value in enumerate(values):
        if value in values[:number]:
            raise UserError(
                f"{path}: vary: {key}: {value!r} is there twice; every value makes a point of its own."
            )
        if not dot and isinstance(value, str):
            raise UserError(f"{path}: vary: {key} is '{value}', expected a number.")
        if key == "success" and not 0 < float(value) < 1:
            raise UserError(f"{path}: vary: success is {value!r}, expected a probability between 0 and 1.")
        if key == "ratio" and not float(value) > 0:
            raise UserError(f"{path}: vary: ratio is {value!r}, expected a number above 0.")
    return tuple(values)


def _listed(where: str, given: list[Any] | dict[str, Any]) -> list[float | str]:
    """Return the values of a list or a span."""
    if isinstance(given, dict):
        span = checked(Span, given, where)
        if span.spacing == "log" and min(span.start, span.stop) <= 0:
            raise UserError(f"{where}: log spacing needs a start and a stop above 0.")
        return [*span.values()]
    if not given:
        raise UserError(f"{where}: expected at least one value.")
    for value in given:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not -LARGEST <= value <= LARGEST:  # nan is not
            found = repr(value) if isinstance(value, float) else "a whole number beyond 1e300"
            raise UserError(f"{where}: {found} is among the values, expected numbers or words.")
        if not number and not isinstance(value, str):
            raise UserError(f"{where}: {value!r} is among the values, expected numbers or words.")
    return given


def _fields(section: Any) -> dict[str, Any]:
    return dict(section.model_fields)


def _check_form(path: Path, file: ExactExperimentFile, vary: dict[str, tuple[float | str, ...]]) -> None:
    token = file.kind == "token"
    for key in vary:
        if "." not in key and token != (key in OF_A_TOKEN):
            known = [name for name in VARIED if token == (name in OF_A_TOKEN)]
            raise UserError(f"{path}: vary: {key} does not go with kind {file.kind}; expected {', '.join(known)}.")
    for name in file.quantities:
        if token != (name in OF_A_TOKEN_QUANTITIES):
            raise UserError(f"{path}: quantities: {name} does not go with kind {file.kind}.")
    if token and not all(key in vary for key in OF_A_TOKEN):
        raise UserError(f"{path}: kind token needs ratio and advantage under vary.")
    if token == (file.policy is not None):
        raise UserError(f"{path}: kind {file.kind} {'takes no' if token else 'needs a'} policy.")
    if (file.kind == "iterate") != (file.iterate is not None):
        raise UserError(f"{path}: the kind iterate and the section iterate go together.")
    moves = any(key in vary for key in ("distance", "step"))
    if moves != (file.direction is not None):
        raise UserError(f"{path}: distance or step under vary and a direction go together.")
    points = len(file.rows)
    for values in vary.values():
        points *= len(values)
    if points > POINTS:
        raise UserError(f"{path}: {points:,} points, more than the {POINTS:,} of a table.")


def _layers(where: str, defaults: ExactChanges, row: ExactChanges) -> Sparse:
    preset = row.preset or defaults.preset or "documents"
    return merged(preset_switches(preset, where), defaults.stated(), row.stated())


def _switches(where: str, stated: Sparse, vary: dict[str, tuple[float | str, ...]]) -> Switches:
    """Return the row's switches at the first point, each varied value having been tried there."""
    first = varied(checked(Switches, stated, where), {key: values[0] for key, values in vary.items()}, where)
    for key, values in vary.items():
        for value in values if "." in key else ():
            varied(first, {key: value}, where)
    return first


def _policy(path: Path, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not isinstance(given, str):
        return given
    file = path.parent / given
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: policy {given}: {file} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UserError(f"{file}: is not JSON ({error}).") from None
    found = parse_json(text, str(file))
    if not isinstance(found, dict):
        raise UserError(f"{file}: expected an object with prompts.")
    return found
