"""The distance from the reference policy: sampled estimators, their gradients, the place they enter.

Throughout z = log pi_ref(a|h) - log pi(a|h) at the sampled token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.spec.schema import Kl

LARGEST_LOG = 709.0  # the whole number below the logarithm of the largest float64


def k1(z: Tensor) -> Tensor:
    """``-z``: unbiased for KL(pi, ref) on policy; differentiated as written its gradient has mean 0."""
    return -z


def k2(z: Tensor) -> Tensor:
    """``z^2 / 2``: the wrong value, and on policy the gradient of KL(pi, ref)."""
    return z.square() / 2.0


def k3(z: Tensor) -> Tensor:
    """``e^z - z - 1``: never negative, unbiased for KL(pi, ref) on policy; its own gradient is that of
    KL(ref, pi) (Shao et al. 2024, DeepSeekMath, equation 4)."""
    return torch.expm1(z) - z


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def pathwise(values: Tensor, log_ratio: Tensor, logprobs: Tensor) -> Tensor:
    """Differentiate the estimator as written, samples held fixed."""
    return values


def ratio_weighted(values: Tensor, log_ratio: Tensor, logprobs: Tensor) -> Tensor:
    """Differentiate ``u k``: corrects the sampling law, and with k1 or k3 gives the gradient of KL(pi, ref)."""
    # Where k is exactly 0 a ratio beyond float64 is held at its end: 0 times inf would be NaN.
    held = torch.where(values == 0, log_ratio.clamp(max=LARGEST_LOG), log_ratio)
    return held.exp() * values


def score_function(values: Tensor, log_ratio: Tensor, logprobs: Tensor) -> Tensor:
    """The value k with the gradient ``stopgrad(k) grad log pi``."""
    return values.detach() * torch.exp(logprobs - logprobs.detach())


GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "pathwise": pathwise,
    "ratio": ratio_weighted,
    "score-function": score_function,
}


def estimate(
    estimator: str, logprobs: Tensor, reference_logprobs: Tensor | None, exact: Tensor | None, scored: Tensor
) -> Tensor:
    """Return the estimator's value per token, [M, B, G, T], 0 where ``scored`` (bool) is false.

    Values under the mask, NaN included, enter neither the result nor a gradient. Raises ValueError when the
    reference log-probabilities, or the exact KL for estimator ``exact``, were not given.
    """
    if estimator == "exact":
        if exact is None:
            raise ValueError("the exact KL estimator needs the exact KL at each prefix")
        return torch.where(scored, exact.double(), 0.0)
    if reference_logprobs is None:
        raise ValueError(f"the {estimator} estimator needs reference log-probabilities")
    z = torch.where(scored, reference_logprobs.double(), 0.0) - torch.where(scored, logprobs.double(), 0.0)
    return ESTIMATORS[estimator](z)


def old_values(batch: Batch, kl: Kl) -> Tensor:
    """Return the estimator under the old policy, [M, B, G, T], without gradient: what enters a reward."""
    scored = batch.token & batch.present.unsqueeze(-1)
    return estimate(kl.estimator, batch.old_logprobs, batch.reference_logprobs, batch.old_kl_exact, scored)


def to_go(values: Tensor) -> Tensor:
    """Return ``sum_{t' >= t} k_t'`` over the token axis, [..., T].

    >>> to_go(torch.tensor([1.0, 2.0, 4.0])).tolist()
    [7.0, 6.0, 4.0]
    """
    return values.flip(-1).cumsum(-1).flip(-1)
