"""The rows and small policies that several propositions share."""

from __future__ import annotations

from typing import Any

import torch

from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.policy_file import parse
from grpo_ablate.spec.schema import Switches

GROUP_STD: dict[str, Any] = {}
MEAN_ONLY: dict[str, Any] = {"advantage": {"scale": "none"}}
LEAVE_ONE_OUT: dict[str, Any] = {"advantage": {"baseline": "leave-one-out", "scale": "none"}}
NO_BASELINE: dict[str, Any] = {"advantage": {"baseline": "none", "scale": "none"}}


def row(group_size: int, *layers: dict[str, Any], **update: Any) -> Switches:
    """Return switches: group-std, ddof 0, eps 0, clip .2/.2, and full scores (``sequence-sum``), with changes.

    ``layers`` are sections of switches, later ones win key by key; ``update`` are keys of that section.
    """
    sections: dict[str, dict[str, Any]] = {
        "sampling": {"group_size": group_size},
        "update": {"reduction": "sequence-sum"},
    }
    for layer in (*layers, {"update": update}):
        for section, keys in layer.items():
            sections[section] = {**sections.get(section, {}), **keys}
    return Switches.model_validate(sections)


def constant(value: float) -> dict[str, Any]:
    """Return the section of a constant baseline."""
    return {"advantage": {"baseline": "constant", "constant": value, "scale": "none"}}


def categorical(*responses: dict[str, Any]) -> ExactPolicy:
    """Return one prompt over responses in the form of a policy file."""
    return parse({"prompts": [{"responses": list(responses)}]})


def coin(success: float, **better: Any) -> ExactPolicy:
    """Return two responses of one token: reward 1 with probability ``success``, else 0."""
    return categorical(
        {"name": "right", "probability": success, "reward": 1} | better,
        {"name": "wrong", "probability": 1 - success, "reward": 0},
    )


def random_policy(seed: int, responses: int = 4, prompts: int = 1, reference: bool = False) -> ExactPolicy:
    """Return standard normal logits and rewards by a seed; with ``reference``, a random one."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> list[float]:
        return torch.randn(responses, generator=generator, dtype=torch.float64).tolist()

    document = []
    for _ in range(prompts):
        entries = [{"logit": logit, "reward": reward} for logit, reward in zip(normal(), normal(), strict=True)]
        if reference:
            law = torch.tensor(normal(), dtype=torch.float64).softmax(0).tolist()
            entries = [entry | {"reference": share} for entry, share in zip(entries, law, strict=True)]
        document.append({"responses": entries})
    return parse({"prompts": document})
