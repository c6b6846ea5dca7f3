"""What a user writes: the typed form of experiment and testbed files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_ablate.spec.schema import (
    Advantage,
    Count,
    Evaluation,
    Kl,
    Name,
    Optimizer,
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


class TestbedFile(Spec):
    """A task, a policy, an evaluation, a budget, and a value for every switch that differs from neutral."""

    __test__ = False  # not a pytest class

    description: str
    quick: bool = False  # takes seconds: belongs to the `quick` target
    seeds_per_job: Annotated[int, Field(ge=1, le=10_000)] = 8
    stale: Literal["rerun", "keep"] = "rerun"  # what to do with results of older training code
    stream: bool = False  # long runs log to MLflow while they train
