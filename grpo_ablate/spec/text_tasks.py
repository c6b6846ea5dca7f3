"""What tasks in words, reward models and functions of the user's own need, and what their files hold now."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from grpo_ablate.dotted import FORM, check_call, is_dotted
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.model_files import fingerprint
from grpo_ablate.spec.paths import named_path
from grpo_ablate.spec.schema import (
    AdditionTask,
    HuggingFacePolicy,
    JsonlTask,
    ReasoningGymTask,
    Reward,
    Spec,
    Switches,
    TextSection,
)

VERIFIERS: tuple[str, ...] = get_args(get_args(JsonlTask.model_fields["verifier"].annotation)[0])
MODEL = "model"  # the component that a reward model adds


def components(spec: Spec) -> tuple[str, ...]:
    """Return the names of the reward's parts, the task's own reward first."""
    task = spec.task
    found = _of_text(task) if isinstance(task, TextSection) else task.components
    return (*found, MODEL) if spec.reward.source == "model" else found


def _of_text(task: TextSection) -> tuple[str, ...]:
    found: tuple[str, ...] = ("accuracy",)
    if isinstance(task, ReasoningGymTask) or (isinstance(task, JsonlTask) and is_dotted(task.verifier)):
        found = ("score", "accuracy")
    elif isinstance(task, JsonlTask) and task.verifier == "chrf":
        found = ("chrf", "accuracy")
    return found if task.format == "off" else (*found, "format")


def own_functions(spec: Spec) -> tuple[str, ...]:
    """Return the dotted paths of the user's own functions that a spec trains with, sorted."""
    verifier = spec.task.verifier if isinstance(spec.task, JsonlTask) else ""
    return tuple(sorted({path for path in (spec.advantage.function, verifier) if is_dotted(path)}))


def switches_refusal(spec: Switches) -> str | None:
    """Return why an own advantage function or a reward model is not well named, or None."""
    function, reward = spec.advantage.function, spec.reward
    if function and re.fullmatch(FORM, function) is None:
        return f"advantage.function is '{function[:80]}', expected a dotted path as package.module:function."
    if reward.source == "model" and not reward.model:
        return "reward.source is model, but reward.model is empty: expected the folder of a reward model."
    if reward.source == "model" and reward.refresh_model and reward.model_dtype != "float32":
        return f"reward.refresh_model needs reward.model_dtype float32: {reward.model_dtype} loses small steps."
    return None


def refusal(spec: Spec) -> str | None:
    """Return why task, policy and reward do not go together where texts are concerned, or None."""
    task = spec.task
    pretrained = isinstance(spec.policy, HuggingFacePolicy)
    if not isinstance(task, TextSection):
        if pretrained:
            return (
                f"policy.name huggingface reads and writes texts, but the task {task.name} has its own "
                "vocabulary: use addition, reasoning-gym or jsonl."
            )
        if spec.reward.source == "model":
            return f"reward.source model scores texts, which the task {task.name} does not have: use task."
        return None
    if not pretrained:
        return (
            f"the task {task.name} is in words, which policy.name {spec.policy.name} cannot read: use huggingface."
        )
    if task.format != "off" and isinstance(task, AdditionTask | ReasoningGymTask) and task.form == "few-shot":
        return (
            f"task.format {task.format} is asked of a response, but the worked answers of task.form few-shot show "
            "another: use chat, or off."
        )
    return _jsonl(task) if isinstance(task, JsonlTask) else None


def _jsonl(task: JsonlTask) -> str | None:
    verifier = task.verifier
    if verifier not in VERIFIERS and re.fullmatch(FORM, verifier) is None:
        return (
            f"task.verifier: no verifier '{verifier[:80]}'; {nearest(verifier, VERIFIERS)} (Your own is named as "
            "package.module:function.)"
        )
    if verifier == "regular-expression":
        try:
            if not task.pattern:
                return "task.verifier is regular-expression, but task.pattern is empty."
            re.compile(task.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return f"task.pattern '{task.pattern[:80]}' is no regular expression: {error}."
    if "{question}" not in task.template:
        return "task.template has no {question}, so that every prompt would be the same."
    if task.held_out_path and Path(task.held_out_path) == Path(task.path):
        return "task.held_out_path is task.path: the questions measured would be those trained on."
    return None


def settled(spec: Spec, where: str) -> Spec:
    """Return the spec with what its files and packages are now: digests, counts of questions, a version.

    The user's own functions are imported. Raises UserError, which ``where`` opens, for whatever cannot be used,
    and where the user wrote another digest.
    """
    try:
        changes: dict[str, Any] = {}
        if spec.advantage.function:
            check_call(spec.advantage.function, "rewards", "present")
        if isinstance(spec.task, JsonlTask) and is_dotted(spec.task.verifier):
            check_call(spec.task.verifier, "response", "answer", "row")
        if isinstance(spec.task, JsonlTask):
            changes["task"] = _with_contents(spec.task)
        elif isinstance(spec.task, ReasoningGymTask):
            changes["task"] = _with_library(spec.task)
        if spec.reward.source == "model":
            changes["reward"] = _with_digest(spec.reward)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return spec.model_copy(update=changes)


def _with_contents(task: JsonlTask) -> JsonlTask:
    from grpo_ablate.tasks.text.rows import questions

    if task.verifier == "math-verify" and find_spec("math_verify") is None:
        raise UserError(
            "task.verifier is math-verify, but that package is not installed: pip install 'grpo-ablate[tasks]'."
        )
    found, stated = questions(task), task.contents
    if stated.sha256 not in ("", found.sha256):
        raise UserError(f"task.contents.sha256 is {stated.sha256}, but {task.path} now has {found.sha256}.")
    counts = {"sha256": found.sha256, "train": len(found.train), "held_out": len(found.held_out)}
    return task.model_copy(update={"contents": stated.model_copy(update=counts)})


def _with_library(task: ReasoningGymTask) -> ReasoningGymTask:
    from grpo_ablate.tasks.text.reasoning_gym import data_set, entry, installed

    version = installed()
    if task.library not in ("", version):
        raise UserError(f"task.library is {task.library}, but reasoning-gym {version} is installed.")
    entry(data_set(task, "train", 1), 0)
    return task.model_copy(update={"library": version})


def _with_digest(reward: Reward) -> Reward:
    folder = named_path(reward.model)
    if not folder.is_dir():
        raise UserError(f"reward.model: there is no folder '{reward.model}'.")
    found = fingerprint(folder)
    if reward.model_digest not in ("", found):
        raise UserError(f"reward.model_digest is {reward.model_digest}, but the files in {folder} have {found}.")
    return reward.model_copy(update={"model_digest": found})
