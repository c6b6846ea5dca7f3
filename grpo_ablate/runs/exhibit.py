"""A few responses of a training round in words, with their rewards, advantages and step scores."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from grpo_ablate.algorithm.records import Batch, Prepared
from grpo_ablate.tasks.protocol import Task

OF_A_GROUP = 4  # responses of one prompt that are shown first, before further prompts
DIGITS = 6


def exhibit(
    batch: Batch, prepared: Prepared, task: Task, member: int, seed: int, round: int, count: int = 20
) -> list[dict[str, Any]]:
    """Return up to ``count`` trained responses of one member's round, as JSON-ready rows.

    A row holds ``seed``, ``round``, what the task says of prompt and response, ``tokens`` (their texts),
    ``reward`` (raw; None where missing), ``advantages`` (per token), and where the task scores steps ``steps``
    (pairs of 0-based last token and score). Four responses of a prompt come before the next prompt, so that they
    compare.
    """
    return [
        {"seed": seed, "round": round, **_row(batch, prepared, task, member, group, sample)}
        for group, sample in _chosen(batch.present[member], count)
    ]


def without_verdict(task: Task, seed: int, round: int) -> list[dict[str, Any]]:
    """Return the responses on which the task's verifier gave no verdict since the last call, as JSON-ready rows.

    They have the keys of `exhibit`'s rows, without tokens and advantages, and ``fault``, the reason.
    """
    take = getattr(task, "take_faults", None)  # of tasks in words alone
    rows = []
    for fault in take() if take is not None else ():
        said = task.exhibit(fault.number, []) | {"response": fault.response, "fault": fault.reason}
        rows.append({"seed": seed, "round": round, **said, "tokens": [], "reward": None, "advantages": []})
    return rows


def _chosen(present: Tensor, count: int) -> list[tuple[int, int]]:
    """Return groups and samples to show, of ``present`` bool [B, G]."""
    places: list[list[int]] = present.nonzero().tolist()
    first = sorted(places, key=lambda place: (place[1] // OF_A_GROUP, *place))[:count]
    return [(group, sample) for group, sample in sorted(first)]


def _row(batch: Batch, prepared: Prepared, task: Task, member: int, group: int, sample: int) -> dict[str, Any]:
    here = member, group, sample
    token = batch.token[here]
    tokens: list[int] = batch.tokens[here][token].tolist()
    said = task.exhibit(int(batch.prompts[member, group]), tokens)
    vocabulary: tuple[str, ...] | None = getattr(task, "vocabulary", None)
    reward = float(batch.reward[here])
    row = {
        **said,
        # Without a vocabulary a response is one token, and its text is the response.
        "tokens": [said["response"]] if vocabulary is None else [vocabulary[number] for number in tokens],
        "reward": None if math.isnan(reward) else reward,
        "advantages": [round(value, DIGITS) for value in prepared.advantages[here][token].tolist()],
    }
    if batch.steps is not None:
        present = batch.steps.present[here] & ~batch.steps.score[here].isnan()
        ends, scores = batch.steps.end[here][present].tolist(), batch.steps.score[here][present].tolist()
        row["steps"] = [[end, score] for end, score in zip(ends, scores, strict=True)]
    return row
