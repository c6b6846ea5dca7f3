"""Small specs for the training tests: unequal prompts, so that members accept different groups."""

import torch

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.registry import make_task

QUALITIES = ([0, 0.35, 0.7, 1], [0, 1], [0.2, 0.9, 0.9], [1, 0.1, 0, 0.5], [0.3, 0.6, 1])


def task(qualities=QUALITIES):
    return {
        "prompts": [
            {
                "source": f"sentence {row}",
                "target": "French",
                "candidates": [{"text": f"{row}-{c}", "quality": float(q)} for c, q in enumerate(values)],
            }
            for row, values in enumerate(qualities)
        ]
    }


def make_spec(*, rounds=12, qualities=QUALITIES, **sections):
    sampling = {"prompts": 4, "group_size": 4} | sections.pop("sampling", {})
    budget = {"rollouts": rounds * sampling["prompts"] * sampling["group_size"]}
    written = {"task": task(qualities), "sampling": sampling, "budget": budget} | sections
    written.setdefault("optimizer", {"learning_rate": 0.5})
    return Spec.model_validate(written)


def make_loop(spec, seeds):
    keys = Keys(torch.tensor(list(seeds)), spec.sampling.random_key)
    task = make_task(spec.task)
    return Loop(spec, make_policy(spec, task, keys), task, keys)


def finish(loop, start=True):
    if start:
        loop.start()
    while not loop.finished:
        loop.advance()
    return loop


# Every part of the loop that carries something from round to round, or may couple members.
DEMANDING = {
    "plain": {},
    "drop": {"sampling": {"dynamic": "drop", "prompt_order": "each-once"}},
    "resample": {"sampling": {"dynamic": "resample", "max_resample": 2}},
    "resample-each-once": {"sampling": {"dynamic": "resample", "prompt_order": "each-once"}},
    "resample-iid": {"sampling": {"dynamic": "resample", "prompt_order": "iid"}},
    "staleness": {"update": {"staleness": 2}, "sampling": {"dynamic": "resample"}},
    "ema": {"advantage": {"baseline": "ema", "scale": "batch-std", "eps": 1e-4}},
    "minibatches": {
        "update": {"minibatches": 2, "inner_passes": 2},
        "sampling": {"dynamic": "drop"},
        "optimizer": {
            "name": "adamw",
            "learning_rate": 0.1,
            "warmup": 3,
            "schedule": "cosine",
            "max_grad_norm": 0.1,
        },
    },
    "kl": {"kl": {"beta": 0.1, "estimator": "exact", "place": "reward-after", "refresh_reference": 4}},
    "noise": {"reward": {"transform": "noise", "noise_std": 0.2}, "sampling": {"top_k": 2, "temperature": 0.7}},
    "sampled-evaluation": {"evaluation": {"every": 3, "samples": 4}, "reward": {"transform": "per-prompt-affine"}},
}


def demanding(name, **more):
    sections = {key: dict(value) for key, value in DEMANDING[name].items()}
    for key, value in more.items():
        sections[key] = sections.get(key, {}) | value if isinstance(value, dict) else value
    return make_spec(**sections)
