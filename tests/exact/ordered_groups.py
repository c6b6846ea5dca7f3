"""The expected update of one group as plain loops over all ordered groups, with advantages in closed form.

Written from the formulas alone: nothing of grpo_ablate is used.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Token:
    """One token of a response: what the old, the present and the reference policy say, and the derivatives."""

    old: float  # log-probability where groups are drawn
    now: float  # log-probability where the gradient is taken
    reference: float
    score: np.ndarray  # d now / d parameters
    old_kl: float = 0.0  # exact KL(old, reference) at the prefix
    kl_score: Any = 0.0  # d KL(now, reference) / d parameters
    entropy_score: Any = 0.0  # d entropy / d parameters


@dataclass
class Response:
    reward: float
    tokens: list[Token]
    steps: list[tuple[int, float]] = field(default_factory=list)

    @property
    def probability(self) -> float:
        return math.exp(sum(token.old for token in self.tokens))

    @property
    def score(self) -> np.ndarray:
        return sum(token.score for token in self.tokens)


def softmax(logits) -> np.ndarray:
    values = np.exp(np.array(logits) - max(logits))
    return values / values.sum()


def point(old, now, reference, at: int, dimensions: int, choice: int) -> Token:
    """A token drawn from softmax logits that are parameters ``at``, ``at + 1``, ..."""
    p, q, r = softmax(old), softmax(now), softmax(reference)
    score, kl_score, entropy_score = np.zeros((3, dimensions))
    kl = sum(q * np.log(q / r))
    entropy = -sum(q * np.log(q))
    for b in range(len(q)):
        score[at + b] = (b == choice) - q[b]
        kl_score[at + b] = q[b] * (math.log(q[b] / r[b]) - kl)
        entropy_score[at + b] = -q[b] * (math.log(q[b]) + entropy)
    return Token(
        math.log(p[choice]), math.log(q[choice]), math.log(r[choice]), score,
        sum(p * np.log(p / r)), kl_score, entropy_score,
    )  # fmt: skip


def advantages(group: list[Response], row: dict[str, Any]) -> list[list[float]]:
    """One advantage per token of each response."""
    if row.get("supervision") == "process":
        return process_advantages(group, row)
    rewards = [row["transform"](r.reward) if "transform" in row else r.reward for r in group]
    if row.get("place") == "reward-before":
        rewards = [
            reward - row["beta"] * sum(old_kl(token, row) for token in response.tokens)
            for reward, response in zip(rewards, group, strict=True)
        ]
    values = normalised(rewards, row)
    result = [[value] * len(response.tokens) for value, response in zip(values, group, strict=True)]
    if row.get("place") == "reward-after":
        for mine, response in zip(result, group, strict=True):
            for t in range(len(mine)):
                mine[t] -= row["beta"] * sum(old_kl(token, row) for token in response.tokens[t:])
    return result


def normalised(values: list[float], row: dict[str, Any]) -> list[float]:
    n, baseline, scale = len(values), row.get("baseline", "mean"), row.get("scale", "group-std")
    mean = math.fsum(values) / n
    constant = len(set(values)) == 1
    if baseline in ("mean", "leave-one-out"):
        if constant:
            return [0.0] * n
        factor = n / (n - 1) if baseline == "leave-one-out" else 1.0
        result = [factor * (value - mean) for value in values]
    else:
        result = [value - (row.get("constant", 0.0) if baseline == "constant" else 0.0) for value in values]
    if scale == "none" or (constant and scale == "group-std"):
        return result

    def divisor(pool: list[float]) -> float:
        middle = math.fsum(pool) / len(pool)
        if len(set(pool)) == 1:
            return 1.0
        std = math.sqrt(sum((v - middle) ** 2 for v in pool) / (len(pool) - row.get("ddof", 0)))
        eps = row.get("eps", 0.0)
        return math.sqrt(std**2 + eps) if row.get("eps_inside") else std + eps

    if scale == "leave-one-out-std":
        return [a / divisor(values[:i] + values[i + 1 :]) for i, a in enumerate(result)]
    return [a / divisor(values) for a in result]


def process_advantages(group: list[Response], row: dict[str, Any]) -> list[list[float]]:
    pool = [score for response in group for _, score in response.steps]
    values = iter(normalised(pool, row) if len(pool) > 1 else [0.0] * len(pool))
    result = []
    for response in group:
        mine = [(end, next(values)) for end, _ in response.steps]
        result.append([sum(v for end, v in mine if end >= t) for t in range(len(response.tokens))])
    return result


def old_kl(token: Token, row: dict[str, Any]) -> float:
    if row["estimator"] == "exact":
        return token.old_kl
    return estimator(token.reference - token.old, row)


def estimator(z: float, row: dict[str, Any]) -> float:
    return {"k1": -z, "k2": z * z / 2, "k3": math.exp(z) - z - 1}[row["estimator"]]


def kl_slope(token: Token, row: dict[str, Any]) -> Any:
    """The gradient of the penalty at one token."""
    if row["estimator"] == "exact":
        return token.kl_score
    z, u = token.reference - token.now, math.exp(token.now - token.old)
    k, pathwise = estimator(z, row), {"k1": 1.0, "k2": -z, "k3": 1 - math.exp(z)}[row["estimator"]]
    gradient = row.get("gradient", "pathwise")
    slope = {"pathwise": pathwise, "ratio": u * (k + pathwise), "score-function": k}[gradient]
    return slope * token.score


def policy_slope(token: Token, advantage: float, row: dict[str, Any]) -> Any:
    """The gradient of the objective f at one token."""
    u = math.exp(token.now - token.old)
    low, high = 1 - row.get("clip_low", 0.2), 1 + row.get("clip_high", 0.2)
    surrogate = row.get("surrogate", "clip")
    if surrogate == "reinforce":
        return advantage * token.score
    if surrogate == "cispo":
        return min(max(u, low), high) * advantage * token.score
    if (advantage > 0 and u > high) or (advantage < 0 and u < low):
        return 0.0 * token.score
    return u * advantage * token.score


def update(group: list[Response], row: dict[str, Any]) -> np.ndarray:
    """The ascent direction of one group."""
    total = sum(len(response.tokens) for response in group)
    result = 0.0
    for response, per_token in zip(group, advantages(group, row), strict=True):
        weight = {
            "sequence-mean": 1 / (len(group) * len(response.tokens)),
            "token-mean": 1 / total,
            "constant": 1 / (len(group) * row.get("limit", 1)),
            "sequence-sum": 1 / len(group),
        }[row.get("reduction", "sequence-mean")]
        for token, advantage in zip(response.tokens, per_token, strict=True):
            result = result + weight * policy_slope(token, advantage, row)
            if row.get("beta", 0) > 0 and row.get("place", "loss") == "loss":
                result = result - weight * row["beta"] * kl_slope(token, row)
            result = result + weight * row.get("entropy", 0.0) * token.entropy_score
    return result


def expectation(prompts: list[tuple[float, list[Response]]], size: int, row: dict[str, Any]) -> dict[str, Any]:
    """Mean, second moment, chance of acceptance and of a mixed group, over all ordered groups."""
    mass, mean, square, mixed = 0.0, 0.0, 0.0, 0.0
    for share, responses in prompts:
        for group in itertools.product(responses, repeat=size):
            probability = share * math.prod(response.probability for response in group)
            is_mixed = len({response.reward for response in group}) > 1
            mixed += probability * is_mixed
            if row.get("dynamic") and not is_mixed:
                continue
            found = update(list(group), row)
            mass += probability
            mean = mean + probability * found
            square += probability * float(found @ found)
    mean = mean / mass
    gradient = sum(
        share * sum(response.probability * response.reward * response.score for response in responses)
        for share, responses in prompts
    )
    return {
        "gradient": gradient,
        "expected_update": mean,
        "variance": square / mass - float(mean @ mean),
        "p_mixed": mixed,
        "accepted": mass,
    }


def categorical_case(seed: int, *, moved: float = 0.0) -> tuple[dict[str, Any], list, np.ndarray]:
    """Two prompts with logits of their own: a POLICY.json document, its responses, and the parameters now."""
    rng = random.Random(seed)
    sizes = [rng.randint(2, 3), rng.randint(2, 3)]
    share = rng.uniform(0.2, 0.8)
    dimensions, at = sum(sizes), 0
    document: dict[str, Any] = {"prompts": []}
    prompts, everything = [], []
    for size, probability in zip(sizes, (share, 1 - share), strict=True):
        old = [rng.gauss(0, 1) for _ in range(size)]
        now = [x + moved * rng.gauss(0, 1) for x in old]
        reference = [rng.gauss(0, 1) for _ in range(size)]
        rewards = rng.sample([0.0, 0.3, 1.0, 4.0], size)
        lengths = [rng.randint(1, 4) for _ in range(size)]
        document["prompts"].append({
            "probability": probability,
            "responses": [
                {"logit": old[k], "reward": rewards[k], "length": lengths[k], "reference": softmax(reference)[k]}
                for k in range(size)
            ],
        })  # fmt: skip
        certain = Token(0.0, 0.0, 0.0, np.zeros(dimensions))
        prompts.append((probability, [
            Response(rewards[k], [point(old, now, reference, at, dimensions, k)] + [certain] * (lengths[k] - 1))
            for k in range(size)
        ]))  # fmt: skip
        everything += now
        at += size
    return document, prompts, np.array(everything)


def tree_case(seed: int, *, moved: float = 0.0) -> tuple[dict[str, Any], list, np.ndarray]:
    """One prompt, a tree of two tokens and the end token at horizon 2: seven responses."""
    rng = random.Random(seed)
    vocabulary = ["a", "b", "end"]
    prefixes = ["", "a", "b"]
    tables = {name: {p: [rng.gauss(0, 1) for _ in vocabulary] for p in prefixes} for name in ("old", "reference")}
    now = {p: [x + moved * rng.gauss(0, 1) for x in tables["old"][p]] for p in prefixes}
    responses, rewards, steps = [], {}, {}
    for words in (("end",), *itertools.product(("a", "b"), vocabulary)):
        name = " ".join(words)
        tokens = []
        for t, word in enumerate(words):
            prefix = " ".join(words[:t])
            logits = (tables["old"][prefix], now[prefix], tables["reference"][prefix])
            tokens.append(point(*logits, 3 * prefixes.index(prefix), 9, vocabulary.index(word)))
        rewards[name] = rng.choice([0.0, 0.5, 1.0])
        steps[name] = [[t, rng.choice([-1.0, 0.5, 1.0])] for t in range(len(words)) if rng.random() < 0.7]
        responses.append(Response(rewards[name], tokens, [(end, score) for end, score in steps[name]]))
    tree = {
        "vocabulary": vocabulary, "end": "end", "horizon": 2, "logits": tables["old"],
        "reference": tables["reference"], "rewards": rewards, "steps": steps,
    }  # fmt: skip
    return {"prompts": [{"tree": tree}]}, [(1.0, responses)], np.concatenate([now[p] for p in prefixes])
