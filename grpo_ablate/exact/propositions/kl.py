"""The sampled KL estimators: their values, and the gradients that they have in each variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from grpo_ablate.exact.columns import cosine_and_norm, estimator_means
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.propositions.cases import categorical, random_policy, row, tree
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, exceeds, largest_gap, printed
from grpo_ablate.exact.quantities import kl_gradient, reference_kl, response_laws
from grpo_ablate.exact.update import expected_update
from grpo_ablate.spec.schema import Switches

TITLE = "KL estimators: values and gradients"
STATEMENT = (
    "At one prefix, k1 and k3 have the value KL(pi, ref) on policy and k2 has not; differentiated as written "
    "k1 gives 0, k2 grad KL(pi, ref), k3 grad KL(ref, pi). Right for KL(pi, ref): u k1 and u k3 "
    "differentiated, on and off policy; score-function k1 and pathwise k2 on policy; exact. Equal rewards, so "
    "that only the penalty moves. Over several tokens none of them moves the law of the prefixes."
)
TWO = {
    ("exact", "pathwise"): -0.5493, ("k1", "pathwise"): 0.0, ("k2", "pathwise"): -0.5493, ("k3", "pathwise"): -0.4,
    ("k1", "ratio"): -0.5493, ("k2", "ratio"): -0.8299, ("k3", "ratio"): -0.5493,
    ("k1", "score-function"): -0.5493, ("k2", "score-function"): -0.2806, ("k3", "score-function"): -0.1493,
}  # fmt: skip
RIGHT = (
    ("exact", "pathwise"),
    ("k1", "ratio"),
    ("k3", "ratio"),
    ("k1", "score-function"),
    ("k2", "pathwise"),
)
RIGHT_OFF_POLICY = (("exact", "pathwise"), ("k1", "ratio"), ("k3", "ratio"))
WRONG_OFF_POLICY = (("k1", "score-function"), ("k2", "pathwise"), ("k3", "pathwise"))


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    yield from _two_actions()
    yield from _on_policy()
    yield from _off_policy()
    yield from _tokens()


def penalty(estimator: str, gradient: str) -> Switches:
    """Return a row in which only the penalty moves the policy: groups of two, beta 1."""
    kl: dict[str, Any] = {"beta": 1.0, "estimator": estimator, "gradient": gradient}
    return row(2, {"kl": kl}, clip_low="off", clip_high="off")


def slope(policy: ExactPolicy, kind: tuple[str, str], at: torch.Tensor | None = None) -> torch.Tensor:
    """Return the expected gradient of the penalty, [D]; rewards must be equal."""
    return -expected_update(policy, penalty(*kind), at=at).expected_update


def _two_actions() -> Iterator[Finding]:
    policy = categorical(*({"probability": 0.5, "reward": 0, "reference": q} for q in (0.9, 0.1)))
    case, source = "pi = (.5, .5), ref = (.9, .1)", "by hand, four decimals"
    for (estimator, gradient), value in TWO.items():
        found = float(slope(policy, (estimator, gradient))[0])
        quantity = f"{estimator}, {gradient}: gradient in the logit of action 0"
        yield equals(case, quantity, found, value, source, printed(4))
    values = {"k1": 0.5108, "k2": 0.7339, "k3": 0.5108}
    means = estimator_means(policy, policy.parameters)
    for estimator, value in values.items():
        yield equals(case, f"E {estimator}", means[estimator], value, source, printed(4))
    yield equals(case, "KL(pi, ref)", reference_kl(policy), 0.5108, source, printed(4))


def _policies() -> list[ExactPolicy]:
    return [indifferent(random_policy(seed, reference=True)) for seed in range(5)]


def indifferent(policy: ExactPolicy) -> ExactPolicy:
    """Return the policy with all rewards 0."""
    return replace(policy, prompts=tuple(replace(p, reward=torch.zeros_like(p.reward)) for p in policy.prompts))


def _on_policy() -> Iterator[Finding]:
    policies = _policies()
    case = "on policy, five random policies and references over four responses"
    for kind in RIGHT:
        gap = largest_gap((slope(policy, kind), kl_gradient(policy)) for policy in policies)
        yield equals(case, f"{', '.join(kind)}: largest |gradient - grad KL(pi, ref)|", gap, 0.0, "score identity")
    gap = largest_gap((slope(policy, ("k1", "pathwise")), [0.0] * 4) for policy in policies)
    yield equals(case, "k1, pathwise: largest |gradient|", gap, 0.0, "E S = 0")
    pairs = []
    for policy in policies:
        reference = policy.prompts[0].reference
        assert reference is not None
        pairs.append((slope(policy, ("k3", "pathwise")), response_laws(policy)[0] - reference[0].softmax(0)))
    gap = largest_gap(pairs)
    yield equals(
        case, "k3, pathwise: largest |gradient - grad KL(ref, pi)|", gap, 0.0, "grad KL(ref, pi) = pi - ref"
    )
    for estimator in ("k1", "k3"):
        gap = largest_gap((estimator_means(p, p.parameters)[estimator], reference_kl(p)) for p in policies)
        yield equals(case, f"largest |E {estimator} - KL(pi, ref)|", gap, 0.0, "value identity")


def _off_policy() -> Iterator[Finding]:
    policies = _policies()
    generator = torch.Generator().manual_seed(0)
    moved = [p.parameters + 0.5 * torch.randn(4, generator=generator, dtype=torch.float64) for p in policies]
    case = "off policy, the five policies moved by half a standard normal"
    for kind in RIGHT_OFF_POLICY:
        pairs = [(slope(p, kind, m), kl_gradient(p.at(m))) for p, m in zip(policies, moved, strict=True)]
        quantity = f"{', '.join(kind)}: largest |gradient - grad KL(pi, ref)|"
        yield equals(case, quantity, largest_gap(pairs), 0.0, "E_old[u k] = E_now[k]")
    for kind in WRONG_OFF_POLICY:
        errors = [
            float((slope(p, kind, m) - kl_gradient(p.at(m))).norm() / kl_gradient(p.at(m)).norm())
            for p, m in zip(policies, moved, strict=True)
        ]
        quantity = f"{', '.join(kind)}: smallest |gradient - grad KL| / |grad KL|"
        yield exceeds(case, quantity, min(errors), 0.0, "the responses are the old policy's", by=1e-3)
    # The estimate of the value, too, needs the ratio.
    both = list(zip(policies, moved, strict=True))
    gap = largest_gap((estimator_means(p, m)["k3"], reference_kl(p.at(m))) for p, m in both)
    yield differs(case, "largest |E_old k3 - KL(pi, ref)|", gap, 0.0, "no ratio", by=1e-3)
    gap = largest_gap((estimator_means(p, m, weighted=True)["k3"], reference_kl(p.at(m))) for p, m in both)
    yield equals(case, "largest |E_old[u k3] - KL(pi, ref)|", gap, 0.0, "E_old[u k3] = E_now[k3]")
    distances = _distances()
    yield exceeds(
        "three responses, reference (.6, .3, .1), on policy along (-1, .2, .8)",
        "k3, pathwise: norm error at distance 3 over that at distance 1/2",
        distances[1] / distances[0],
        1.0,
        "grad KL(ref, pi) parts from grad KL(pi, ref)",
        by=0.5,
    )


def _distances() -> list[float]:
    """Return | |gradient| / |grad KL| - 1 | of pathwise k3 at distances 1/2 and 3."""
    start = categorical(*({"probability": p, "reward": 0, "reference": p} for p in (0.6, 0.3, 0.1)))
    direction = torch.tensor([-1.0, 0.2, 0.8], dtype=torch.float64)
    found = []
    for distance in (0.5, 3.0):
        policy = start.at(start.parameters + distance * direction)
        found.append(abs(cosine_and_norm(slope(policy, ("k3", "pathwise")), kl_gradient(policy))[1] - 1))
    return found


def _tokens() -> Iterator[Finding]:
    policy = indifferent(tree(reference={"": [0.0, 0.5, 0.0], "yes": [0.0, 1.0, 0.0]}))
    exact, sequence = slope(policy, ("exact", "pathwise")), kl_gradient(policy)
    case = "token tree, on policy, penalty summed over tokens"
    yield differs(
        case,
        "exact KL at each prefix beside grad KL of whole responses",
        exact,
        sequence,
        "prefixes keep the old policy's law",
        by=1e-3,
    )
    gap = largest_gap([(slope(policy, ("k2", "pathwise")), exact)])
    yield equals(
        case,
        "k2, pathwise: largest |gradient - that of the exact KL at each prefix|",
        gap,
        0.0,
        "the identity holds prefix by prefix",
    )
