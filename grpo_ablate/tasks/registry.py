"""Tasks by the name that a spec gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from grpo_ablate.spec.schema import (
    AdditionTask,
    ArithmeticTask,
    HuggingFacePolicy,
    JsonlTask,
    Policy,
    ReasoningGymTask,
    SelectionTask,
    TranslationTask,
)
from grpo_ablate.tasks.arithmetic import Arithmetic
from grpo_ablate.tasks.protocol import LanguageTask, Task
from grpo_ablate.tasks.selection import Selection
from grpo_ablate.tasks.text.making import addition, jsonl, reasoning_gym
from grpo_ablate.tasks.translation import Translation

if TYPE_CHECKING:
    from grpo_ablate.tasks.text.tokenized import Tokenized

TASKS: dict[str, Callable[[Any], Task]] = {
    "selection": Selection,
    "arithmetic": Arithmetic,
    "translation": Translation,
}
TEXT_TASKS: dict[str, Callable[[Any, HuggingFacePolicy], Tokenized]] = {
    "addition": addition,
    "reasoning-gym": reasoning_gym,
    "jsonl": jsonl,
}


@overload
def make_task(settings: SelectionTask, policy: Policy | None = None) -> Selection: ...
@overload
def make_task(settings: ArithmeticTask | TranslationTask, policy: Policy | None = None) -> LanguageTask: ...
@overload
def make_task(
    settings: AdditionTask | ReasoningGymTask | JsonlTask, policy: Policy | None = None
) -> Tokenized: ...
@overload
def make_task(settings: Any, policy: Policy | None = None) -> Task: ...
def make_task(settings: Any, policy: Policy | None = None) -> Task:
    """Return the task that a spec's ``task`` section describes; one in words through the tokenizer of ``policy``.

    Raises UserError where a pool has fewer prompts than the section asks for, or a file, a package or the
    tokenizer cannot be used.
    """
    if settings.name in TEXT_TASKS:
        assert isinstance(policy, HuggingFacePolicy)  # as `spec.text_tasks.refusal` sees to
        return TEXT_TASKS[settings.name](settings, policy)
    return TASKS[settings.name](settings)
