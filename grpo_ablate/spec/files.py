"""What a user writes: the typed form of experiment and testbed files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from grpo_ablate.spec.schema import (
    Advantage,
    Count,
    Evaluation,
    Finite,
    Kl,
    Name,
    NonNegative,
    Optimizer,
    Positive,
    Reward,
    Sampling,
    Section,
    Spec,
    Update,
)

# Kinds of figures, each alone or with its options: [curves, {sweep: {axis: group-size}}]
Figures = list[str | Annotated[dict[Name, dict[str, Any]], Field(min_length=1, max_length=1)]]


class BudgetChange(Section):
    """A row's change to the budget of its testbed."""

    rollouts: Count = 1
    hold: Literal["prompts-x-group", "prompts"] = "prompts-x-group"


class Changes(Section):
    """Switches that differ from the testbed; only the keys written here count."""

    preset: str | None = None
    evaluation: Evaluation = Evaluation()
    reward: Reward = Reward()
    sampling: Sampling = Sampling()
    advantage: Advantage = Advantage()
    update: Update = Update()
    kl: Kl = Kl()
    optimizer: Optimizer = Optimizer()
    budget: BudgetChange = BudgetChange()

    def stated(self) -> dict[str, Any]:
        """Return the switches that were written, nested by section, without label and preset."""
        dumped = self.model_dump(exclude_unset=True, exclude={"preset", "label"})
        return {section: keys for section, keys in dumped.items() if keys}


class RowFile(Changes):
    """One row of an ablation."""

    label: str | None = None  # how tables and figures call the row; default: its id


class ClaimTest(Section):
    """What the runs are asked, as in ``{is: better, row: token-mean, than: sequence-mean}``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    kind: Annotated[Literal["better", "worse", "equivalent", "ratio", "exact"], Field(alias="is")]
    row: str
    than: str
    metric: str | None = None  # default: the experiment's
    margin: NonNegative | None = None  # equivalent, ratio: how far off still counts; exact: rounding allowed
    value: Finite | None = None  # ratio: the stated ratio of the means, row / than


class Claim(Section):
    """A statement of the literature that the experiment judges."""

    id: Name
    statement: str
    source: str
    test: ClaimTest


class Tuning(Section):
    """Values that every row is tried at, on seeds of their own, before rows are compared at their best."""

    learning_rate: Annotated[list[Positive], Field(min_length=2)]


class ExperimentFile(Section):
    """One ablation: a question, the testbed it is asked on, and the rows that answer it."""

    question: str
    testbed: Name
    baseline: str
    seeds: Annotated[int, Field(ge=1, le=100_000)]
    metric: str = "eval/reward"
    axes: dict[Name, Annotated[dict[Name, Changes], Field(min_length=1)]] = {}  # named levels, crossed
    rows: dict[Name, RowFile] = {}
    figures: Figures = ["curves", "final"]
    published: str | None = None  # a table of published values, beside which ours is set
    claims: list[Claim] = []
    margin: NonNegative | None = None  # differences within it do not matter; drawn as a band
    held: Literal["rollouts", "tokens", "updates", "seconds"] = "rollouts"  # what rows must have spent alike
    tune: Tuning | None = None


class TestbedFile(Spec):
    """A task, a policy, an evaluation, a budget, and a value for every switch that differs from neutral."""

    __test__ = False  # not a pytest class

    description: str
    quick: bool = False  # takes seconds: belongs to the `quick` target
    seeds_per_job: Annotated[int, Field(ge=1, le=10_000)] = 8
    stale: Literal["rerun", "keep"] = "rerun"  # what to do with results of older training code
    stream: bool = False  # long runs log to MLflow while they train
    on_request: bool = False  # trained by its experiments' own targets, not by `all`, the paper or the smoke test
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0  # GPUs that a job leases; several train one run side by side


# What a testbed says beside its spec.
BESIDE = frozenset(TestbedFile.model_fields) - frozenset(Spec.model_fields)
