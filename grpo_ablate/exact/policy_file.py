"""Read POLICY.json: a policy small enough to enumerate, as data.

A categorical over responses. Each prompt has a ``probability`` (all or none of them; none: all equal) and
``responses``. A response has a ``reward`` and either a ``logit`` or a ``probability`` (one kind per prompt),
optionally a ``length`` in tokens (1), a ``reference`` probability (all responses of a prompt or none; needed for a
KL), ``truncated`` (false) and a ``name``. The choice is made at the first token; the others follow with certainty,
so that the response's log-probability, ratio and KL are those of its first token. The parameters are the logits,
prompt by prompt.

>>> policy = parse({"group_size": 2, "prompts": [{"responses": [
...     {"probability": 0.5, "reward": 1, "length": 3}, {"probability": 0.5, "reward": 0}]}]})
>>> policy.parameters.softmax(0).tolist()
[0.5, 0.5]

Logits from features. Each response has ``features``, a vector; logits are features . weights, with ``weights``
(default: zeros) shared by all prompts, and the weights are the parameters. Vectors may stand in the responses or
together under ``features`` at the top: a list per prompt, or one list over all responses in order.

>>> policy = parse({"prompts": [{"responses": [{"reward": 1}, {"reward": 0}]}, {"responses": [
...     {"reward": 2}, {"reward": 0}]}], "features": [[[1, 0], [0, 0]], [[1, 1], [0, 0]]], "weights": [0.5, 0]})
>>> policy.prompts[1].logits(policy.parameters).tolist()
[[0.5, 0.0]]

A token tree in place of ``responses``; its form is described in ``tree_file``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.exact.checks import (
    filled_list,
    kind,
    number,
    positive_probability,
    record,
    sums_to_one,
    vector,
    whole,
)
from grpo_ablate.exact.policy import ExactPolicy, Prompt
from grpo_ablate.exact.tree_file import parse_tree
from grpo_ablate.spec.json_text import parse_json

KEYS = ("group_size", "prompts", "features", "weights")
PROMPT_KEYS = ("probability", "responses", "tree", "name")
RESPONSE_KEYS = ("name", "logit", "probability", "features", "reward", "length", "reference", "truncated")
LONGEST = 100_000  # tokens of a response
LARGEST_GROUP = 1_000_000


def load(path: Path) -> ExactPolicy:
    """Return the policy of a file; raises UserError for one that cannot be read or is not as described."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}).") from error
    return parse(parse_json(text, str(path)), str(path))


def parse(document: Any, source: str = "policy") -> ExactPolicy:
    """Return the checked policy of a document; raises UserError naming source, prompt, response and key."""
    file = record(document, source, KEYS, ("prompts",))
    size = whole(file["group_size"], source, "group_size", 1, LARGEST_GROUP) if "group_size" in file else None
    entries = [
        dict(record(entry, f"{source}: prompt {i}", PROMPT_KEYS))
        for i, entry in enumerate(filled_list(file["prompts"], source, "prompts", "prompts"))
    ]
    probabilities = _prompt_law(entries, source)
    _spread_features(file, entries, source)
    prompts: list[Prompt] = []
    parameters: list[float] = []
    shared = any(_has_features(entry) for entry in entries)
    for i, (entry, probability) in enumerate(zip(entries, probabilities, strict=True)):
        where = f"{source}: prompt {i}"
        if ("tree" in entry) == ("responses" in entry):
            raise UserError(f"{where}: expected either 'responses' or a 'tree'.")
        if shared and not _has_features(entry):
            raise UserError(
                f"{where}: has no 'features', but another prompt has: weights are shared by all prompts."
            )
        read = parse_tree if "tree" in entry else _categorical
        prompt, logits = read(entry, where, probability, None if shared else len(parameters))
        prompts.append(prompt)
        parameters += logits
    if shared:
        parameters = _weights(file, prompts, source)
    elif "weights" in file:
        raise UserError(f"{source}: 'weights' is there, but no response has 'features'.")
    policy = ExactPolicy(torch.tensor(parameters, dtype=torch.float64), tuple(prompts), size, source)
    for i, prompt in enumerate(policy.prompts):
        if not bool(prompt.logits(policy.parameters).isfinite().all()):
            raise UserError(
                f"{source}: prompt {i}: the logits, features . weights, do not fit into double precision; "
                "expected features and weights of moderate size."
            )
    return policy


def _prompt_law(entries: list[dict[str, Any]], source: str) -> list[float]:
    given = [i for i, entry in enumerate(entries) if "probability" in entry]
    if not given:
        return [1.0 / len(entries)] * len(entries)
    for i, entry in enumerate(entries):
        if "probability" not in entry:
            raise UserError(f"{source}: prompt {i}: 'probability' is not there, but prompt {given[0]} has one.")
    values = [
        positive_probability(entry["probability"], f"{source}: prompt {i}", "probability")
        for i, entry in enumerate(entries)
    ]
    return sums_to_one(values, f"{source}: prompts", "probability")


def _has_features(entry: dict[str, Any]) -> bool:
    """Whether a prompt's logits come from features."""
    if isinstance(entry.get("tree"), dict):
        return "features" in entry["tree"]
    responses = entry.get("responses")
    return isinstance(responses, list) and any(isinstance(r, dict) and "features" in r for r in responses)


def _spread_features(file: dict[str, Any], entries: list[dict[str, Any]], source: str) -> None:
    """Move ``features`` from the top of the file into the responses."""
    if "features" not in file:
        return
    where, given = source, filled_list(file["features"], source, "features", "vectors")
    lists = []
    for i, entry in enumerate(entries):
        lists.append(filled_list(entry.get("responses"), f"{source}: prompt {i}", "responses", "responses"))
    sizes = [len(responses) for responses in lists]
    nested = isinstance(given[0], list) and bool(given[0]) and isinstance(given[0][0], list)
    if nested:
        if [len(part) if isinstance(part, list) else -1 for part in given] != sizes:
            raise UserError(f"{where}: 'features' must have one vector per response of each prompt ({sizes}).")
        given = [item for part in given for item in part]
    if len(given) != sum(sizes):
        raise UserError(
            f"{where}: 'features' has {len(given)} vectors, expected one per response ({sum(sizes)} in all)."
        )
    at = 0
    for i, (entry, responses) in enumerate(zip(entries, lists, strict=True)):
        for k, response in enumerate(responses):
            if isinstance(response, dict) and "features" in response:
                raise UserError(
                    f"{source}: prompt {i}: response {k}: 'features' stands here and at the top of the file."
                )
        entry["responses"] = [
            {**response, "features": given[at + k]} if isinstance(response, dict) else response
            for k, response in enumerate(responses)
        ]
        at += len(responses)


def _weights(file: dict[str, Any], prompts: list[Prompt], source: str) -> list[float]:
    sizes = {i: prompt.features.shape[1] for i, prompt in enumerate(prompts) if prompt.features is not None}
    for i, size in sizes.items():
        if size != sizes[0]:
            raise UserError(f"{source}: prompt {i}: 'features' have {size} numbers, those of prompt 0 {sizes[0]}.")
    return vector(file["weights"], source, "weights", sizes[0]) if "weights" in file else [0.0] * sizes[0]


def _categorical(
    entry: dict[str, Any], where: str, probability: float, first: int | None
) -> tuple[Prompt, list[float]]:
    """Return the prompt and its logits, which are the parameters from ``first`` on (None: from features)."""
    responses = [
        record(item, f"{where}: response {k}", RESPONSE_KEYS, ("reward",))
        for k, item in enumerate(filled_list(entry["responses"], where, "responses", "responses"))
    ]
    places = [f"{where}: response {k}" for k in range(len(responses))]
    features, logits = None, [0.0] * len(responses)
    if first is None:
        features = _features(responses, where, places)
    else:
        logits = _logits(responses, where, places)
    lengths = [
        whole(r.get("length", 1), at, "length", 1, LONGEST) for r, at in zip(responses, places, strict=True)
    ]
    token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    edges = torch.full(token.shape, len(responses), dtype=torch.int64)
    edges[:, 0] = torch.arange(len(responses))
    names = tuple(_name(r, str(k), at) for k, (r, at) in enumerate(zip(responses, places, strict=True)))
    rewards = [number(r["reward"], at, "reward") for r, at in zip(responses, places, strict=True)]
    prompt = Prompt(
        probability=probability,
        names=names,
        points=("",),
        choices=names,
        edges=edges,
        token=token,
        reward=torch.tensor(rewards, dtype=torch.float64),
        truncated=torch.tensor([_flag(r, at) for r, at in zip(responses, places, strict=True)]),
        columns=slice(None) if first is None else slice(first, first + len(responses)),
        features=features,
        reference=_reference(responses, where, places),
        steps=None,
    )
    return prompt, logits


def _logits(responses: list[dict[str, Any]], where: str, places: list[str]) -> list[float]:
    key = "logit" if any("logit" in response for response in responses) else "probability"
    for response, at in zip(responses, places, strict=True):
        if "logit" in response and "probability" in response:
            raise UserError(f"{at}: 'logit' and 'probability' are both there; expected one of them.")
        if key not in response:
            other = "probability" if key == "logit" else "logit"
            if other in response:
                raise UserError(f"{at}: has a '{other}', but another response of the prompt a '{key}'.")
            raise UserError(f"{at}: neither 'logit' nor 'probability' is there (nor 'features').")
    if key == "logit":
        return [number(r["logit"], at, "logit") for r, at in zip(responses, places, strict=True)]
    values = [positive_probability(r[key], at, key) for r, at in zip(responses, places, strict=True)]
    return [math.log(value) for value in sums_to_one(values, f"{where}: responses", key)]


def _features(responses: list[dict[str, Any]], where: str, places: list[str]) -> Tensor:
    rows: list[list[float]] = []
    for response, at in zip(responses, places, strict=True):
        for key in ("logit", "probability"):
            if key in response:
                raise UserError(f"{at}: '{key}' is there, but logits are features . weights.")
        if "features" not in response:
            raise UserError(f"{at}: 'features' is not there, but another response has them.")
        rows.append(vector(response["features"], at, "features", len(rows[0]) if rows else None))
    return torch.tensor(rows, dtype=torch.float64)


def _reference(responses: list[dict[str, Any]], where: str, places: list[str]) -> Tensor | None:
    given = [k for k, response in enumerate(responses) if response.get("reference") is not None]
    if not given:
        return None
    for response, at in zip(responses, places, strict=True):
        if response.get("reference") is None:
            raise UserError(f"{at}: 'reference' is not there, but response {given[0]} has one.")
    values = [
        positive_probability(response["reference"], at, "reference")
        for response, at in zip(responses, places, strict=True)
    ]
    return torch.tensor([sums_to_one(values, f"{where}: responses", "reference")], dtype=torch.float64).log()


def _flag(response: dict[str, Any], where: str) -> bool:
    value = response.get("truncated", False)
    if not isinstance(value, bool):
        raise UserError(f"{where}: 'truncated' must be true or false, found {kind(value)}.")
    return value


def _name(response: dict[str, Any], default: str, where: str) -> str:
    value = response.get("name", default)
    if not isinstance(value, str):
        raise UserError(f"{where}: 'name' must be a string, found {kind(value)}.")
    return value
