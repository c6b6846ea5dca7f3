"""The warm starts of a grid: each is one supervised training from which runs of many rows begin.

What decides a start is the task's name and version and the policy, warm start included: the demonstrations are
the same whatever prompts a testbed draws, so that testbeds which differ in nothing else share it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import Cell
from grpo_ablate.spec.combinations import architecture_refusal
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.reading import checked
from grpo_ablate.spec.schema import (
    SCHEMA_VERSION,
    Budget,
    Evaluation,
    Optimizer,
    Policy,
    Section,
    Spec,
    StackedPolicy,
    Task,
)

SAMPLES = 4  # responses to each held-out prompt by which a start is measured


class StartSpec(Section):
    """What is trained before any run: a policy, on a task's demonstrations."""

    task: Task
    policy: Policy


@dataclass(frozen=True, order=True)
class Start:
    """One training job. ``seeds`` are the first and last where each seed has its own, else None: all share it."""

    hash: str
    seeds: tuple[int, int] | None
    spec_json: str

    @property
    def name(self) -> str:
        """What names the start in paths."""
        return self.hash[:8] + ("" if self.seeds is None else "/seeds-{}-{}".format(*self.seeds))

    @property
    def folder(self) -> str:
        """The start's folder below the results root."""
        return f"warmstarts/{self.name}"

    @property
    def scratch(self) -> str:
        """The folder of its lock and checkpoint, below the results root."""
        return f"scratch/{self.folder}"

    @property
    def members(self) -> range:
        """The seeds that are trained: one for all where they share the start."""
        return range(1) if self.seeds is None else range(self.seeds[0], self.seeds[1] + 1)


def starts_warm(spec: Spec) -> bool:
    """Return whether the runs of a spec begin from a warm start."""
    return isinstance(spec.policy, StackedPolicy) and spec.policy.warmstart.steps > 0


def start_json(spec: Spec) -> str:
    """Return the canonical JSON of what a spec's runs begin from, as sparse as a row's."""
    task = {"name": spec.task.name, "version": spec.task.version}
    # A field's neutral value is left out, but for the names that say which record it is.
    policy = spec.policy.model_dump(mode="json", exclude_defaults=True) | {"name": spec.policy.name}
    return json.dumps({"policy": policy, "task": task}, sort_keys=True, separators=(",", ":"), allow_nan=False)


def start_hash(spec: Spec) -> str:
    """Return the 64 hexadecimal digits that name what a spec's runs begin from."""
    return hashlib.sha256(f"{SCHEMA_VERSION}:{start_json(spec)}".encode()).hexdigest()


def start_of(spec: Spec, first_seed: int, last_seed: int) -> Start | None:
    """Return the start of a spec's block of seeds; None where it begins from random weights or has no weights."""
    if not starts_warm(spec):
        return None
    assert isinstance(spec.policy, StackedPolicy)
    own = spec.policy.warmstart.per_seed
    return Start(start_hash(spec), (first_seed, last_seed) if own else None, start_json(spec))


def cell_start(cell: Cell) -> Start | None:
    """Return the start of a cell, if it has one."""
    return start_of(from_canonical(cell.spec_json), cell.first_seed, cell.last_seed)


def starts(cells: Iterable[Cell]) -> list[Start]:
    """Return the distinct starts of the cells, sorted.

    Raises:
        UserError: two different starts share the eight digits that name their folder.
    """
    found = {start for cell in cells if (start := cell_start(cell))}
    stated: dict[str, str] = {}
    for start in sorted(found):
        if stated.setdefault(start.hash[:8], start.spec_json) != start.spec_json:
            raise UserError(
                f"two different warm starts share the short hash {start.hash[:8]}; change any of their settings."
            )
    return sorted(found)


def training_spec(start: Start) -> Spec:
    """Return how a start is trained and measured, as a spec: its task at its usual size, its policy, AdamW."""
    stated = StartSpec.model_validate(json.loads(start.spec_json))
    assert isinstance(stated.policy, StackedPolicy)
    return Spec(
        task=stated.task,
        policy=stated.policy,
        evaluation=Evaluation(samples=SAMPLES),
        optimizer=Optimizer(name="adamw", learning_rate=stated.policy.warmstart.learning_rate, betas=[0.9, 0.95]),
        budget=Budget(rollouts=1),
    )


def parse_start(text: str, seeds: tuple[int, int] | None, where: str) -> Start:
    """Return the start that JSON describes: a start's own, or a whole spec's.

    Raises:
        UserError: the text is not JSON, describes no warm start, or ``seeds`` are given for a shared start.
    """
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not JSON: {error}.") from None
    if not isinstance(stated, dict):
        raise UserError(f"{where}: expected a JSON object with task and policy.")
    kept = {key: value for key, value in stated.items() if key in StartSpec.model_fields}
    parsed = checked(StartSpec, kept, where)
    spec = Spec(task=parsed.task, policy=parsed.policy, budget=Budget(rollouts=1))
    if not starts_warm(spec) or not spec.task.needs_tokens:
        raise UserError(
            f"{where}: there is no warm start: the task has no demonstrations, the policy is not stacked, or "
            "policy.warmstart.steps is 0."
        )
    assert isinstance(spec.policy, StackedPolicy)
    reason = architecture_refusal(spec.policy)
    if reason is not None:
        raise UserError(f"{where}: {reason}")
    start = start_of(spec, *(seeds or (0, 0)))
    assert start is not None
    if seeds is None and start.seeds is not None:
        raise UserError(f"{where}: policy.warmstart.per_seed: say which seeds with --seeds A-B.")
    return start
