"""Run the algorithm's own functions on one batch file and keep every number on the way."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from grpo_ablate.algorithm import sampling
from grpo_ablate.algorithm.advantages import initial_running_mean
from grpo_ablate.algorithm.monitoring import round_metrics
from grpo_ablate.algorithm.objective import loss, prepare
from grpo_ablate.algorithm.records import Batch, Loss, Policy, Prepared, RewardDraws
from grpo_ablate.errors import UserError
from grpo_ablate.explain.batch_file import BatchFile, parse, read, shown
from grpo_ablate.metrics import combine, divide
from grpo_ablate.spec.combinations import refusal
from grpo_ablate.spec.schema import Reward, Switches

_DRAWN = ("noise", "random", "per-prompt-affine")


@dataclass(frozen=True)
class Explanation:
    """What the switches make of a batch; lists are by response in input order, then by token."""

    groups: list[Any]
    rewards: list[float | None]
    shaped: list[float | None]  # what entered the statistics; None where missing or the group was rejected
    logp: list[list[float]]
    advantages: list[list[float]]
    weights: list[list[float]]
    ratios: list[list[float]]
    mismatch: list[list[float]]  # factor on the policy term
    objective: list[list[float]]
    clipped: list[list[str | None]]  # the active bound: high, low or dual
    kl: list[list[float]]
    grad: list[list[float]]  # of the LOSS with respect to logp
    loss: float
    policy_loss: float
    kl_loss: float
    metrics: dict[str, float | None]
    notes: list[str]

    def as_json(self) -> str:
        """Return all of it as JSON; a number that is not finite is null."""
        return json.dumps(_finite(vars(self)), indent=2, allow_nan=False)


def run(path: Path, switches: Switches, as_json: bool) -> str:
    """Explain a batch file and return the answer as text or JSON; raises UserError for bad input."""
    from grpo_ablate.explain.text import format_text

    explanation = explain(read(path), switches, str(path))
    return explanation.as_json() if as_json else format_text(explanation, switches, str(path))


def explain(entries: list[Any], switches: Switches, source: str = "batch") -> Explanation:
    """Return what ``switches`` make of the responses ``entries`` (the list of a batch file).

    Transforms that draw random numbers draw them from a generator seeded with ``sampling.random_key``, in input
    order, not from those of a run. ``source`` names the file in errors (UserError).
    """
    reason = refusal(switches)
    if reason is not None:
        raise UserError(reason)
    file = parse(entries, source)
    _check(file, switches, source)
    # The file's reward is the whole of it: components are already weighted in.
    effective = switches.model_copy(update={"reward": switches.reward.model_copy(update={"components": {}})})
    generated = replace(file.batch, components={switches.sampling.filter_on: file.batch.reward})
    kept = sampling.accepted(generated, switches.sampling)
    batch = replace(generated, present=generated.present & kept.unsqueeze(-1))
    running = initial_running_mean(1, len(file.labels), switches.advantage)
    prepared = prepare(batch, effective, _draws(file, switches.sampling.random_key), running)
    _check_range(file, prepared, switches, source)
    logprobs = file.logprobs.clone().requires_grad_()
    step = loss(batch, prepared, Policy(logprobs, kl_exact=file.kl_exact), effective)
    (gradient,) = torch.autograd.grad(step.loss.sum(), logprobs)
    metrics = divide(combine(round_metrics(batch, prepared, generated, effective), step.metrics))
    shaped = prepared.shaped[0].tolist()
    return Explanation(
        groups=[response.group for response in file.responses],
        rewards=[response.reward for response in file.responses],
        shaped=[None if math.isnan(shaped[b][g]) else shaped[b][g] for b, g in file.place],
        logp=[response.logp for response in file.responses],
        advantages=file.ragged(prepared.advantages),
        weights=file.ragged(prepared.weights),
        ratios=file.ragged(step.ratio),
        mismatch=file.ragged(prepared.mismatch),
        objective=file.ragged(step.objective),
        clipped=_clipped(file, step),
        kl=file.ragged(step.kl_values),
        grad=file.ragged(gradient),
        loss=step.loss.item(),
        policy_loss=step.policy.item(),
        kl_loss=step.kl.item(),
        metrics={name: value.item() for name, value in metrics.items()},
        notes=_notes(file, batch, switches),
    )


def _check(file: BatchFile, switches: Switches, source: str) -> None:
    """Refuse what the switches need and the file does not have."""
    kl, process = switches.kl, switches.advantage.supervision == "process"
    needed = "kl_exact" if kl.estimator == "exact" else "ref_logp"
    for index, response in enumerate(file.responses):
        where = f"{source}: response {index}"
        if process and response.steps is None:
            raise UserError(
                f"{where}: advantage.supervision process needs 'steps' ([] for none), which is not there."
            )
        if not process and not response.has_reward:
            raise UserError(
                f"{where}: has 'steps' and no 'reward', but advantage.supervision is outcome; "
                "expected a 'reward', or advantage.supervision=process."
            )
        if kl.beta > 0 and getattr(response, needed) is None:
            raise UserError(
                f"{where}: kl.beta {kl.beta:g} with estimator {kl.estimator} needs '{needed}', which is not there."
            )
    if switches.update.entropy_coefficient != 0:
        raise UserError(
            f"{source}: update.entropy_coefficient is {switches.update.entropy_coefficient:g}, but a batch file "
            "has no entropies; expected update.entropy_coefficient=0."
        )


def _check_range(file: BatchFile, prepared: Prepared, switches: Switches, source: str) -> None:
    """Refuse rewards that leave float64's range on the way to an advantage."""
    for index, ((b, g), response) in enumerate(zip(file.place, file.responses, strict=True)):
        where, shaped = f"{source}: response {index}", prepared.shaped[0, b, g].item()
        if switches.advantage.supervision == "outcome" and response.reward is not None and math.isinf(shaped):
            raise UserError(
                f"{where}: its reward {response.reward:g} is {shaped:g} after reward.* and kl.beta; "
                "expected a number that float64 holds."
            )
        if not bool(prepared.advantages[0, b, g].isfinite().all()):
            raise UserError(
                f"{where}: its advantage is not finite: the rewards of its group, or its KL to the reference, "
                "are too large for float64."
            )


def _draws(file: BatchFile, key: int) -> RewardDraws:
    """Return the random numbers of the transforms, drawn in input order from one seed."""
    generator = torch.Generator().manual_seed(key)
    count = len(file.responses)
    normal = torch.randn(count, generator=generator, dtype=torch.float64)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    by_prompt = torch.rand(1, len(file.labels), 2, generator=generator, dtype=torch.float64)
    shape = file.batch.reward.shape
    slots_B, slots_G = torch.tensor(file.place).unbind(-1)
    padded = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    for target, values in zip(padded, (normal, uniform), strict=True):
        target[0, slots_B, slots_G] = values
    return RewardDraws(padded[0], padded[1], by_prompt)


def _clipped(file: BatchFile, step: Loss) -> list[list[str | None]]:
    high, low, dual = map(file.ragged, (step.clipped_high, step.clipped_low, step.clipped_dual))
    return [
        [
            "high" if up else "low" if down else "dual" if held else None
            for up, down, held in zip(*flags, strict=True)
        ]
        for flags in zip(high, low, dual, strict=True)
    ]


def _notes(file: BatchFile, batch: Batch, switches: Switches) -> list[str]:
    """Return what a reader should know before believing the numbers."""
    notes = []
    limit, longest = switches.sampling.max_tokens, max(len(response.logp) for response in file.responses)
    reads_limit = switches.reward.overlong == "soft" or (
        switches.update.reduction == "constant" and switches.update.constant == "max-tokens"
    )
    if reads_limit and longest > limit:
        notes.append(
            f"sampling.max_tokens is {limit}, but a response has {longest} tokens: "
            "set it to the limit of the run (--set sampling.max_tokens=...)"
        )
    advantage = switches.advantage
    compares = advantage.baseline in ("mean", "leave-one-out") and not advantage.function
    if compares and advantage.supervision == "outcome":
        sizes = (batch.present & ~batch.reward.isnan()).sum(-1)[0].tolist()
        alone = [shown(label) for label, size in zip(file.labels, sizes, strict=True) if size == 1]
        if alone:
            notes.append(
                f"one reward alone has nothing to be compared with, advantage 0: group {', '.join(alone)}"
            )
    rejected = (file.batch.present.any(-1) & ~batch.present.any(-1))[0].tolist()
    if any(rejected):
        names = ", ".join(shown(label) for label, out in zip(file.labels, rejected, strict=True) if out)
        notes.append(
            f"sampling.dynamic {switches.sampling.dynamic} rejects, and nothing is drawn anew: group {names}"
        )
    if switches.reward.transform in _DRAWN:
        notes.append(
            f"reward.transform {switches.reward.transform} draws from the seed sampling.random_key "
            f"{switches.sampling.random_key} here, not the numbers of a run"
        )
    if switches.reward.components != Reward().components:
        notes.append("'reward' is taken as the weighted sum of reward.components")
    if switches.advantage.baseline == "ema":
        notes.append("the running mean of every group is advantage.ema_initial here")
    return notes


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
