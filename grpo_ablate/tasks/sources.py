"""Where a run's reward comes from, by the name that a spec gives it: the task itself, or a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.protocol import Task


def _itself(task: Any, spec: Spec, keys: Keys) -> Task:
    return task


def _by_a_model(task: Any, spec: Spec, keys: Keys) -> Task:
    from grpo_ablate.tasks.text.reward_model import ModelScored

    return ModelScored(task, spec, keys)


SOURCES: dict[str, Callable[[Any, Spec, Keys], Task]] = {"task": _itself, "model": _by_a_model}


def scored(task: Task, spec: Spec, keys: Keys) -> Task:
    """Return the task with the reward that ``reward.source`` names.

    Raises UserError where a reward model cannot be loaded.
    """
    return SOURCES[spec.reward.source](task, spec, keys)
