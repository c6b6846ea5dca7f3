"""This project's side of the benchmark: M models of a process through the one training loop."""

from __future__ import annotations

import torch

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.algorithm.rollout import Rollout
from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Pacer, Round
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys
from grpo_ablate.runs.warmstart import load_start


class ObservedLoop(Loop):
    """A loop that remembers the lengths of the round it trains on."""

    drawn: Rollout

    def sample(self) -> Rollout:
        self.drawn = super().sample()
        return self.drawn


def run(job: Job, pacer: Pacer) -> None:
    """Train ``job.members`` models, a seed each, round after round."""
    spec, task = job.spec, job.task
    keys = Keys(torch.tensor(list(job.seeds)), spec.sampling.random_key)
    begin = load_start(job.results_folder, spec, job.seeds, "grpo-ablate bench")
    policy = make_policy(spec, task, keys, None if begin is None else begin.parameters)
    loop = ObservedLoop(spec, policy, task, keys)
    pacer.evaluate = lambda samples: policy.evaluate(samples, loop.round)
    pacer.ready()
    loop.start()
    while True:
        before = dict(loop.seconds)
        loop.advance()
        batch = loop.drawn.batch
        _, prompts = task.prompt_tokens(batch.prompts)
        took = {part: loop.seconds[part] - before[part] for part in before}
        learns = (batch.reward != batch.reward[..., :1]).any(-1)
        pacer.round(Round(prompts, batch.token.sum(-1), learns, took["sampling"], took["training"]))
