"""The law responses are drawn from, and the filter that keeps groups with a contrast."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.schema import Sampling


def mixed_probability(success: float, group_size: int) -> float:
    """Return a(p) = 1 - p^G - (1 - p)^G, the chance that a group of binary rewards is not constant.

    >>> round(mixed_probability(0.01, 2), 4), round(mixed_probability(0.01, 16), 4)
    (0.0198, 0.1485)
    """
    return 1.0 - success**group_size - (1.0 - success) ** group_size


def filter_values(batch: Batch, sampling: Sampling) -> Tensor:
    """Return what the filter tests, float64 [M, B, G]: the raw component ``filter_on``, NaN where missing.

    A task without components has one reward, which then stands for the default ``accuracy``. Raises UserError
    for any other name that the task does not have.
    """
    values = batch.components.get(sampling.filter_on)
    if values is None:
        if sampling.filter_on not in ("accuracy", "reward"):
            names = [*batch.components, "reward"]
            raise UserError(
                f"sampling.filter_on: the task has no reward component '{sampling.filter_on}'; "
                f"{nearest(sampling.filter_on, names)}"
            )
        values = batch.reward
    return torch.where(batch.present, values, torch.nan)


def mixed(values: Tensor) -> Tensor:
    """Return bool [M, B]: the group has at least two values (NaN is none) and they are not all equal."""
    known = ~values.isnan()
    smallest = torch.where(known, values, torch.inf).amin(-1)
    largest = torch.where(known, values, -torch.inf).amax(-1)
    return smallest < largest


def accepted(batch: Batch, sampling: Sampling) -> Tensor:
    """Return bool [M, B]: the groups that train.

    With dynamic sampling, those whose raw ``filter_on`` values are mixed (Yu et al. 2025, DAPO, section 3.2);
    never the shaped reward, where a length penalty would hide a constant group. Else every group that exists.
    """
    if sampling.dynamic == "off":
        return batch.present.any(-1)
    return mixed(filter_values(batch, sampling))


def law_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return log-probabilities of the law that ``sampling`` really draws from, [..., V]; -inf outside its support.

    Logits are divided by the temperature, then cut to the ``top_k`` largest (ties at the edge stay), then to
    the smallest set of most probable tokens whose probability reaches ``top_p``. At 1, off, 1 it is the model's.

    >>> law_logprobs(torch.tensor([2.0, 0.0]), Sampling(temperature=0.5)).exp()[0].item() > 0.98
    True
    """
    logits = logits / sampling.temperature
    if sampling.top_k != "off" and sampling.top_k < logits.shape[-1]:
        edge = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = torch.where(logits >= edge, logits, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        outside = (before >= sampling.top_p).scatter(-1, order, before >= sampling.top_p)
        logits = torch.where(outside, -torch.inf, logits)
    return logits.log_softmax(-1)


def supported_logprobs(logits: Tensor, support: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities of the same law for new logits, [..., V], on the ``support`` stored at sampling.

    The support (bool [..., V]) is never recomputed: a ratio compares two laws on the tokens that could be drawn.
    Differentiable in ``logits``.
    """
    return torch.where(support, logits / temperature, -torch.inf).log_softmax(-1)
