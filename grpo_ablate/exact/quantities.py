"""What the expected updates are compared with: gradients, baselines and limits in closed form.

All of them sum over the enumerated responses, in float64, at ``policy.parameters``, under the law really
sampled (temperature, top-k, top-p), which by default is the policy itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_ablate.exact.policy import (
    ExactPolicy,
    Prompt,
    jacobian,
    possible,
    reference_table,
    response_law,
    response_logprobs,
    support,
)
from grpo_ablate.spec.schema import Sampling

_Value = Callable[[Prompt, Tensor], Tensor]


def _gradient(policy: ExactPolicy, value: _Value) -> Tensor:
    """Return grad E_x[value(x)] [D]."""
    point = policy.parameters.detach().clone().requires_grad_()
    total = sum(
        (prompt.probability * value(prompt, point) for prompt in policy.prompts),
        torch.zeros((), dtype=torch.float64),
    )
    (gradient,) = torch.autograd.grad(total, point)
    return gradient


def _moments(prompt: Prompt, point: Tensor, sampling: Sampling | None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the reward; the latter 0 with gradient 0 where it is constant."""
    law = response_law(prompt, point, sampling)
    mean = law @ prompt.reward
    deviation = prompt.reward - mean
    variance = law @ deviation.square()
    constant = variance == 0
    return mean, torch.where(constant, 0.0, torch.where(constant, 1.0, variance).sqrt())


def expected_reward(policy: ExactPolicy, sampling: Sampling | None = None) -> float:
    """Return J = E_x E_y[r]."""
    return float(sum(p.probability * _moments(p, policy.parameters, sampling)[0] for p in policy.prompts))


def reward_gradient(policy: ExactPolicy, sampling: Sampling | None = None) -> Tensor:
    """Return grad J = E[r S], [D]."""
    return _gradient(policy, lambda prompt, point: _moments(prompt, point, sampling)[0])


def population_limit(policy: ExactPolicy, sampling: Sampling | None = None) -> Tensor:
    """Return E_x[grad mu_x / sigma_x], [D]: where group-std updates go as G grows; 0 from a constant prompt."""

    def value(prompt: Prompt, point: Tensor) -> Tensor:
        mean, std = _moments(prompt, point, sampling)
        return mean * 0.0 if std == 0 else mean / std.detach()

    return _gradient(policy, value)


def normalised_mean_gradient(policy: ExactPolicy, sampling: Sampling | None = None) -> Tensor:
    """Return grad E_x[mu_x / sigma_x], [D], which the population limit is not."""

    def value(prompt: Prompt, point: Tensor) -> Tensor:
        mean, std = _moments(prompt, point, sampling)
        return mean * 0.0 if std == 0 else mean / std

    return _gradient(policy, value)


def _divergence(prompt: Prompt, point: Tensor, sampling: Sampling) -> Tensor:
    kept = support(prompt, point, sampling)
    table = reference_table(prompt, kept, sampling)
    if table is None:
        raise ValueError("the KL needs a reference")
    logprobs = response_logprobs(prompt, point, kept, sampling)
    happens = possible(prompt, kept)
    return torch.where(happens, logprobs.exp() * (logprobs - table[prompt.edges].sum(-1)), 0.0).sum()


def reference_kl(policy: ExactPolicy, sampling: Sampling | None = None) -> float:
    """Return E_x KL(pi, pi_ref) over whole responses; raises ValueError without a reference."""
    law = sampling or Sampling()
    return float(sum(p.probability * _divergence(p, policy.parameters, law) for p in policy.prompts))


def kl_gradient(policy: ExactPolicy, sampling: Sampling | None = None) -> Tensor:
    """Return grad E_x KL(pi, pi_ref), [D]."""
    law = sampling or Sampling()
    return _gradient(policy, lambda prompt, point: _divergence(prompt, point, law))


def scores(policy: ExactPolicy, sampling: Sampling | None = None) -> list[Tensor]:
    """Return S(y) = grad log pi(y) of each prompt's responses, [K, D] each; 0 for an impossible response."""
    law = sampling or Sampling()
    result = []
    for prompt in policy.prompts:
        point = policy.parameters.detach().clone().requires_grad_()
        kept = support(prompt, point, law)
        rows = jacobian(response_logprobs(prompt, point, kept, law), point)
        result.append(torch.where(possible(prompt, kept)[:, None], rows, 0.0))
    return result


def response_laws(policy: ExactPolicy, sampling: Sampling | None = None) -> list[Tensor]:
    """Return pi(y) of each prompt's responses, [K] each."""
    return [response_law(prompt, policy.parameters, sampling) for prompt in policy.prompts]


def push(policy: ExactPolicy, direction: Tensor, sampling: Sampling | None = None) -> list[Tensor]:
    """Return d log pi(y) along ``direction`` [D] of each prompt's responses, [K] each: which ones rise."""
    return [rows @ direction for rows in scores(policy, sampling)]


def variance_minimising_baseline(policy: ExactPolicy, sampling: Sampling | None = None) -> float:
    """Return E[|S|^2 r] / E[|S|^2], the scalar baseline that minimises the variance of (r - b) S.

    For ``advantage.baseline=constant`` with ``advantage.constant`` this
    number (Greensmith et al. 2004, section 3).
    """
    weighted = total = torch.zeros((), dtype=torch.float64)
    for prompt, law, rows in zip(
        policy.prompts, response_laws(policy, sampling), scores(policy, sampling), strict=True
    ):
        squares = prompt.probability * law * rows.square().sum(-1)
        weighted, total = weighted + squares @ prompt.reward, total + squares.sum()
    return float(weighted / total)


def accepted_law(policy: ExactPolicy, group_size: int, sampling: Sampling | None = None) -> list[float]:
    """Return the law of the prompts whose groups are kept when only mixed groups are, rho(x) a(x) / E[a].

    Mixed: the raw rewards of the group are not all equal. All 0 where no group can be mixed.
    """
    shares = []
    for prompt, law in zip(policy.prompts, response_laws(policy, sampling), strict=True):
        constant = sum(float(law[prompt.reward == value].sum()) ** group_size for value in prompt.reward.unique())
        shares.append(prompt.probability * max(0.0, 1.0 - constant))
    total = sum(shares)
    return [share / total if total > 0 else 0.0 for share in shares]
