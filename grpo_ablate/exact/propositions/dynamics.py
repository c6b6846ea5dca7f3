"""Expected updates iterated: who climbs fastest from p, per update and per rollout, with and without KL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from grpo_ablate.exact.dynamics import UpdateField, iterate
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import GROUP_STD, LEAVE_ONE_OUT, MEAN_ONLY, binomial, coin, row, spread
from grpo_ablate.exact.propositions.findings import Finding, equals, exceeds, falls_below

TITLE = "Dynamics of the success probability"
STATEMENT = (
    "One prompt, rewards 0 and 1, expected updates iterated with one learning rate, no sampling noise. Per "
    "update group-std leads leave-one-out leads mean-only for G > 2 (for G = 2 group-std and leave-one-out "
    "are one); none is overtaken, with or without an exact KL to the start. Per rollout and without KL, G = 2 "
    "leads every larger group, since c_G <= sqrt(G - 1) < G/2. With KL (beta 0.1) it leads at first; then G = 8 "
    "overtakes it under group-std and mean-only, whose climbs end higher in larger groups, and never under "
    "leave-one-out, whose climb ends at r / beta whatever the size. Less noise is not in this calculation."
)
RATE, STEPS, TARGET = 1.0, 200, 0.9
SHOWN = (10, 50, 150)  # updates
STARTS = (0.01, 0.1, 0.5)
BETA = 0.1
ROLLOUTS = 1000  # how far G = 2 and G = 8 are compared per rollout
ROWS: dict[str, tuple[dict[str, Any], Callable[[float, int], float]]] = {
    "group-std": (GROUP_STD, lambda p, size: binomial(size, p, spread)),
    "leave-one-out": (LEAVE_ONE_OUT, lambda p, size: p * (1 - p)),
    "mean only": (MEAN_ONLY, lambda p, size: (1 - 1 / size) * p * (1 - p)),
}


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    for start in STARTS:
        reached: dict[tuple[str, int], int] = {}
        paths: dict[tuple[str, int], list[float]] = {}
        for name, (advantage, force) in ROWS.items():
            for size in (2, 8):
                found = path(start, row(size, advantage))
                expected = by_hand(start, size, force)
                case = f"{name}, G = {size}, from p = {start}, learning rate {RATE:g}"
                quantity = f"p after {SHOWN[0]}, {SHOWN[1]}, {SHOWN[2]} updates"
                shown, wanted = ([values[n] for n in SHOWN] for values in (found, expected))
                yield equals(case, quantity, shown, wanted, "scalar recursion of the logit", within=1e-10)
                paths[name, size] = found
                reached[name, size] = first(found)
                yield equals(
                    case,
                    f"updates to p >= {TARGET}",
                    reached[name, size],
                    first(expected),
                    "scalar recursion of the logit",
                    within=0,
                )
        yield from _order(start, paths, reached)
    yield from _bound()
    yield from _penalised()
    for beta in (0.0, BETA):
        for start in STARTS:
            yield from _per_rollout(start, beta)


def path(start: float, switches: Any, policy: ExactPolicy | None = None, steps: int = STEPS) -> list[float]:
    """Return p after 0..steps expected updates."""
    chosen = coin(start) if policy is None else policy
    found = iterate(chosen.parameters, UpdateField(chosen, switches), RATE, steps)
    return torch.softmax(found, -1)[:, 0].tolist()


def by_hand(
    start: float, size: int, force: Callable[[float, int], float], beta: float = 0.0, steps: int = STEPS
) -> list[float]:
    """Return the same by a recursion of one logit z: both logits move by the force, in opposite directions."""
    z = begun = math.log(start / (1 - start))
    values = [start]
    for _ in range(steps):
        p = 1 / (1 + math.exp(-z))
        z += 2 * RATE * (force(p, size) - beta * p * (1 - p) * (z - begun))
        values.append(1 / (1 + math.exp(-z)))
    return values


def first(values: list[float]) -> int:
    """Return the first update at which p reaches the target."""
    return next(number for number, p in enumerate(values) if p >= TARGET)


def _order(
    start: float, paths: dict[tuple[str, int], list[float]], reached: dict[tuple[str, int], int]
) -> Iterator[Finding]:
    until = max(reached.values())
    for ahead, behind in (("group-std", "leave-one-out"), ("leave-one-out", "mean only")):
        lead = min(a - b for a, b in zip(paths[ahead, 8][1:until], paths[behind, 8][1:until], strict=True))
        yield exceeds(
            f"G = 8, from p = {start}, until all have reached {TARGET}",
            f"smallest lead of {ahead} over {behind}, per update",
            lead,
            0.0,
            "never overtaken",
        )
    gap = max(abs(a - b) for a, b in zip(paths["group-std", 2], paths["leave-one-out", 2], strict=True))
    yield equals(
        f"G = 2, from p = {start}", "largest gap of group-std and leave-one-out", gap, 0.0, "c_2 = 1", within=1e-10
    )
    for name in ROWS:
        few, many = (size * reached[name, size] for size in (2, 8))
        yield falls_below(
            f"{name}, from p = {start}, G = 2 beside G = 8",
            f"rollouts per prompt to p >= {TARGET}",
            few,
            many,
            "c_8 < 4",
            by=0.5,
        )


def _bound() -> Iterator[Finding]:
    grid = [i / 1000 for i in range(1, 1000)]
    for size in (4, 8, 16, 32, 64):
        largest = max(binomial(size, p, spread) / (p * (1 - p)) for p in grid)
        yield falls_below(
            f"group-std, G = {size}, p = 0.001 to 0.999",
            "largest c_G(p)",
            largest,
            math.sqrt(size - 1),
            "c_G tends to sqrt(G - 1) at p = 0 and 1",
            by=0.0,
        )


def _anchored(start: float) -> ExactPolicy:
    """Return the policy with the start as its reference."""
    policy = coin(start)
    return replace(policy, prompts=tuple(replace(p, reference=policy.parameters[None]) for p in policy.prompts))


def lead(few: list[float], many: list[float]) -> dict[int, float]:
    """Return p at G = 8 minus p at G = 2 after every 8 rollouts, by rollouts."""
    return {8 * n: many[n] - few[4 * n] for n in range(1, len(many))}


def overtakes(few: list[float], many: list[float]) -> int | None:
    """Return the rollouts after which G = 8 is ahead of G = 2 for the first time; None: never."""
    return next((rollouts for rollouts, ahead in lead(few, many).items() if ahead > 0), None)


def _per_rollout(start: float, beta: float) -> Iterator[Finding]:
    """Compare groups of 2 and of 8 at equal rollouts: four updates of the one for one of the other."""
    kl = {"kl": {"beta": beta, "estimator": "exact"}} if beta else {}
    said = f"exact KL with beta = {beta:g}, p = pi_ref = {start}" if beta else f"no KL, p = {start}"
    for name, (advantage, force) in ROWS.items():
        case = f"{name}, G = 8 beside G = 2, from {said}, to {ROLLOUTS} rollouts"
        found = [path(start, row(g, advantage, kl), _anchored(start), ROLLOUTS // g) for g in (2, 8)]
        wanted = [by_hand(start, g, force, beta, ROLLOUTS // g) for g in (2, 8)]
        crossing = overtakes(*wanted)
        if crossing is None:
            ahead, reason = max(lead(*found).values()), "never overtaken"
            yield falls_below(case, "largest lead of G = 8, per rollout", ahead, 0.0, reason, by=0.0)
        else:
            at = overtakes(*found)
            value = math.nan if at is None else at
            source = "scalar recursion of the logit"
            yield equals(case, "G = 8 overtakes at rollout", value, crossing, source, within=0)


def _penalised() -> Iterator[Finding]:
    """With an exact KL to the start the climb ends where force and penalty meet."""
    kl = {"kl": {"beta": BETA, "estimator": "exact"}}
    size = 8
    for start in STARTS:
        policy = _anchored(start)
        ends, paths = {}, {}
        for name, (advantage, force) in ROWS.items():
            found = path(start, row(size, advantage, kl), policy)
            expected = by_hand(start, size, force, BETA)
            case = f"{name}, exact KL with beta = {BETA}, G = {size}, from p = pi_ref = {start}"
            yield equals(
                case,
                f"p after {SHOWN[0]}, {SHOWN[1]}, {SHOWN[2]} updates",
                [found[n] for n in SHOWN],
                [expected[n] for n in SHOWN],
                "scalar recursion of the logit",
                within=1e-10,
            )
            paths[name] = found
            ends[name] = math.log(found[-1] / (1 - found[-1])) - math.log(start / (1 - start))
        for name, height in (("leave-one-out", 1 / BETA), ("mean only", (1 - 1 / size) / BETA)):
            yield falls_below(
                f"{name}, exact KL with beta = {BETA}, G = {size}, from p = pi_ref = {start}",
                f"logit gained after {STEPS} updates",
                ends[name],
                height,
                "r / beta, times 1 - 1/G for the group mean: approached from below",
                by=0.0,
            )
        for ahead, behind in (("group-std", "leave-one-out"), ("leave-one-out", "mean only")):
            lead = min(a - b for a, b in zip(paths[ahead][1:], paths[behind][1:], strict=True))
            yield exceeds(
                f"exact KL with beta = {BETA}, G = {size}, from p = pi_ref = {start}, {STEPS} updates",
                f"smallest lead of {ahead} over {behind}, per update",
                lead,
                0.0,
                "never overtaken",
                by=0.0,
            )
