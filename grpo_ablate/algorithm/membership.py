"""Who takes part: which responses have a reward, enter the statistics, count in the denominators, train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.spec.schema import Reward, Switches


@dataclass(frozen=True)
class Members:
    """The parts a response may play in a round, each a subset of the one before where it says so."""

    known: Tensor  # bool [M, B, G]: the response exists and has its reward
    statistics: Tensor  # bool [M, B, G]: known, enters baseline and standard deviation
    counted: Tensor  # bool [M, B, G]: known, counted in B G and in N
    trained: Tensor  # bool [M, B, G, T]: scored token of a known response that is not masked


def masked(batch: Batch, reward: Reward) -> Tensor:
    """Return bool [M, B, G]: truncated responses that ``overlong: mask`` keeps out of the loss."""
    if reward.overlong == "mask":
        return batch.truncated
    return torch.zeros_like(batch.truncated)


def members(batch: Batch, shaped: Tensor, switches: Switches) -> Members:
    """Sort the responses of a batch into the parts they play.

    ``shaped`` is float64 [M, B, G], NaN where the reward is missing: such a response is no member of its
    group at all. Under process supervision the step scores are the rewards, and every present response
    takes part.
    """
    outcome = switches.advantage.supervision == "outcome"
    known = batch.present & ~shaped.isnan() if outcome else batch.present
    reward = switches.reward
    if reward.overlong != "mask":
        return Members(known, known, known, batch.token & known.unsqueeze(-1))
    kept = known & ~batch.truncated
    return Members(
        known=known,
        statistics=known if reward.masked_in_baseline else kept,
        counted=known if reward.masked_in_denominator else kept,
        trained=batch.token & kept.unsqueeze(-1),
    )
