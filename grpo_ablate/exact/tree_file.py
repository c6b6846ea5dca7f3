"""Read a token tree: a tiny autoregressive policy whose complete responses are enumerated.

A response is a sequence of tokens that ends with the ``end`` token, or at ``horizon`` tokens without one, which is
``truncated``. In the keys a prefix or response is its tokens joined by spaces; the empty prefix is "".

* ``vocabulary``: the tokens, the end token among them; ``end``: its name (default "end"); ``horizon``: most
  tokens.
* ``logits``: per prefix, one number per token of the vocabulary; a prefix that is not there has zeros (uniform).
  Every prefix has logits of its own, and they are the parameters, prefix by prefix.
  Or ``features``: per prefix, one vector per token; logits are features . weights. Every prefix is needed.
* ``rewards``: per complete response, all of them; or the interesting ones, with ``other_reward`` for the rest.
* ``steps``: per complete response, a list of [end, score], end 0-based and inclusive; a response that is not there
  has no steps.
* ``reference``: logits of the reference, in the form of ``logits``.

>>> entry = {"tree": {"vocabulary": ["a", "end"], "horizon": 2, "logits": {"": [1, 0]},
...     "rewards": {"end": 0, "a end": 1}, "other_reward": -1, "steps": {"a end": [[0, 0.5], [1, 1.0]]}}}
>>> prompt, logits = parse_tree(entry, "policy: prompt 0", 1.0, 0)
>>> prompt.names, prompt.points, logits
(('a a', 'a end', 'end'), ('', 'a'), [1.0, 0.0, 0.0, 0.0])
>>> prompt.reward.tolist(), prompt.truncated.tolist()
([-1.0, 1.0, 0.0], [True, False, False])
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.exact.checks import filled_list, kind, number, record, vector, whole
from grpo_ablate.exact.policy import Prompt, ScoredSteps

KEYS = ("vocabulary", "end", "horizon", "logits", "features", "rewards", "other_reward", "steps", "reference")
RESPONSES = 100_000  # complete responses of a tree


def parse_tree(
    entry: dict[str, Any], where: str, probability: float, first: int | None
) -> tuple[Prompt, list[float]]:
    """Return the prompt and its logits, which are the parameters from ``first`` on (None: from features)."""
    tree = record(entry["tree"], f"{where}: tree", KEYS, ("vocabulary", "horizon", "rewards"))
    where = f"{where}: tree"
    vocabulary, end = _vocabulary(tree, where)
    horizon = whole(tree["horizon"], where, "horizon", 1, 64)
    points, paths = _paths(vocabulary, end, horizon, where)
    numbers = {point: n for n, point in enumerate(points)}
    names = tuple(" ".join(vocabulary[v] for _, v in path) for path in paths)
    size = len(vocabulary)
    width = max(map(len, paths))
    edges = torch.full((len(paths), width), len(points) * size, dtype=torch.int64)
    for k, path in enumerate(paths):
        edges[k, : len(path)] = torch.tensor([n * size + v for n, v in path])
    rewards = _rewards(tree, names, where)
    features, logits = None, [0.0] * (len(points) * size)
    if first is None:
        if "logits" in tree:
            raise UserError(f"{where}: 'logits' is there, but logits are features . weights.")
        features = _features(tree, numbers, size, where)
    elif "logits" in tree:
        logits = _table(tree["logits"], numbers, size, where, "logits").flatten().tolist()
    prompt = Prompt(
        probability=probability,
        names=names,
        points=points,
        choices=vocabulary,
        edges=edges,
        token=edges < len(points) * size,
        reward=torch.tensor(rewards, dtype=torch.float64),
        truncated=torch.tensor([vocabulary[path[-1][1]] != end for path in paths]),
        columns=slice(None) if first is None else slice(first, first + len(logits)),
        features=features,
        reference=_table(tree["reference"], numbers, size, where, "reference") if "reference" in tree else None,
        steps=_steps(tree["steps"], names, [len(path) for path in paths], where) if "steps" in tree else None,
    )
    return prompt, logits


def _vocabulary(tree: dict[str, Any], where: str) -> tuple[tuple[str, ...], str]:
    tokens = filled_list(tree["vocabulary"], where, "vocabulary", "tokens")
    for token in tokens:
        if not isinstance(token, str) or token.split() != [token]:
            raise UserError(f"{where}: 'vocabulary' must hold strings without spaces, found {kind(token)}.")
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{where}: 'vocabulary' has a token twice.")
    end = tree.get("end", "end")
    if end not in tokens:
        offer = nearest(end, tokens) if isinstance(end, str) else f"found {kind(end)}."
        raise UserError(f"{where}: the end token '{end}' is not in the vocabulary; {offer}")
    return tuple(tokens), end


def _paths(
    vocabulary: tuple[str, ...], end: str, horizon: int, where: str
) -> tuple[tuple[str, ...], list[list[tuple[int, int]]]]:
    """Return the prefixes, breadth first, and the responses as paths of (prefix, token) in order of the tokens."""
    others = len(vocabulary) - 1
    total = sum(others**t for t in range(horizon)) + others**horizon
    if total > RESPONSES:
        raise UserError(
            f"{where}: {len(vocabulary)} tokens and horizon {horizon} make {total:,} responses, "
            f"more than the {RESPONSES:,} that are enumerated."
        )
    points: list[str] = []
    by_level: list[list[tuple[str, list[tuple[int, int]]]]] = [[("", [])]]
    finished: list[list[tuple[int, int]]] = []
    for depth in range(horizon):
        level: list[tuple[str, list[tuple[int, int]]]] = []
        for prefix, path in by_level[depth]:
            number = len(points)
            points.append(prefix)
            for v, token in enumerate(vocabulary):
                longer = [*path, (number, v)]
                if token == end or depth == horizon - 1:
                    finished.append(longer)
                else:
                    level.append((f"{prefix} {token}".strip(), longer))
        by_level.append(level)
    return tuple(points), sorted(finished, key=lambda path: [v for _, v in path])


def _known(key: str, names: Collection[str], where: str, what: str) -> str:
    if key not in names:
        raise UserError(f"{where}: {what} '{key}' is not in the tree; {_offer(key, names)}")
    return key


def _offer(key: str, names: Collection[str]) -> str:
    """Offer the nearest name, not all of a tree's."""
    offer = nearest(key, names)
    return offer if len(offer) < 200 else "a prefix or response is its tokens joined by spaces."


def _table(value: Any, numbers: dict[str, int], size: int, where: str, key: str) -> Tensor:
    """Return logits [N, V] from numbers per prefix."""
    table = torch.zeros(len(numbers), size, dtype=torch.float64)
    for prefix, row in _object(value, where, key).items():
        _known(prefix, numbers, f"{where}: {key}", "the prefix")
        values = vector(row, f"{where}: {key}: prefix '{prefix}'", key, size)
        table[numbers[prefix]] = torch.tensor(values, dtype=torch.float64)
    return table


def _features(tree: dict[str, Any], numbers: dict[str, int], size: int, where: str) -> Tensor:
    given = _object(tree["features"], where, "features") if "features" in tree else {}
    for prefix in given:
        _known(prefix, numbers, f"{where}: features", "the prefix")
    rows: list[list[float]] = []
    for prefix in numbers:
        at = f"{where}: features: prefix '{prefix}'"
        if prefix not in given:
            raise UserError(f"{at} is not there; logits are features . weights at every prefix.")
        vectors = filled_list(given[prefix], at, "features", "vectors, one per token")
        if len(vectors) != size:
            raise UserError(f"{at} has {len(vectors)} vectors, expected one per token ({size}).")
        for item in vectors:
            rows.append(vector(item, at, "features", len(rows[0]) if rows else None))
    return torch.tensor(rows, dtype=torch.float64)


def _rewards(tree: dict[str, Any], names: tuple[str, ...], where: str) -> list[float]:
    given = _object(tree["rewards"], where, "rewards")
    for name in given:
        _known(name, set(names), f"{where}: rewards", "the response")
    other = number(tree["other_reward"], where, "other_reward") if "other_reward" in tree else None
    result = []
    for name in names:
        if name in given:
            result.append(number(given[name], f"{where}: rewards", name))
        elif other is not None:
            result.append(other)
        else:
            raise UserError(f"{where}: rewards: the response '{name}' is not there (nor 'other_reward').")
    return result


def _steps(value: Any, names: tuple[str, ...], lengths: list[int], where: str) -> ScoredSteps:
    given = _object(value, where, "steps")
    for name in given:
        _known(name, set(names), f"{where}: steps", "the response")
    checked = [
        _step_list(given.get(name, []), f"{where}: steps: response '{name}'", length)
        for name, length in zip(names, lengths, strict=True)
    ]
    width = max(1, *map(len, checked))
    padded = [row + [(0, math.nan)] * (width - len(row)) for row in checked]
    count = torch.tensor([len(row) for row in checked])
    return ScoredSteps(
        end=torch.tensor([[end for end, _ in row] for row in padded]),
        score=torch.tensor([[score for _, score in row] for row in padded], dtype=torch.float64),
        present=torch.arange(width) < count[:, None],
    )


def _step_list(value: Any, where: str, length: int) -> list[tuple[int, float]]:
    if not isinstance(value, list):
        raise UserError(f"{where}: expected a list of [end, score], found {kind(value)}.")
    result = []
    for step in value:
        if not isinstance(step, list) or len(step) != 2:
            raise UserError(f"{where}: expected a list of [end, score], found {kind(step)} in it.")
        result.append((whole(step[0], where, "end", 0, length - 1), number(step[1], where, "score")))
    return result


def _object(value: Any, where: str, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: '{key}' must be an object by prefix or response, found {kind(value)}.")
    return value
