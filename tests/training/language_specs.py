"""Small specs of language models: a transformer of some thousand parameters, a warm start of a few steps."""

from __future__ import annotations

from typing import Any

from grpo_ablate.spec.schema import Spec

SHAPE = {"name": "stacked", "hidden": 32, "layers": 1, "heads": 1, "kv_heads": 1, "intermediate": 32}
WARM = {"steps": 20, "demonstrations": 64, "batch": 16}


def sections(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return a spec as written: four rounds of 4 prompts x 4 responses, ``changes`` merged section by section."""
    written: dict[str, Any] = {
        "task": {"name": "arithmetic", "held_out": 16, "train_prompts": 32},
        "policy": SHAPE | {"warmstart": WARM},
        "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 12},
        "evaluation": {"every": 2, "samples": 2},
        "update": {"inner_passes": 2, "minibatches": 2},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "max_grad_norm": 1.0},
        "budget": {"rollouts": 64},
    }
    for section, keys in changes.items():
        written[section] = written.get(section, {}) | keys
    return written


def language_spec(**changes: dict[str, Any]) -> Spec:
    """Return the spec of `sections`."""
    return Spec.model_validate(sections(**changes))


def warm(**changes: Any) -> dict[str, Any]:
    """Return a policy section with another warm start."""
    return {"warmstart": WARM | changes}
