"""Runs of small policies divided over processes: as a script, one process of torchrun's; else, the same by one.

Three policies: the table of logits in float64, a transformer in float32, and several members of either.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "training"))
from language_specs import language_spec, warm
from training_specs import DEMANDING, demanding

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.algorithm.packing import pack
from grpo_ablate.parallel.group import Group, joined
from grpo_ablate.parallel.policy import DividedPolicy, FirstScores
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.tabular import Tabular
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.registry import make_task

# Name -> which of ``slots`` groups the process ``rank`` of two works on.
SHARES = {
    "in turn": lambda rank, slots: torch.arange(slots) % 2 == rank,
    "halves": lambda rank, slots: (torch.arange(slots) >= slots // 2) == bool(rank),
    "one and the rest": lambda rank, slots: (torch.arange(slots) > 0) == bool(rank),
    "all and none": lambda rank, slots: torch.full((slots,), rank == 0),
}
# Random weights give no right answer; rewards that are random numbers teach all the same.
COLD = {"policy": warm(steps=0), "reward": {"transform": "random"}}
LANGUAGE: dict[str, dict[str, Any]] = {
    "token-mean, masked": {
        "update": {"reduction": "token-mean", "entropy_coefficient": 0.01},
        "reward": {"overlong": "mask", "masked_in_denominator": False},
    },
    "sequence ratio, batch statistics": {
        "update": {"surrogate": "sequence", "staleness": 1},
        "advantage": {"baseline": "batch", "scale": "batch-std", "eps": 1e-4},
    },
    "exact KL, process supervision": {
        "kl": {"beta": 0.1, "estimator": "exact", "refresh_reference": 2},
        "advantage": {"supervision": "process"},
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


def cases() -> dict[str, tuple[Spec, list[int]]]:
    """Return name -> spec and seeds: one member, as a pretrained model has, and one case with three."""
    found = {f"tabular: {name}": (demanding(name), [5]) for name in DEMANDING}
    found["tabular: three members"] = (demanding("resample"), [3, 11, 4])
    for name, changes in LANGUAGE.items():
        sections = {key: COLD.get(key, {}) | changes.get(key, {}) for key in COLD | changes}
        found[f"transformer: {name}"] = (language_spec(**sections), [7])
    return found


def trained(spec: Spec, seeds: list[int], group: Group | None = None, share: str = "") -> dict[str, Any]:
    """Train; return the columns of the record, the parameters, and what was drawn and learned in each step."""
    keys = Keys(torch.tensor(seeds), spec.sampling.random_key)
    task: Any = make_task(spec.task)
    own: Any = (DivisibleTabular if spec.policy.name == "tabular" else DivisibleStacked)(spec, task, keys)
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
    with joined() as group:
        torch.set_num_threads(1)
        found = {
            (name, share): trained(spec, seeds, group, share)
            for name, (spec, seeds) in cases().items()
            for share in SHARES
        }
        torch.save(found, Path(sys.argv[1]) / f"{group.rank}.pt")


if __name__ == "__main__":
    main()
