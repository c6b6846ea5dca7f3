"""The side that trains one model with transformers' ``generate`` and the hand-written step."""

from __future__ import annotations

import time

import torch

from grpo_ablate.algorithm.orders import ORDERS
from grpo_ablate.bench.hand_written import HandWritten
from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Pacer, Round
from grpo_ablate.bench.workload import model_folder
from grpo_ablate.rng import Keys


def run(job: Job, pacer: Pacer) -> None:
    """Train one model on the prompts that this project's model of the same seed meets."""
    from transformers import LlamaForCausalLM

    spec, task = job.spec, job.task
    model = LlamaForCausalLM.from_pretrained(model_folder(job.results_folder, spec))
    trainer = HandWritten(model, task, spec, job.device)
    count = spec.sampling.prompts
    keys = Keys(torch.tensor(list(job.seeds)), spec.sampling.random_key)
    order = ORDERS[spec.sampling.prompt_order](keys, count, task.prompt_count)
    torch.manual_seed(job.seeds[0])
    wanted = torch.ones(1, count, dtype=torch.bool)
    pacer.ready()
    number = 0
    while True:
        began = time.perf_counter()
        prompts = order.draw(number, 0, wanted, ~wanted)[0]
        drawn = trainer.sample(prompts)
        sampled = time.perf_counter()
        trainer.train(drawn)
        trained = time.perf_counter()
        number += 1
        lengths = drawn.scored.sum(1).cpu().view(1, count, -1)
        _, prompt_lengths = task.prompt_tokens(prompts[None])
        learns = (drawn.advantages.view(1, count, -1) != 0).any(-1).cpu()
        pacer.round(Round(prompt_lengths, lengths, learns, sampled - began, trained - sampled))
