"""The rows and small policies that several propositions share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.algorithm.objective import prepare
from grpo_ablate.algorithm.records import Batch, RewardDraws, Steps
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


def advantages(
    switches: Switches, rewards: Sequence[float], steps: Steps | None = None, length: int = 1
) -> Tensor:
    """Return the advantages that one group's rewards [G] get, float64 [G, T], T = ``length`` tokens each.

    >>> [round(advantage, 6) for advantage in advantages(row(4), [1, 0, 1, 1])[:, 0].tolist()]
    [0.57735, -1.732051, 0.57735, 0.57735]
    """
    shape = (1, 1, len(rewards), length)
    zeros = torch.zeros(shape, dtype=torch.float64)
    token = torch.ones(shape, dtype=torch.bool)
    batch = Batch(
        prompts=torch.zeros(1, 1, dtype=torch.int64),
        tokens=zeros.long(),
        token=token,
        present=token[..., 0],
        truncated=~token[..., 0],
        reward=torch.tensor(rewards, dtype=torch.float64).view(shape[:3]),
        components={},
        sampler_logprobs=zeros,
        old_logprobs=zeros,
        steps=steps,
    )
    nothing = zeros[..., 0]
    draws = RewardDraws(nothing, nothing, torch.zeros(1, 1, 2, dtype=torch.float64))
    return prepare(batch, switches, draws).advantages[0, 0]


# Three tokens at most; right if the last word before the end (or the limit) is yes.
SHORT_AND_LONG: dict[str, Any] = {
    "vocabulary": ["yes", "no", "end"],
    "horizon": 3,
    "logits": {"": [0.4, 0.2, -1.0], "yes": [0.0, 0.0, 0.5], "no": [0.1, 0.0, 0.3]},
    "rewards": {
        "yes end": 1, "yes yes end": 1, "no yes end": 1,
        "yes yes yes": 1, "yes no yes": 1, "no yes yes": 1, "no no yes": 1,
    },
    "other_reward": 0,
}  # fmt: skip


def tree(**changes: Any) -> ExactPolicy:
    """Return the token tree above, lengths 1 to 3, with keys changed."""
    return parse({"prompts": [{"tree": SHORT_AND_LONG | changes}]})


def binomial(size: int, success: float, value: Callable[[float], float]) -> float:
    """Return E value(C / G) for C ~ Binomial(G, p), as a plain sum."""
    return math.fsum(
        math.comb(size, c) * success**c * (1 - success) ** (size - c) * value(c / size) for c in range(size + 1)
    )


def spread(share: float) -> float:
    """Return the standard deviation of a group of zeros and ones with that share of ones, divisor G."""
    return math.sqrt(share * (1 - share))
