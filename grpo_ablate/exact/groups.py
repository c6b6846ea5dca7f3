"""From groups of response numbers to the records of the algorithm, and back to what each group's update is.

M groups stand on the member axis with B = 1, so that every statistic of the algorithm is a group's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.algorithm import sampling as law
from grpo_ablate.algorithm.objective import loss, prepare
from grpo_ablate.algorithm.records import Batch, Policy, RewardDraws, Steps
from grpo_ablate.exact import policy as tables
from grpo_ablate.exact.policy import Prompt, Tables
from grpo_ablate.spec.schema import Switches


@dataclass(frozen=True)
class Setting:
    """One prompt at the point where groups are drawn (old) and the point where the gradient is taken (now)."""

    prompt: Prompt
    switches: Switches
    probabilities: Tensor  # float64 [K], of the responses under the old law
    possible: Tensor  # int64 [k], the responses that can be drawn
    old: Tables
    now: Tables
    reference: Tensor | None  # [N V + 1]
    jacobians: Tensor  # [N V + 1 + 2 (N + 1), d]: of log-probabilities, entropies, exact KLs in the parameters


@dataclass(frozen=True)
class Coefficients:
    """How the loss of each group moves with each entry of the tables, and which groups train."""

    slopes: Tensor  # float64 [M, N V + 1 + 2 (N + 1)], d loss / d (log-probabilities, entropies, exact KLs)
    accepted: Tensor  # bool [M], what dynamic sampling keeps
    mixed: Tensor  # bool [M], the raw rewards are not all equal


def setting(prompt: Prompt, switches: Switches, old: Tensor, now: Tensor | None = None) -> Setting:
    """Return a prompt with groups drawn at parameters ``old`` [D], the gradient at ``now`` [D] (default old)."""
    sampling = switches.sampling
    kept = tables.support(prompt, old, sampling)
    point = (old if now is None else now).detach().clone().requires_grad_()
    current = tables.tables(prompt, point, kept, sampling)
    kl = torch.zeros_like(current.entropy) if current.kl is None else current.kl
    everything = torch.cat([current.logprobs, current.entropy, kl])
    jacobians = tables.jacobian(everything, point)[:, prompt.columns]
    with torch.no_grad():
        before = tables.tables(prompt, old, kept, sampling)
        possible = tables.possible(prompt, kept)
        law = torch.where(possible, before.logprobs[prompt.edges].sum(-1).exp(), 0.0)
    return Setting(
        prompt=prompt,
        switches=switches.model_copy(update={"reward": switches.reward.model_copy(update={"components": {}})}),
        probabilities=law / law.sum(),  # takes rounding out, so that the groups' probabilities sum to 1
        possible=possible.nonzero()[:, 0],
        old=before,
        now=Tables(
            current.logprobs.detach(),
            current.entropy.detach(),
            None if current.kl is None else current.kl.detach(),
        ),
        reference=tables.reference_table(prompt, kept, sampling),
        jacobians=jacobians.detach(),
    )


def batch(at: Setting, index: Tensor) -> Batch:
    """Return groups of responses ``index`` int64 [M, G] as a batch [M, 1, G, T]."""
    prompt, index = at.prompt, index.unsqueeze(1)
    edges = prompt.edges[index]
    points = _points(at, edges)
    old = at.old.logprobs[edges]
    reward = prompt.reward[index]
    token = prompt.token[index]
    steps = prompt.steps
    return Batch(
        prompts=torch.zeros(index.shape[:2], dtype=torch.int64),
        tokens=edges,
        token=token,
        present=torch.ones_like(index, dtype=torch.bool),
        truncated=prompt.truncated[index],
        reward=reward,
        components={at.switches.sampling.filter_on: reward},
        sampler_logprobs=old,
        old_logprobs=old,
        reference_logprobs=None if at.reference is None else at.reference[edges],
        old_kl_exact=None if at.old.kl is None else at.old.kl[points],
        steps=None if steps is None else Steps(steps.end[index], steps.score[index], steps.present[index]),
    )


def coefficients(at: Setting, index: Tensor, draws: RewardDraws | None = None) -> Coefficients:
    """Return the slopes of each group's loss, ``index`` int64 [M, G], by autograd of the algorithm's own loss."""
    groups = batch(at, index)
    prepared = prepare(groups, at.switches, _no_draws(index) if draws is None else draws)
    edges = groups.tokens
    points = _points(at, edges)
    logprobs = at.now.logprobs[edges].requires_grad_()
    entropy = at.now.entropy[points].requires_grad_()
    kl = None if at.now.kl is None else at.now.kl[points].requires_grad_()
    found = loss(groups, prepared, Policy(logprobs, entropy, kl), at.switches).loss.sum()
    inputs = [logprobs, entropy] if kl is None else [logprobs, entropy, kl]
    by_token = torch.autograd.grad(found, inputs, allow_unused=True)
    sizes = (len(at.now.logprobs), len(at.now.entropy), len(at.now.entropy))
    slopes = torch.zeros(len(index), sum(sizes), dtype=torch.float64)
    for place, gradient in enumerate(by_token):
        if gradient is not None:
            where = edges if place == 0 else points
            slopes.scatter_add_(1, (where + sum(sizes[:place])).flatten(1), gradient.flatten(1))
    return Coefficients(
        slopes=slopes,
        accepted=law.accepted(groups, at.switches.sampling)[:, 0],
        mixed=law.mixed(groups.reward)[:, 0],
    )


def _points(at: Setting, edges: Tensor) -> Tensor:
    """Return the decision point of each edge; N for the certain token."""
    return torch.div(edges, len(at.prompt.choices), rounding_mode="floor")


def _no_draws(index: Tensor) -> RewardDraws:
    nothing = torch.full((1, 1, 1), torch.nan, dtype=torch.float64)
    per_response = nothing.expand(len(index), 1, index.shape[1])
    return RewardDraws(per_response, per_response, nothing.expand(len(index), 1, 2))
