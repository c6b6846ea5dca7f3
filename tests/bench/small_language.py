"""A very small language-model spec on the arithmetic task, and a reward that random weights can earn."""

from dataclasses import replace

import torch

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.registry import make_task

TASK = {"name": "arithmetic", "train_prompts": 64, "held_out": 8}
POLICY = {"name": "stacked", "hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48}


def small_spec(*, rounds=8, **sections):
    sampling = {"prompts": 4, "group_size": 4, "max_tokens": 6} | sections.pop("sampling", {})
    written = {
        "task": TASK,
        "policy": POLICY,
        "sampling": sampling,
        "evaluation": {"every": 1_000_000, "samples": 1},
        "update": {"inner_passes": 2, "minibatches": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.5, "max_grad_norm": 1.0},
        "budget": {"rollouts": rounds * sampling["prompts"] * sampling["group_size"]},
    }
    return Spec.model_validate(written | sections)


def earning(task):
    """Return the task with a reward that depends on the tokens, so that random weights get unequal rewards."""
    scored = task.score

    def score(prompts, tokens, token):
        reward = ((tokens * token).sum(-1) % 5).double()
        return replace(scored(prompts, tokens, token), reward=reward)

    task.score = score
    return task


class Followed(Loop):
    """A loop that remembers its rollouts and the groups of each minibatch, pass by pass."""

    def sample(self):
        self.drawn = super().sample()
        return self.drawn

    def deal(self, batch, inner_pass):
        groups, valid = super().deal(batch, inner_pass)
        if inner_pass == 0:
            self.dealt = []
        self.dealt.append(groups[0])
        return groups, valid


def followed(spec, seeds=range(1)):
    keys = Keys(torch.tensor(list(seeds)), spec.sampling.random_key)
    task = earning(make_task(spec.task))
    loop = Followed(spec, make_policy(spec, task, keys), task, keys)
    loop.start()
    return loop
