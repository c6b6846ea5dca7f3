"""Tasks by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from grpo_ablate.spec.schema import ArithmeticTask, SelectionTask, TranslationTask
from grpo_ablate.tasks.arithmetic import Arithmetic
from grpo_ablate.tasks.protocol import LanguageTask, Task
from grpo_ablate.tasks.selection import Selection
from grpo_ablate.tasks.translation import Translation

TASKS: dict[str, Callable[[Any], Task]] = {
    "selection": Selection,
    "arithmetic": Arithmetic,
    "translation": Translation,
}


@overload
def make_task(settings: SelectionTask) -> Selection: ...
@overload
def make_task(settings: ArithmeticTask | TranslationTask) -> LanguageTask: ...
def make_task(settings: SelectionTask | ArithmeticTask | TranslationTask) -> Task:
    """Return the task that a spec's ``task`` section describes.

    Raises UserError where a pool has fewer prompts than the section asks for.
    """
    return TASKS[settings.name](settings)
