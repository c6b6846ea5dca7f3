"""The mean reward of every round of one row, trained by this project and by trl's GRPOTrainer.

Both start from the row's warm start and meet the same prompts in the same rounds; what they sample is their own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.bench.job import language_task
from grpo_ablate.bench.ours import ObservedLoop
from grpo_ablate.bench.trl_settings import objective_arguments, quiet_arguments, training_arguments
from grpo_ablate.bench.trl_side import make_trainer
from grpo_ablate.bench.workload import model_folder
from grpo_ablate.errors import UserError
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys
from grpo_ablate.runs.warmstart import load_start
from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.schema import Spec, StackedPolicy


def trl_arguments(spec: Spec, where: str) -> dict[str, Any]:
    """Return GRPOConfig's settings of a spec, without those of a run.

    Raises:
        UserError: trl cannot train it, or the two cannot start alike; the sentence begins with ``where``.
    """
    policy = spec.policy
    if not isinstance(policy, StackedPolicy) or not policy.warmstart.steps or policy.warmstart.per_seed:
        raise UserError(
            f"{where}: both trainers start from one folder: expected policy.name stacked and a "
            "policy.warmstart that all seeds share."
        )
    if spec.reward.components:
        raise UserError(f"{where}: reward.components: expected none; both trainers earn the task's own reward.")
    return {**training_arguments(spec, where), **objective_arguments(spec, where)}


def ours(spec: Spec, seeds: range, results: Path) -> Tensor:
    """Return the mean raw reward of every round, float64 [M, rounds], seeds side by side."""
    # Nothing is measured on the way: the rollouts are what is compared.
    spec = replace(spec, {"evaluation": {"every": 1_000_000_000, "samples": 1, "final_samples": "same"}})
    task, keys = language_task(spec), Keys(torch.tensor(list(seeds)), spec.sampling.random_key)
    begin = load_start(results, spec, seeds, "grpo-ablate conform")
    assert begin is not None  # `trl_arguments` wants a warm start
    loop = ObservedLoop(spec, make_policy(spec, task, keys, begin.parameters), task, keys)
    loop.start()
    rounds = []
    while not loop.finished:
        loop.advance()
        rounds.append(loop.drawn.batch.reward.mean((1, 2)))
    return torch.stack(rounds, 1)


def theirs(spec: Spec, seed: int, results: Path, where: str) -> Tensor:
    """Return the same of one seed under trl, float64 [rounds]."""
    from transformers import TrainerCallback

    found: list[Tensor] = []

    class Rounds(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % spec.steps_per_round == 0:
                found.append(reward.rewards.mean())

    task, keys = language_task(spec), Keys(torch.tensor([seed]), spec.sampling.random_key)
    with tempfile.TemporaryDirectory() as output:
        settings = {**quiet_arguments(output, seed, "cpu"), **trl_arguments(spec, where)}
        trainer, reward = make_trainer(
            spec, task, model_folder(results, spec), keys, spec.rounds, settings, [Rounds()]
        )
        trainer.train()
    return torch.stack(found)
