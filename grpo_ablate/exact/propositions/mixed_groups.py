"""How often a group carries reward contrast, and what keeping only such groups does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.policy_file import parse
from grpo_ablate.exact.propositions.cases import GROUP_STD, MEAN_ONLY, NO_BASELINE, categorical, coin, row
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, largest_gap, printed
from grpo_ablate.exact.quantities import accepted_law
from grpo_ablate.exact.update import expected_update

TITLE = "Mixed groups and dynamic sampling"
STATEMENT = (
    "A group of binary rewards is mixed with chance a_G(p) = 1 - p^G - (1 - p)^G. Keeping mixed groups only "
    "turns the law of prompts into rho a / E a. Under the group mean and no KL a constant group moves "
    "nothing, so the expected update of an accepted group is 1 / E a times that of any group, and per "
    "response generated the two are equal."
)
DROP = {"sampling": {"dynamic": "drop"}}
SHARES, SUCCESSES = (0.5, 0.3, 0.2), (0.5, 0.05, 0.9)


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    yield from _chance()
    prompts = [
        {"probability": share, "responses": [{"probability": p, "reward": 1}, {"probability": 1 - p, "reward": 0}]}
        for share, p in zip(SHARES, SUCCESSES, strict=True)
    ]
    policy = parse({"prompts": prompts})
    for size in (2, 4, 8):
        chances = [1 - p**size - (1 - p) ** size for p in SUCCESSES]
        total = sum(share * a for share, a in zip(SHARES, chances, strict=True))
        law = [share * a / total for share, a in zip(SHARES, chances, strict=True)]
        case = f"three prompts, p = 0.5, 0.05, 0.9, G = {size}"
        yield equals(case, "accepted law of the prompts", accepted_law(policy, size), law, "rho a / E a")
        rows: tuple[tuple[str, dict[str, Any]], ...] = (("group-std", GROUP_STD), ("mean only", MEAN_ONLY))
        for name, kind in rows:
            every, kept = (expected_update(policy, row(size, kind, *more)) for more in ((), (DROP,)))
            yield equals(f"{name}, {case}", "chance of acceptance", kept.accepted, total, "E a")
            ratio = kept.expected_update.norm() / every.expected_update.norm()
            yield equals(f"{name}, {case}", "|filtered update| / |unfiltered|", ratio, 1 / total, "1 / E a")
            gap = largest_gap([(kept.expected_update * total, every.expected_update)])
            yield equals(
                f"{name}, {case}", "largest |E a x filtered - unfiltered|", gap, 0.0, "constant groups give 0"
            )
            gap = largest_gap([(kept.per_rollout, every.per_rollout)])
            yield equals(
                f"{name}, {case}", "per response generated: largest gap", gap, 0.0, "rejected ones are charged"
            )
    yield from _exceptions(policy, 4)


def _chance() -> Iterator[Finding]:
    for size, value in ((2, 0.0198), (16, 0.1485)):
        found = expected_update(coin(0.01), row(size)).p_mixed
        yield equals(f"p = 0.01, G = {size}", "chance of a mixed group", found, value, "four decimals", printed(4))
    for size in (2, 4, 8, 16, 32, 64):
        gap = max(
            abs(expected_update(coin(p), row(size)).p_mixed - (1 - p**size - (1 - p) ** size))
            for p in (0.01, 0.1, 0.3, 0.5, 0.9, 0.99)
        )
        yield equals(
            f"G = {size}, p = 0.01 to 0.99", "largest |enumerated - a_G(p)|", gap, 0.0, "1 - p^G - (1 - p)^G"
        )
    three = categorical(*({"probability": p, "reward": r} for p, r in ((0.2, 0), (0.5, 0.5), (0.3, 1))))
    found = expected_update(three, row(4)).p_mixed
    yield equals(
        "rewards 0, 1/2, 1 with p = .2, .5, .3, G = 4",
        "chance of a mixed group",
        found,
        1 - 0.2**4 - 0.5**4 - 0.3**4,
        "1 - sum of P(reward)^G; the binary formula is for two values",
    )


def _exceptions(policy: ExactPolicy, size: int) -> Iterator[Finding]:
    """Where constant groups do move the policy, filtering is more than a factor."""
    every, kept = (expected_update(policy, row(size, NO_BASELINE, *more)) for more in ((), (DROP,)))
    gap = kept.accepted * kept.expected_update - every.expected_update
    yield differs(
        f"no baseline, three prompts, G = {size}",
        "largest |E a x filtered - unfiltered|",
        float(gap.abs().max()),
        0.0,
        "an all-right group moves the policy",
        by=1e-3,
    )
    reference = tuple(
        replace(p, reference=torch.tensor([[0.0, 0.0]], dtype=torch.float64)) for p in policy.prompts
    )
    anchored = replace(policy, prompts=reference)
    beta = {"kl": {"beta": 0.1, "estimator": "exact"}}
    every, kept = (expected_update(anchored, row(size, GROUP_STD, beta, *more)) for more in ((), (DROP,)))
    gap = kept.accepted * kept.expected_update - every.expected_update
    yield differs(
        f"group-std with exact KL, beta = 0.1, G = {size}",
        "largest |E a x filtered - unfiltered|",
        float(gap.abs().max()),
        0.0,
        "a constant group keeps its KL gradient",
        by=1e-3,
    )
