"""Policies by the name that a spec gives them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grpo_ablate.policies.protocol import Policy
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.tabular import Tabular
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec


def _tabular(spec: Spec, task: Any, keys: Keys, start: dict[str, Tensor] | None) -> Policy:
    """A tabular policy starts uniform: there is nothing to start from."""
    return Tabular(spec, task, keys)


def _huggingface(spec: Spec, task: Any, keys: Keys, start: dict[str, Tensor] | None) -> Policy:
    """A pretrained model; transformers, whose import takes seconds, is wanted by no other policy."""
    from grpo_ablate.policies.huggingface.policy import HuggingFace

    return HuggingFace(spec, task, keys, start)


POLICIES = {"tabular": _tabular, "stacked": Stacked, "huggingface": _huggingface}


def make_policy(spec: Spec, task: Any, keys: Keys, start: dict[str, Tensor] | None = None) -> Policy:
    """Return the policy that a spec's ``policy`` section describes, a member per seed.

    ``start`` are the parameters of a warm start by name, [M, ...] or [1, ...] for all members alike.
    """
    return POLICIES[spec.policy.name](spec, task, keys, start)
