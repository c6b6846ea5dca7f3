"""Statements about GRPO settled by enumeration: one module per topic, each a list of findings.

Every module has ``TITLE``, ``STATEMENT`` (what is exact and what is assumed) and ``findings()``, a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from grpo_ablate.exact.propositions import (
    binary_factor,
    clip,
    counterexample,
    dynamics,
    group_mean,
    kl,
    kl_optimum,
    length,
    mixed_groups,
    pairs,
    population_limit,
    process,
    rollout_budget,
    variance,
)
from grpo_ablate.exact.propositions.findings import Finding

PROPOSITIONS: dict[str, ModuleType] = {
    "group-mean": group_mean,
    "counterexample": counterexample,
    "binary-factor": binary_factor,
    "mixed-groups": mixed_groups,
    "population-limit": population_limit,
    "length": length,
    "kl": kl,
    "variance": variance,
    "rollout-budget": rollout_budget,
    "kl-optimum": kl_optimum,
    "process": process,
    "clip": clip,
    "dynamics": dynamics,
    "pairs": pairs,
}


@dataclass(frozen=True)
class Proposition:
    """One proposition with all that was found."""

    name: str
    title: str
    statement: str
    findings: tuple[Finding, ...]


def examine(name: str) -> Proposition:
    """Return the proposition of that name with its findings."""
    module = PROPOSITIONS[name]
    found: Callable[[], Iterator[Finding]] = module.findings
    return Proposition(name, module.TITLE, module.STATEMENT, tuple(found()))
