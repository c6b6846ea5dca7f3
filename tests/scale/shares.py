"""Runs of small policies divided over processes: as a script, one process of torchrun's; else, the same by one.

The table of logits in float64 with one member and with three, the stacked transformer, and a pretrained model.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("training", "policies")]
import pretrained_specs
from language_specs import language_spec, warm
from small_task import Small
from stacked_specs import make as make_stacked
from stacked_specs import spec as stacked_spec
from training_specs import DEMANDING, demanding

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.algorithm.packing import pack
from grpo_ablate.algorithm.records import Steps
from grpo_ablate.parallel.group import Group, joined
from grpo_ablate.parallel.policy import DividedPolicy, FirstScores
from grpo_ablate.policies.huggingface.loading import DTYPES
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.tabular import Tabular
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Evaluation, Kl, Optimizer, Reward, Spec, Update
from grpo_ablate.tasks.protocol import Scores
from grpo_ablate.tasks.registry import make_task

# Name -> which of ``slots`` groups the process ``rank`` of two works on.
SHARES = {
    "in turn": lambda rank, slots: torch.arange(slots) % 2 == rank,
    "halves": lambda rank, slots: (torch.arange(slots) >= slots // 2) == bool(rank),
    "one and the rest": lambda rank, slots: (torch.arange(slots) > 0) == bool(rank),
    "all and none": lambda rank, slots: torch.full((slots,), rank == 0),
}
# Random weights give no right answer; rewards that are random numbers teach all the same.
COLD = {
    "policy": warm(steps=0),
    "reward": {"transform": "random"},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},  # AdamW makes a step of what rounding leaves of a 0
}
LANGUAGE: dict[str, dict[str, Any]] = {
    "token-mean, masked": {
        "update": {"reduction": "token-mean", "entropy_coefficient": 0.01},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "reward": {"overlong": "mask", "masked_in_denominator": False},
    },
    "sequence ratio, batch statistics, missing rewards": {
        "update": {"surrogate": "sequence", "staleness": 1},
        "advantage": {"baseline": "batch", "scale": "batch-std", "eps": 1e-4},
        "reward": {"transform": "identity"},
    },
    "exact KL, process supervision": {
        "kl": {"beta": 0.1, "estimator": "exact", "refresh_reference": 2},
        "advantage": {"supervision": "process"},
        "reward": {"transform": "identity"},
    },
    "KL in the reward, top-p": {
        "kl": {"beta": 0.1, "place": "reward-before"},
        "sampling": {"top_p": 0.9, "temperature": 0.8},
    },
    "partial rewards, groups of two": {
        "task": {"name": "translation"},
        "sampling": {"prompts": 8, "group_size": 2},
        "reward": {"transform": "identity"},
        "update": {"minibatches": 3},
    },
}


class Stepped:
    """A task that takes the first and the last token of a response for steps, and their numbers for scores."""

    def __init__(self, task: Any):
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        length = token.sum(-1)
        end = torch.stack([torch.zeros_like(length), (length - 1).clamp(min=0)], -1)
        steps = Steps(end, tokens.gather(-1, end).double() % 5, (length > 1)[..., None].expand_as(end))
        return replace(self.task.score(prompts, tokens, token), steps=steps)


class Unsure:
    """A task whose reward is the first token's number, and nothing at all where that is 0 modulo 4."""

    def __init__(self, task: Any):
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        number = tokens[..., 0].double()
        missing = number % 4 == 0
        return replace(self.task.score(prompts, tokens, token), reward=torch.where(missing, torch.nan, number % 5))


# Of untrained models, which give no right answer and no right step.
TASKS = {
    "transformer: exact KL, process supervision": Stepped,
    "transformer: sequence ratio, batch statistics, missing rewards": Unsure,
}


class DivisibleTabular(Tabular):
    """Tabular, whose gradients can be added up."""

    def gradients(self) -> list[Tensor]:
        if self.logits.grad is None:
            self.logits.grad = torch.zeros_like(self.logits)
        return [self.logits.grad]


class DivisibleStacked(Stacked):
    """Stacked, whose gradients can be added up."""

    def gradients(self) -> list[Tensor]:
        return [self.gradient]


# Of a pretrained model: sections of the spec and settings of the policy.
PRETRAINED: dict[str, dict[str, Any]] = {
    "token-mean, minibatches": {"update": Update(reduction="token-mean", inner_passes=2, minibatches=2)},
    "KL, small microbatches": {"kl": Kl(beta=0.1), "policy": {"microbatch_tokens": 24}},
    "adapters, shared prompts, top-p": {
        "policy": {"lora": {"rank": 2, "alpha": 8.0}, "share_prompts": True},
        "sampling": {"top_p": 0.9, "temperature": 0.8},
    },
    "resample, masked": {
        "sampling": {"dynamic": "resample", "max_resample": 1},
        "reward": Reward(overlong="mask", masked_in_denominator=False),
    },
}


def save_model(folder: Path) -> None:
    """Write a tiny model of random weights, whose log-probabilities are near 2: float32 knows them to 2e-7."""
    pretrained_specs.saved(folder, pretrained_specs.scattered(make_stacked(stacked_spec(), 5), 0.05))


def cases(folder: Path) -> dict[str, tuple[Spec, list[int]]]:
    """Return name -> spec and seeds: one member, as a pretrained model has, and one case with three.

    ``folder`` is that of `save_model`.
    """
    found = {f"tabular: {name}": (demanding(name), [5]) for name in DEMANDING}
    found["tabular: three members"] = (demanding("resample"), [3, 11, 4])
    for name, changes in LANGUAGE.items():
        sections = {key: COLD.get(key, {}) | changes.get(key, {}) for key in COLD | changes}
        found[f"transformer: {name}"] = (language_spec(**sections), [7])
    for name, sections in PRETRAINED.items():
        # Short steps: a long one enlarges what rounding leaves, and AdamW makes one of a gradient that is 0.
        plain = {"evaluation": Evaluation(every=2, samples=2), "optimizer": Optimizer(learning_rate=0.05)}
        found[f"pretrained: {name}"] = (pretrained_specs.spec(folder, 3, **plain, **sections), [5])
    return found


NAMES = [
    *(f"tabular: {name}" for name in (*DEMANDING, "three members")),
    *(f"transformer: {name}" for name in LANGUAGE),
    *(f"pretrained: {name}" for name in PRETRAINED),
]
POLICIES: dict[str, Any] = {"tabular": DivisibleTabular, "stacked": DivisibleStacked, "huggingface": HuggingFace}


def trained(
    name: str, spec: Spec, seeds: list[int], group: Group | None = None, share: str = ""
) -> dict[str, Any]:
    """Train; return the columns of the record, the parameters, and what was drawn and learned in each step.

    A pretrained model computes its forward pass in float64 here: what rounding does to float32 depends on which
    responses share a microbatch, and is as large as the differences that are looked for.
    """
    with patch.dict(DTYPES, float32=torch.float64):
        return _trained(name, spec, seeds, group, share)


def _trained(name: str, spec: Spec, seeds: list[int], group: Group | None, share: str) -> dict[str, Any]:
    keys = Keys(torch.tensor(seeds), spec.sampling.random_key)
    task: Any = Small() if spec.policy.name == "huggingface" else make_task(spec.task)
    task = TASKS.get(name, lambda task: task)(task)
    own: Any = POLICIES[spec.policy.name](spec, task, keys)
    gradients: list[Tensor] = []
    plain_step = own.step

    def step(members: Tensor) -> Tensor:
        gradients.extend(gradient.clone() for gradient in own.gradients())
        return plain_step(members)

    own.step = step
    policy = own
    if group is not None:
        task = FirstScores(task, group)
        policy = DividedPolicy(own, group, lambda slots: SHARES[share](group.rank, slots))
    loop, batches = Loop(spec, policy, task, keys), []
    loop.start()
    while not loop.finished:
        loop.advance(lambda seen: batches.append(pack(seen.batch) | pack(seen.prepared)))
    return {
        "columns": loop.history.columns(seeds),
        "parameters": loop.policy.parameters(),
        "gradients": gradients,
        "batches": batches,
        "state": loop.state(),
    }


def main() -> None:
    """Train every case in every division; write what the processes found, a file each."""
    folder = Path(sys.argv[1])
    with joined() as group:
        torch.set_num_threads(1)
        found = {
            (name, share): trained(name, spec, seeds, group, share)
            for name, (spec, seeds) in cases(folder / "model").items()
            for share in SHARES
        }
        torch.save(found, folder / f"{group.rank}.pt")


if __name__ == "__main__":
    main()
