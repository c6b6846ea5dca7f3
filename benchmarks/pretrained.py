"""SmolLM2 on sums, here: how many it gets right untrained, and where a round's time goes with either engine.

``python benchmarks/pretrained.py accuracy`` answers every sum of two digits and 200 sums of a number of two digits
and one of one digit, eight times each at temperature 1. ``... rounds transformers`` and ``... rounds vllm`` train
rounds of ``experiments/smollm2-addition.yaml`` and print each round's seconds by part, tokens per second of the
rollouts, and how far the engine's log-probabilities are from the trainer's. In the project's root.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.policies.huggingface.agreement import NAMES
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.runs import checkpoint
from grpo_ablate.runs.mlflow_stream import Stream
from grpo_ablate.runs.numerics import settle
from grpo_ablate.runs.train import make_loop
from grpo_ablate.spec.identity import replace, spec_hash
from grpo_ablate.spec.resolve import find_row
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.registry import make_task

ROW = "experiments/smollm2-addition.yaml:group-std"
ANSWERS = 8


def accuracy(spec: Spec) -> None:
    """Print the share of right answers with its 95 % interval over sums, by size and for both in equal parts."""
    chosen = torch.randperm(900, generator=torch.Generator().manual_seed(0))[:200].tolist()
    sizes = {
        "one digit each": [(a, b) for a in range(10) for b in range(10)],
        "two digits and one": [(10 + number // 10, number % 10) for number in chosen],
    }
    sums = [each for found in sizes.values() for each in found]
    keys = Keys(torch.tensor([0]))
    task: Any = make_task(replace(spec, {"task": {"train_prompts": len(sums), "held_out": 2}}).task, spec.policy)
    task.text.sums = [*sums, *task.text.sums[-2:]]
    policy: Any = HuggingFace(spec, task, keys)
    prompts = torch.arange(len(sums))
    drawn = policy.draw(prompts, Draw(Purpose.EVALUATION, 0), ANSWERS, plain=True)
    scores = task.score(prompts[None], drawn.tokens[None], drawn.token[None])
    parts = scores.components["accuracy"][0].double().mean(1).split([len(found) for found in sizes.values()])
    for name, part in zip(sizes, parts, strict=True):
        print(f"{name}: {part.mean():.3f} +- {1.96 * error(part):.3f} ({len(part)} sums)")
    both = torch.stack([error(part) for part in parts]).square().sum().sqrt() / 2
    print(f"in equal parts: {torch.stack([part.mean() for part in parts]).mean():.3f} +- {1.96 * both:.3f}")


def error(values: Tensor) -> Tensor:
    """Return the standard error of a mean."""
    return values.std() / len(values) ** 0.5


def rounds(spec: Spec, engine: str, count: int) -> None:
    """Train rounds and print where their time went; the first warms up and is left out of the medians."""
    changes: dict[str, Any] = {
        "task": {"held_out": 2},
        "sampling": {"engine": engine},
        "evaluation": {"every": 1, "samples": 1, "final_samples": "same"},
        "budget": {"rollouts": count * spec.rollouts_per_round},
    }
    spec = replace(spec, changes)
    settle(spec)
    loop = make_loop(spec, range(1))
    policy: Any = loop.policy
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs" / "smollm2" / spec_hash(spec)[:8] / "seeds-0-0"
        with Stream(None, spec, testbed="smollm2", folder=folder) as stream:
            stream(loop, loop.start())
            while not loop.finished:
                parts, own, tokens = dict(loop.seconds), dict(policy.seconds), int(loop.tokens)
                line = loop.advance()
                assert line is not None
                began = time.perf_counter()
                stream(loop, line)
                logging = time.perf_counter() - began
                seconds = {key: policy.seconds[key] - own[key] for key in own}
                seconds |= {"training": loop.seconds["training"] - parts["training"], "logging": logging}
                drawn = int(loop.tokens) - tokens
                gaps = {part: line.values[metric].item() for part, metric in NAMES.items()}
                found.append(seconds | {"tokens/s": drawn / seconds["rollout"], "tokens": drawn})
                print(
                    f"{engine}, round {loop.round}: " + ", ".join(f"{k} {v:.3g}" for k, v in found[-1].items()),
                    f"| log-probabilities apart by {gaps['mean']:.1e}, at most {gaps['max']:.1e}",
                    flush=True,
                )
        began = time.perf_counter()
        checkpoint.save(Path(name) / "checkpoint.safetensors", loop.state(), {}, {})
        saving = time.perf_counter() - began
    middle = {key: median(each[key] for each in found[1:]) for key in found[0]}
    print(f"{engine}, medians: " + ", ".join(f"{key} {value:.3g}" for key, value in middle.items()))
    print(f"a checkpoint takes {saving:.1f} s")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accuracy", "rounds"])
    parser.add_argument("engine", nargs="?", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    spec = find_row(ROW)[1].effective
    if arguments.what == "accuracy":
        accuracy(spec)
    else:
        rounds(spec, arguments.engine, arguments.rounds)


if __name__ == "__main__":
    main()
