"""Tasks by the name that a spec gives them."""

from __future__ import annotations

from grpo_ablate.spec.schema import SelectionTask
from grpo_ablate.tasks.selection import Selection

TASKS = {"selection": Selection}


def make_task(settings: SelectionTask) -> Selection:
    """Return the task that a spec's ``task`` section describes."""
    return TASKS[settings.name](settings)
