"""What is recorded of a round and of an optimiser step, each as a sum and what it is divided by.

Sums of one shape are stacked and summed in one operation: these run in every round of runs that take milliseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.algorithm import mismatch
from grpo_ablate.algorithm.kl import k3
from grpo_ablate.algorithm.records import Batch, Metric, Policy, Prepared
from grpo_ablate.algorithm.rewards import raw_reward
from grpo_ablate.algorithm.sampling import filter_values
from grpo_ablate.algorithm.surrogates import Inputs, Outputs
from grpo_ablate.metrics import COMPONENT
from grpo_ablate.spec.schema import Switches


@torch.no_grad()
def step_metrics(
    batch: Batch, prepared: Prepared, policy: Policy, inputs: Inputs, outputs: Outputs, parts: dict[str, Tensor]
) -> dict[str, Metric]:
    """Return the metrics of one optimiser step over its trained tokens; ``parts`` are losses [M] by name."""
    trained = prepared.weights != 0
    flat = outputs.flat | (prepared.advantages == 0) | (prepared.mismatch == 0)
    ratio = outputs.ratio.detach()
    shares = torch.stack([trained, outputs.high, outputs.low, outputs.dual, flat]) & trained
    count, high, low, dual, without = shares.sum((2, 3, 4), dtype=torch.float64)
    values = {"train/ratio": ratio, "train/ratio_square": ratio.square(), "train/kl_old": k3(inputs.log_ratio)}
    if batch.reference_logprobs is not None:
        values["train/kl_reference"] = inputs.log_ratio.exp() * k3(batch.reference_logprobs - inputs.logprobs)
    if policy.entropy is not None:
        values["train/entropy"] = policy.entropy
    if policy.kl_exact is not None:
        values["train/kl_reference_exact"] = policy.kl_exact
    stacked = torch.stack([value.double() for value in values.values()])
    sums = torch.where(trained, stacked, 0.0).sum((2, 3, 4))
    result = {name: Metric(total, count) for name, total in zip(values, sums, strict=True)}
    result |= {
        "train/clip_fraction_high": Metric(high, count),
        "train/clip_fraction_low": Metric(low, count),
        "train/clip_fraction_dual": Metric(dual, count),
        "train/no_gradient": Metric(without, count),
        "train/ratio_max": Metric(torch.where(trained, ratio, -torch.inf).amax((1, 2, 3)), count),
        "train/ratio_min": Metric(torch.where(trained, ratio, torch.inf).amin((1, 2, 3)), count),
    }
    one = (count > 0).double()
    return result | {name: Metric(part.detach(), one) for name, part in parts.items()}


@torch.no_grad()
def round_metrics(batch: Batch, prepared: Prepared, generated: Batch, switches: Switches) -> dict[str, Metric]:
    """Return the metrics of one round before its first optimiser step.

    ``batch`` and ``prepared`` are the accepted groups; ``generated`` everything that was drawn, rejected groups
    and earlier attempts included (any number of groups on the axis B, present where they exist).
    """
    sequences, groups, tokens = _generated(generated, switches)
    accepted = torch.where(batch.present, batch.token.sum(-1), 0).sum((1, 2), dtype=torch.float64)
    drawn, trained = sequences["present"], batch.present.sum((1, 2), dtype=torch.float64)
    group_count = groups["present"]
    trained_groups = batch.present.any(-1).sum(1, dtype=torch.float64)
    known = batch.present & ~prepared.shaped.isnan()
    result = {
        "train/reward_raw": Metric(sequences["reward"], sequences["known"]),
        "train/reward_shaped": Metric(
            torch.where(known, prepared.shaped, 0.0).sum((1, 2)), known.sum((1, 2), dtype=torch.float64)
        ),
        "train/reward_missing": Metric(drawn - sequences["known"], drawn),
        "train/groups_all_wrong": Metric(groups["wrong"], group_count),
        "train/groups_all_right": Metric(groups["right"], group_count),
        "train/groups_constant_other": Metric(groups["other"], group_count),
        "train/groups_constant_predicted": Metric(groups["predicted"], groups["predictable"]),
        "train/groups_accepted": Metric(trained_groups, group_count),
        "train/rollouts_discarded": Metric(drawn - trained, drawn),
        "train/tokens_discarded": Metric(tokens - accepted, tokens),
        "train/length": Metric(sequences["length"], drawn),
        "train/length_std": Metric(sequences["length_deviation"], drawn),
        "train/length_right": Metric(sequences["length_right"], sequences["right"]),
        "train/length_wrong": Metric(sequences["length_wrong"], sequences["wrong"]),
        "train/truncated": Metric(sequences["truncated"], drawn),
    }
    return result | _mismatch(batch, prepared, switches) | _steps(batch, trained_groups) | _components(generated)


def _generated(generated: Batch, switches: Switches) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return sums over the generated responses, over their groups, and their tokens, each [M]."""
    present = generated.present
    raw = raw_reward(generated, switches.reward)
    values = filter_values(generated, switches.sampling)
    length = torch.where(present, generated.token.sum(-1), 0).double()
    mean = length.sum((1, 2), keepdim=True) / present.sum((1, 2), keepdim=True).clamp(min=1)
    right, wrong, tested = values == 1, values == 0, ~values.isnan()
    parts = {
        "present": present,
        "known": ~raw.isnan(),
        "reward": torch.where(raw.isnan(), 0.0, raw),
        "length": length,
        "length_deviation": torch.where(present, length - mean, 0.0).square(),
        "length_right": torch.where(right, length, 0.0),
        "length_wrong": torch.where(wrong, length, 0.0),
        "right": right,
        "wrong": wrong,
        "tested": tested,
        "truncated": generated.truncated & present,
    }
    by_group = torch.stack([part.double() for part in parts.values()]).sum(-1)  # [K, M, B]
    sequences = dict(zip(parts, by_group.sum(-1), strict=True))
    of_group = dict(zip(parts, by_group, strict=True))

    size = of_group["tested"]
    exists = size > 0
    largest = torch.where(tested, values, -torch.inf).amax(-1)
    constant = exists & (largest == torch.where(tested, values, torch.inf).amin(-1))
    all_wrong, all_right = exists & (of_group["wrong"] == size), exists & (of_group["right"] == size)
    success = (sequences["right"] / sequences["tested"].clamp(min=1.0)).unsqueeze(-1)
    binary = sequences["right"] + sequences["wrong"] == sequences["tested"]
    predictable = exists & binary.unsqueeze(-1)
    # As exponentials: torch rounds a power by a number's place in the tensor, and so by the other members.
    constant_predicted = (size * success.log()).exp() + (size * (1.0 - success).log()).exp()
    kinds = {
        "present": of_group["present"] > 0,
        "wrong": all_wrong,
        "right": all_right,
        "other": constant & ~all_wrong & ~all_right,
        "predicted": torch.where(predictable, constant_predicted, 0.0),
        "predictable": predictable,
    }
    sums = torch.stack([kind.double() for kind in kinds.values()]).sum(-1)
    return sequences, dict(zip(kinds, sums, strict=True)), sequences["length"]


def _components(generated: Batch) -> dict[str, Metric]:
    """Return the mean of each component of tasks that have several, over the responses that have it."""
    if len(generated.components) < 2:
        return {}
    values = torch.stack(list(generated.components.values())).double()
    known = generated.present & ~values.isnan()
    totals, counts = torch.where(known, values, 0.0).sum((2, 3)), known.sum((2, 3), dtype=torch.float64)
    parts = zip(generated.components, totals, counts, strict=True)
    return {f"{COMPONENT}_{name}": Metric(total, count) for name, total, count in parts}


def _mismatch(batch: Batch, prepared: Prepared, switches: Switches) -> dict[str, Metric]:
    trained = prepared.weights != 0
    raw = mismatch.raw_ratio(batch, switches.update)
    count = trained.sum((1, 2, 3), dtype=torch.float64)
    over = (trained & (raw > switches.update.mismatch_cap)).sum((1, 2, 3), dtype=torch.float64)
    return {
        "train/mismatch": Metric(torch.where(trained, raw, 0.0).sum((1, 2, 3)), count),
        "train/mismatch_max": Metric(torch.where(trained, raw, -torch.inf).amax((1, 2, 3)), count),
        "train/mismatch_over_cap": Metric(over, count),
    }


def _steps(batch: Batch, groups: Tensor) -> dict[str, Metric]:
    if batch.steps is None:
        return {}
    scored = batch.steps.present & ~batch.steps.score.isnan() & batch.present.unsqueeze(-1)
    with_steps = scored.any(-1).any(-1).sum(1, dtype=torch.float64)
    return {"train/groups_without_steps": Metric(groups - with_steps, groups)}
