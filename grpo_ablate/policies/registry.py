"""Policies by the name that a spec gives them."""

from __future__ import annotations

from grpo_ablate.policies.tabular import Tabular
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.selection import Selection

POLICIES = {"tabular": Tabular}


def make_policy(spec: Spec, task: Selection, keys: Keys) -> Tabular:
    """Return the untrained policy that a spec's ``policy`` section describes, a member per seed."""
    return POLICIES[spec.policy.name](spec, task, keys)
