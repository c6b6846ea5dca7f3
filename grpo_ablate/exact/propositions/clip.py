"""Clipping: plateaus and where they can be reached, the twin without it, and the other surrogates' slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from grpo_ablate.exact.dynamics import along
from grpo_ablate.exact.propositions.cases import coin, random_policy, row, tree
from grpo_ablate.exact.propositions.findings import Finding, equals, exceeds, largest_gap
from grpo_ablate.exact.quantities import response_laws
from grpo_ablate.exact.token import token_objective
from grpo_ablate.exact.update import expected_update
from grpo_ablate.spec.schema import Update

TITLE = "Clipping and the other surrogates"
STATEMENT = (
    "One token with advantage A and ratio u: the slope of clip in log pi is u A up to 1 + hi (A > 0) or down "
    "to 1 - lo (A < 0) and 0 beyond. A ratio is at most 1/p, so the upper plateau is reachable only where (1 "
    "+ hi) p <= 1. With one step per round every ratio is 1, and a clipped row equals its unclipped twin."
)
RATIOS = (0.05, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 1.45, 1.55, 2.9, 3.1, 4.9, 5.1)
OFF: dict[str, Any] = {"clip_low": "off", "clip_high": "off"}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _clip(u: float, a: float, low: float, high: float, dual: float = math.inf) -> float:
    held = (a > 0 and u > 1 + high) or (a < 0 and (u < 1 - low or u > dual))
    return 0.0 if held else u * a


def _soft(u: float, a: float) -> float:
    tau = 1.0 if a > 0 else 1.05
    gate = _sigmoid(tau * (u - 1))
    return 4 * a * gate * (1 - gate) * u


# name -> switches, slope in log pi by hand
SLOPES: dict[str, tuple[dict[str, Any], Callable[[float, float], float]]] = {
    "clip .2/.2": ({}, lambda u, a: _clip(u, a, 0.2, 0.2)),
    "clip .2/.28": ({"clip_high": 0.28}, lambda u, a: _clip(u, a, 0.2, 0.28)),
    "dual clip, c = 3": ({"dual_clip": 3.0}, lambda u, a: _clip(u, a, 0.2, 0.2, 3.0)),
    "cispo, at most 5": (
        {"surrogate": "cispo", "clip_low": "off", "clip_high": 4.0},
        lambda u, a: min(u, 5.0) * a,
    ),
    "sequence, 3e-4/4e-4": (
        {"surrogate": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
        lambda u, a: _clip(u, a, 3e-4, 4e-4),
    ),
    "geometric, .4/.4": (
        {"surrogate": "geometric", "clip_low": 0.4, "clip_high": 0.4},
        lambda u, a: 0.0 if (a > 0 and math.log(u) > 0.4) or (a < 0 and math.log(u) < -0.4) else u * a,
    ),
    "soft, tau 1/1.05": ({"surrogate": "soft"}, _soft),
    "reinforce": ({"surrogate": "reinforce"}, lambda u, a: a),
}


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for name, (update, slope) in SLOPES.items():
        for sign in (1.0, -1.0):
            found = [token_objective(Update(**update), u, sign)[1] for u in RATIOS]
            case = f"{name}, A = {sign:+g}, {len(RATIOS)} ratios from {RATIOS[0]:g} to {RATIOS[-1]:g}"
            yield equals(case, "slope in log pi", found, [slope(u, sign) for u in RATIOS], "derivative by hand")
    yield from _twins()
    yield from _reachable()


def _twins() -> Iterator[Finding]:
    policies = [random_policy(seed) for seed in range(3)]
    bare = [expected_update(policy, row(3, **OFF)).expected_update for policy in policies]
    case = "three random policies over four responses, G = 3, one step per round"
    for name, (update, _) in SLOPES.items():
        updates = [expected_update(policy, row(3, **update, force=True)).expected_update for policy in policies]
        exact = name.startswith(("clip", "dual"))
        yield equals(
            f"{name}, {case}",
            "largest |E update - unclipped|",
            largest_gap(zip(updates, bare, strict=True)),
            0.0,
            "every ratio is 1",
            within=0.0 if exact else 1e-12,
        )
    policy = tree()
    for name in ("sequence, 3e-4/4e-4", "geometric, .4/.4"):
        update = {**SLOPES[name][0], "reduction": "sequence-mean"}
        found, plain = (
            expected_update(policy, row(3, **u)).expected_update for u in (update, {"reduction": "sequence-mean"})
        )
        gap = largest_gap([(found, plain)])
        yield equals(
            f"{name}, token tree, sequence-mean, G = 3",
            "largest |E update - that of clip|",
            gap,
            0.0,
            "at ratio 1 the slope is A times the mean score of the tokens",
        )


def _reachable() -> Iterator[Finding]:
    """The right answer's probability is driven to .999 after the groups were drawn."""
    direction = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for p, reached in ((0.9, False), (0.8, True)):
        policy = coin(p)
        step = math.log(0.999 / 0.001) - math.log(p / (1 - p))
        moved = along(policy, row(2), direction, [step])[0].expected_update
        success = float(response_laws(policy.at(policy.parameters + step * direction))[0][0])
        ratio = success / p
        case = (
            f"clip .2/.2, group-std, G = 2, p = {p} moved to {success:.3f}: u = {ratio:.4f}, 1.2 p = {1.2 * p:.2f}"
        )
        slope = 0.0 if reached else 2 * p * (1 - p) * ratio * (1 - success) / 2
        source = (
            "both answers are on their plateaus" if reached else "P(mixed) u (1 - pi) / 2: the loser alone is held"
        )
        yield equals(case, "E update", moved, (slope, -slope), source)
        if not reached:
            yield exceeds(
                case, "E update of the right answer's logit", float(moved[0]), 0.0, "no plateau", by=1e-5
            )
