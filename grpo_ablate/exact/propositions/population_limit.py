"""As G grows, group-std follows E_x[grad mu / sigma], which is not the gradient of E_x[mu / sigma]."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from grpo_ablate.exact import quantities
from grpo_ablate.exact.columns import cosine_and_norm
from grpo_ablate.exact.policy_file import parse
from grpo_ablate.exact.propositions.cases import categorical, row
from grpo_ablate.exact.propositions.findings import Finding, differs, equals, exceeds, falls_below
from grpo_ablate.exact.update import expected_update

TITLE = "The population limit is not the gradient of mean over spread"
STATEMENT = (
    "Two prompts with shared weights, rewards 0 and 1, and 0 and 3: as G grows the expected update of "
    "group-std tends to E_x[grad mu / sigma], which points elsewhere than grad E_x[mu / sigma]; with three "
    "reward values it is the gradient of no function at all."
)
SHARED = {
    "prompts": [{"responses": [{"reward": 1}, {"reward": 0}]}, {"responses": [{"reward": 3}, {"reward": 0}]}],
    "features": [[[1, 0], [0, 0]], [[1, 1], [0, 0]]],
    "weights": [-1.0, 0.5],
}
CASE = "two prompts, logits w1 and w1 + w2, w = (-1, 1/2)"


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    policy = parse(SHARED)
    p, q = 1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(0.5))
    first, second = math.sqrt(p * (1 - p)), math.sqrt(q * (1 - q))
    limit, other = quantities.population_limit(policy), quantities.normalised_mean_gradient(policy)
    yield equals(
        CASE,
        "E_x[grad mu / sigma]",
        limit,
        ((first + second) / 2, second / 2),
        "grad mu / sigma = sqrt(p (1 - p)) grad logit, whatever the gap of the rewards",
    )
    a, b = math.sqrt(p / (1 - p)) / 2, math.sqrt(q / (1 - q)) / 2
    yield equals(
        CASE,
        "grad E_x[mu / sigma]",
        other,
        ((a + b) / 2, b / 2),
        "mu / sigma = sqrt(p / (1 - p)), with derivative half of itself in the logit",
    )
    yield differs(CASE, "one vector beside the other", limit, other, "they are different fields", by=1e-2)
    cosine, _ = cosine_and_norm(limit, other)
    dot = ((first + second) * (a + b) + second * b) / 4
    sizes = math.hypot(first + second, second) * math.hypot(a + b, b) / 4
    yield equals(CASE, "their cosine", cosine, dot / sizes, "from the closed forms")
    yield falls_below(CASE, "their cosine", cosine, 1.0, "different directions", by=1e-4)
    gaps = [
        float((expected_update(policy, row(size)).expected_update - limit).norm()) for size in (64, 128, 256, 512)
    ]
    yield falls_below(f"group-std, G = 512, {CASE}", "|E update - limit|", gaps[-1], 1e-3, "tends to 0", by=0.0)
    yield equals(
        f"group-std, {CASE}",
        "gap at G = 256 over gap at G = 512",
        gaps[-2] / gaps[-1],
        2.0,
        "falls as 1/G",
        within=0.05,
    )
    yield from _no_potential()


def _no_potential() -> Iterator[Finding]:
    """A field is a gradient only where its derivative is symmetric."""
    policy = categorical(*({"logit": x, "reward": r} for x, r in ((0.5, 0), (0.0, 1), (-1.0, 10))))
    step, columns = 1e-5, []
    for d in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[d] = step
        up, down = (quantities.population_limit(policy.at(policy.parameters + s)) for s in (shift, -shift))
        columns.append((up - down) / (2 * step))
    derivative = torch.stack(columns)
    yield exceeds(
        "one prompt, rewards 0, 1, 10, logits 1/2, 0, -1",
        "largest |D - D^T| of the derivative of grad mu / sigma",
        float((derivative - derivative.T).abs().max()),
        0.0,
        "central differences, error about 1e-9",
        by=1e-3,
    )
