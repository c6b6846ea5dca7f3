"""The points of an exact experiment: every row at every combination of the varied values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.policy_file import parse
from grpo_ablate.exact.quantities import expected_reward, variance_minimising_baseline
from grpo_ablate.spec.exact_files import ExactExperiment, ExactRow, varied
from grpo_ablate.spec.schema import Switches

BASELINES = {"expected-reward": expected_reward, "variance-minimising": variance_minimising_baseline}


@dataclass(frozen=True)
class Point:
    """One line of the table before anything is enumerated."""

    row: ExactRow
    values: dict[str, float | str]  # of what varies
    switches: Switches
    policy: ExactPolicy  # where groups are drawn
    now: Tensor  # [D], where the gradient is taken


def points(experiment: ExactExperiment) -> Iterator[Point]:
    """Yield the points, rows in the order of the file, the last varied key fastest.

    Raises:
        UserError: the policy is not well stated, or a row means nothing at some point.
    """
    assert experiment.policy is not None  # the form was checked: only single tokens have none
    policy = parse(experiment.policy, f"{experiment.path}: policy")
    direction = None
    if experiment.direction is not None:
        direction = torch.tensor(experiment.direction, dtype=torch.float64)
        if direction.shape != policy.parameters.shape:
            raise UserError(
                f"{experiment.path}: direction has {len(direction)} numbers, the policy {len(policy.parameters)} "
                "parameters."
            )
    for row, values in combinations(experiment):
        where = f"{experiment.path}: row '{row.id}'"
        drawn = policy
        if "success" in values:
            drawn = with_success(policy, float(values["success"]))
        if "distance" in values:
            assert direction is not None
            drawn = drawn.at(drawn.parameters + float(values["distance"]) * direction)
        now = drawn.parameters
        if "step" in values:
            assert direction is not None
            now = now + float(values["step"]) * direction
        switches = varied(row.switches, values, where)
        if row.constant_at is not None:
            constant = BASELINES[row.constant_at](drawn, switches.sampling)
            advantage = switches.advantage.model_copy(update={"constant": constant})
            switches = switches.model_copy(update={"advantage": advantage})
        yield Point(row, values, switches, drawn, now)


def combinations(experiment: ExactExperiment) -> Iterator[tuple[ExactRow, dict[str, float | str]]]:
    """Yield each row with each combination of varied values."""
    for row in experiment.rows:
        for combination in itertools.product(*experiment.vary.values()):
            yield row, dict(zip(experiment.vary, combination, strict=True))


def with_success(policy: ExactPolicy, probability: float) -> ExactPolicy:
    """Return a policy over two responses with the first one's probability set: logits (logit p, 0).

    >>> from grpo_ablate.exact.policy_file import parse
    >>> coin = parse({"prompts": [{"responses": [{"logit": 0, "reward": 1}, {"logit": 0, "reward": 0}]}]})
    >>> [round(p, 12) for p in with_success(coin, 0.2).parameters.softmax(0).tolist()]
    [0.2, 0.8]
    """
    prompts = policy.prompts
    if len(prompts) != 1 or len(prompts[0].names) != 2 or prompts[0].features is not None:
        raise UserError(f"{policy.source}: vary success needs one prompt with two responses.")
    logit = math.log(probability) - math.log1p(-probability)
    return replace(policy, parameters=torch.tensor([logit, 0.0], dtype=torch.float64))
