"""Read BATCH.json, a list of responses in ragged lists, into the algorithm's padded records."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch, Steps
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.json_text import parse_json, shown

_TOKEN_KEYS = ("logp", "old_logp", "ref_logp", "sampler_logp", "kl_exact")
KEYS = ("group", "reward", "steps", *_TOKEN_KEYS, "truncated")


@dataclass(frozen=True)
class Response:
    """One checked entry of the file."""

    group: str | int | float | bool | None
    reward: float | None  # None: missing
    steps: tuple[tuple[int, float], ...] | None  # NaN: a missing score; None: none given
    logp: list[float]
    old_logp: list[float] | None
    ref_logp: list[float] | None
    sampler_logp: list[float] | None
    kl_exact: list[float] | None
    truncated: bool
    has_reward: bool  # the key stands there, null included


@dataclass(frozen=True)
class BatchFile:
    """The responses as one member (M = 1) of padded groups, and where each response went."""

    responses: tuple[Response, ...]
    place: tuple[tuple[int, int], ...]  # (group, slot) of each response, in input order
    labels: tuple[Any, ...]  # the id of each group, by first appearance
    batch: Batch
    logprobs: Tensor  # float64 [1, B, G, T]
    kl_exact: Tensor | None  # float64 [1, B, G, T]

    def ragged(self, values: Tensor) -> list[list[Any]]:
        """Return [1, B, G, T] values as one list per response, in input order, padding left out."""
        rows = values[0].tolist()
        return [
            rows[b][g][: len(response.logp)] for (b, g), response in zip(self.place, self.responses, strict=True)
        ]


def read(path: Path) -> list[Any]:
    """Return the entries of a batch file; raises UserError for a file that is not a JSON list."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}).") from error
    entries = parse_json(text, str(path))
    if not isinstance(entries, list):
        raise UserError(f"{path}: expected a list of responses, found {_kind(entries)}.")
    return entries


def parse(entries: list[Any], source: str) -> BatchFile:
    """Return the checked responses as padded records; raises UserError naming source, response and key."""
    if not entries:
        raise UserError(f"{source}: the list has no responses.")
    responses = tuple(_response(entry, f"{source}: response {i}") for i, entry in enumerate(entries))
    groups: dict[Any, list[int]] = {}
    for index, response in enumerate(responses):
        # In Python True == 1: without the type a group true would join the group 1.
        groups.setdefault((isinstance(response.group, bool), response.group), []).append(index)
    place = [(0, 0)] * len(responses)
    for b, members in enumerate(groups.values()):
        for g, index in enumerate(members):
            place[index] = (b, g)
    shape = (len(groups), max(map(len, groups.values())), max(1, *(len(r.logp) for r in responses)))
    batch, logprobs, kl_exact = _padded(responses, place, shape)
    return BatchFile(responses, tuple(place), tuple(label for _, label in groups), batch, logprobs, kl_exact)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"the string {value!r}" if isinstance(value, str) else json.dumps(value)


def _response(entry: Any, where: str) -> Response:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected an object with group, reward and logp, found {_kind(entry)}.")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key '{shown(key)}'; {nearest(key, KEYS)}")
    for key in ("group", "logp"):
        if key not in entry:
            raise UserError(f"{where}: '{key}' is not there.")
    group = entry["group"]
    if isinstance(group, (dict, list)) or (isinstance(group, float) and not math.isfinite(group)):
        raise UserError(f"{where}: 'group' may be any string, number or boolean, found {_kind(group)}.")
    if "reward" not in entry and "steps" not in entry:
        raise UserError(f"{where}: neither 'reward' (null when missing) nor 'steps' is there.")
    logp = _numbers(entry["logp"], where, "logp")
    tokens = {key: _numbers(entry[key], where, key) for key in _TOKEN_KEYS if entry.get(key) is not None}
    for key, values in tokens.items():
        if len(values) != len(logp):
            raise UserError(
                f"{where}: '{key}' has {len(values)} values, but 'logp' has {len(logp)}: one per token expected."
            )
    truncated = entry.get("truncated", False)
    if not isinstance(truncated, bool):
        raise UserError(f"{where}: 'truncated' must be true or false, found {_kind(truncated)}.")
    return Response(
        group=group,
        reward=_score(entry.get("reward"), where, "reward"),
        steps=_steps(entry["steps"], where, len(logp)) if entry.get("steps") is not None else None,
        logp=logp,
        old_logp=tokens.get("old_logp"),
        ref_logp=tokens.get("ref_logp"),
        sampler_logp=tokens.get("sampler_logp"),
        kl_exact=tokens.get("kl_exact"),
        truncated=truncated,
        has_reward="reward" in entry,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    """True for a number that float64 holds: an integer of 400 digits is not one."""
    try:
        return _is_number(value) and math.isfinite(float(value))
    except OverflowError:
        return False


def _numbers(values: Any, where: str, key: str) -> list[float]:
    if not isinstance(values, list):
        raise UserError(f"{where}: '{key}' must be a list of numbers, one per token, found {_kind(values)}.")
    for position, value in enumerate(values):
        if not _finite(value):
            raise UserError(f"{where}: '{key}' at token {position} must be a finite number, found {_kind(value)}.")
    return [float(value) for value in values]


def _score(value: Any, where: str, key: str) -> float | None:
    """Return a reward or step score; null and NaN are missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not _finite(value):
        raise UserError(f"{where}: '{key}' must be a finite number, or null when missing, found {_kind(value)}.")
    return float(value)


def _steps(steps: Any, where: str, length: int) -> tuple[tuple[int, float], ...]:
    if not isinstance(steps, list):
        raise UserError(f"{where}: 'steps' must be a list of [end, score], found {_kind(steps)}.")
    result = []
    for step in steps:
        if not isinstance(step, list) or len(step) != 2:
            raise UserError(f"{where}: 'steps' must be a list of [end, score], found {json.dumps(step)} in it.")
        end, score = step
        if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < length:
            raise UserError(
                f"{where}: 'steps' has the end {json.dumps(end)}; expected the 0-based position of one of the "
                f"response's {length} tokens."
            )
        known = _score(score, where, "steps")
        result.append((end, math.nan if known is None else known))
    return tuple(result)


def _padded(
    responses: tuple[Response, ...], place: list[tuple[int, int]], shape: tuple[int, int, int]
) -> tuple[Batch, Tensor, Tensor | None]:
    """Return the batch, the current log-probabilities and the exact KL; padding holds zeros."""
    groups, size, width = shape
    lists = {key: torch.zeros(1, groups, size, width, dtype=torch.float64) for key in _TOKEN_KEYS}
    token = torch.zeros(1, groups, size, width, dtype=torch.bool)
    present = torch.zeros(1, groups, size, dtype=torch.bool)
    truncated = torch.zeros(1, groups, size, dtype=torch.bool)
    reward = torch.full((1, groups, size), torch.nan, dtype=torch.float64)
    for response, (b, g) in zip(responses, place, strict=True):
        length = len(response.logp)
        old = response.logp if response.old_logp is None else response.old_logp
        defaults = {"old_logp": old, "sampler_logp": old}
        for key in _TOKEN_KEYS:
            values = getattr(response, key)
            lists[key][0, b, g, :length] = torch.tensor(
                defaults.get(key, [0.0] * length) if values is None else values, dtype=torch.float64
            )
        token[0, b, g, :length] = True
        present[0, b, g] = True
        truncated[0, b, g] = response.truncated
        reward[0, b, g] = math.nan if response.reward is None else response.reward
    kl_exact = lists["kl_exact"] if all(r.kl_exact is not None for r in responses) else None
    batch = Batch(
        prompts=torch.arange(groups).unsqueeze(0),
        tokens=torch.zeros(1, groups, size, width, dtype=torch.int64),
        token=token,
        present=present,
        truncated=truncated,
        reward=reward,
        components={},
        sampler_logprobs=lists["sampler_logp"],
        old_logprobs=lists["old_logp"],
        reference_logprobs=lists["ref_logp"] if all(r.ref_logp is not None for r in responses) else None,
        old_kl_exact=kl_exact,
        steps=_padded_steps(responses, place, groups, size),
    )
    return batch, lists["logp"], kl_exact


def _padded_steps(
    responses: tuple[Response, ...], place: list[tuple[int, int]], groups: int, size: int
) -> Steps | None:
    if all(response.steps is None for response in responses):
        return None
    width = max(1, *(len(response.steps or ()) for response in responses))
    end = torch.zeros(1, groups, size, width, dtype=torch.int64)
    score = torch.zeros(1, groups, size, width, dtype=torch.float64)
    present = torch.zeros(1, groups, size, width, dtype=torch.bool)
    for response, (b, g) in zip(responses, place, strict=True):
        for j, (position, value) in enumerate(response.steps or ()):
            end[0, b, g, j], score[0, b, g, j], present[0, b, g, j] = position, value, True
    return Steps(end, score, present)
