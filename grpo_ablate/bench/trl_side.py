"""The side that trains one model with trl's GRPOTrainer, set to the same work.

The trainer keeps its own formula (ddof 1, eps 1e-4): what is compared is the work, not the numbers. Nothing is
logged, saved or evaluated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grpo_ablate.algorithm.orders import ORDERS
from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Pacer, Round
from grpo_ablate.bench.trl_settings import optimizer_arguments, quiet_arguments
from grpo_ablate.bench.workload import model_folder
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.protocol import LanguageTask

LOSS_TYPES = {"sequence-mean": "grpo", "token-mean": "bnpo", "constant": "dr_grpo"}


class RewardFunction:
    """The task's reward as trl asks for it; remembers what became of the last round."""

    __name__ = "task_reward"

    def __init__(self, task: LanguageTask, group_size: int):
        self.task, self.group_size = task, group_size
        self.prompts = self.lengths = self.rewards = self.learns = torch.empty(0)

    def __call__(self, *, completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float | None]:
        """Score the G completions of each prompt, which stand side by side."""
        self.prompts = torch.tensor(number).view(1, -1, self.group_size)[..., 0]
        lengths = torch.tensor([len(ids) for ids in completion_ids])
        tokens = pad_sequence([torch.tensor(ids) for ids in completion_ids], True, self.task.pad)
        shape = (1, -1, self.group_size)
        scored = torch.arange(tokens.shape[1]) < lengths[:, None]
        self.lengths = lengths.view(shape)
        scores = self.task.score(
            self.prompts, tokens.view(*shape, tokens.shape[1]), scored.view(*shape, tokens.shape[1])
        )
        self.rewards = scores.reward
        self.learns = (scores.reward != scores.reward[..., :1]).any(-1)
        return list(scores.reward.flatten().tolist())


def arguments(spec: Spec, rounds: int, seed: int, folder: str, device: str) -> dict[str, Any]:
    """Return the trainer's settings under which a round is ``spec``'s: same batches, same optimiser steps."""
    sampling, update = spec.sampling, spec.update
    return {
        **quiet_arguments(folder, seed, device),
        **optimizer_arguments(spec),
        "max_steps": rounds * spec.steps_per_round,
        "per_device_train_batch_size": spec.rollouts_per_round // update.minibatches,
        "steps_per_generation": update.minibatches,
        "num_iterations": update.inner_passes,
        "gradient_accumulation_steps": 1,
        "num_generations": sampling.group_size,
        "max_completion_length": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "beta": 0.0,
        "epsilon": update.clip_low,
        "epsilon_high": update.clip_high,
        "loss_type": LOSS_TYPES[update.reduction],
        "scale_rewards": "group" if spec.advantage.scale == "group-std" else "none",
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": spec.optimizer.warmup,
    }


def prompt_numbers(spec: Spec, task: LanguageTask, keys: Keys, rounds: int) -> Tensor:
    """Return the prompts of the coming rounds in this project's order, int64 [rounds B]."""
    count = spec.sampling.prompts
    order = ORDERS[spec.sampling.prompt_order](keys, count, task.prompt_count)
    wanted = torch.ones(1, count, dtype=torch.bool)
    return torch.cat([order.draw(number, 0, wanted, ~wanted)[0] for number in range(rounds)])


def prompt_texts(task: LanguageTask, numbers: Tensor, tokenizer: Any) -> list[str]:
    """Return the prompts ``numbers`` int64 [N] as texts; raises ValueError where they would be read otherwise."""
    tokens, lengths = task.prompt_tokens(numbers)
    ids = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    texts: list[str] = tokenizer.batch_decode(ids)
    if tokenizer(texts)["input_ids"] != ids:
        raise ValueError("the tokenizer does not read back the prompts that it wrote")
    return texts


def make_trainer(
    spec: Spec,
    task: LanguageTask,
    model: Path,
    keys: Keys,
    rounds: int,
    settings: dict[str, Any],
    callbacks: Sequence[Any],
) -> tuple[Any, RewardFunction]:
    """Return trl's trainer of the transformers folder ``model``, and the reward that it will call.

    It meets the prompts that this project's model of the same key meets, in the same order. ``settings`` are
    GRPOConfig's.
    """
    from datasets import Dataset  # type: ignore[import-untyped]  # it ships no types
    from transformers import AutoTokenizer, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    numbers = prompt_numbers(spec, task, keys, rounds)
    texts = prompt_texts(task, numbers, tokenizer)
    reward = RewardFunction(task, spec.sampling.group_size)
    trainer = GRPOTrainer(
        LlamaForCausalLM.from_pretrained(model),
        reward,
        GRPOConfig(**settings),
        Dataset.from_dict({"prompt": texts, "number": numbers.tolist()}),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    return trainer, reward


def run(job: Job, pacer: Pacer) -> None:
    """Train one model on the prompts that this project's model of the same seed meets."""
    from transformers import TrainerCallback

    spec, task, rounds = job.spec, job.task, job.spec.rounds
    keys = Keys(torch.tensor(list(job.seeds)), spec.sampling.random_key)

    class Rounds(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            pacer.ready()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % spec.steps_per_round == 0:
                pacer.round(Round(task.prompt_tokens(reward.prompts)[1], reward.lengths, reward.learns))

    with tempfile.TemporaryDirectory() as output:
        settings = arguments(spec, rounds, job.seeds[0], output, job.device)
        trainer, reward = make_trainer(
            spec, task, model_folder(job.results_folder, spec), keys, rounds, settings, [Rounds()]
        )
        trainer.train()
