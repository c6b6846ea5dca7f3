"""A policy small enough to enumerate: every response of every prompt, its tokens and its law.

Letters: P prompts, N decision points of one prompt (a categorical has one, a token tree one per prefix), V choices
at each, K complete responses, T tokens, D parameters. A response is a path of edges (decision point, choice); its
log-probability is the sum over its edges. A token that follows with certainty carries the edge ``N V``, whose
log-probability is 0 whatever the parameters are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ablate.algorithm.sampling import law_logprobs, supported_logprobs
from grpo_ablate.spec.schema import Sampling


@dataclass(frozen=True)
class ScoredSteps:
    """Step scores of each response, for process supervision."""

    end: Tensor  # int64 [K, J], 0-based, inclusive
    score: Tensor  # float64 [K, J]
    present: Tensor  # bool [K, J]


@dataclass(frozen=True)
class Prompt:
    """One prompt with all its responses. Logits are a slice of the parameters, or features times all of them."""

    probability: float  # of the prompt
    names: tuple[str, ...]  # of the K responses
    points: tuple[str, ...]  # of the N decision points
    choices: tuple[str, ...]  # of the V choices
    edges: Tensor  # int64 [K, T], point * V + choice; N V where the token is certain or absent
    token: Tensor  # bool [K, T], tokens that exist
    reward: Tensor  # float64 [K]
    truncated: Tensor  # bool [K]
    columns: slice  # the parameters that act here
    features: Tensor | None  # float64 [N V, D], logits = features . parameters; None: logits are parameters
    reference: Tensor | None  # float64 [N, V], logits of the reference
    steps: ScoredSteps | None

    @property
    def shape(self) -> tuple[int, int]:
        """N, V."""
        return len(self.points), len(self.choices)

    def logits(self, parameters: Tensor) -> Tensor:
        """Return the logits at every decision point, [N, V], from parameters [D]."""
        own = parameters[self.columns]
        return (own if self.features is None else self.features @ own).view(self.shape)


@dataclass(frozen=True)
class ExactPolicy:
    """Prompts with their probabilities, and one parameter vector for all of them."""

    parameters: Tensor  # float64 [D], where the responses are drawn
    prompts: tuple[Prompt, ...]
    group_size: int | None = None  # what the file says; the switches decide
    source: str = "policy"  # named in errors

    def at(self, parameters: Tensor) -> ExactPolicy:
        """Return the same prompts with other parameters [D]."""
        return replace(self, parameters=parameters.detach().double())


@dataclass(frozen=True)
class Tables:
    """What a law says at every edge and decision point; edge N V and point N are the certain token."""

    logprobs: Tensor  # [N V + 1], 0 outside the support and for the certain token
    entropy: Tensor  # [N + 1]
    kl: Tensor | None  # [N + 1], exact KL(policy, reference)


def support(prompt: Prompt, parameters: Tensor, sampling: Sampling) -> Tensor:
    """Return the choices that ``sampling`` (top-k, top-p) can draw at ``parameters``, bool [N, V]."""
    return law_logprobs(prompt.logits(parameters.detach()), sampling) > -torch.inf


def tables(prompt: Prompt, parameters: Tensor, kept: Tensor, sampling: Sampling) -> Tables:
    """Return the law on the support ``kept`` (bool [N, V], of the sampling); differentiable in ``parameters``."""
    law = _law(prompt.logits(parameters), kept, sampling)
    probability = torch.where(kept, law.exp(), 0.0)
    nothing = torch.zeros(1, dtype=torch.float64)
    kl = None
    if prompt.reference is not None:
        reference = _law(prompt.reference, kept, sampling)
        kl = torch.cat([(probability * (law - reference)).sum(-1), nothing])
    return Tables(torch.cat([law.flatten(), nothing]), torch.cat([-(probability * law).sum(-1), nothing]), kl)


def reference_table(prompt: Prompt, kept: Tensor, sampling: Sampling) -> Tensor | None:
    """Return the reference's log-probabilities under the same law, [N V + 1]; None without a reference."""
    if prompt.reference is None:
        return None
    law = _law(prompt.reference, kept, sampling)
    return torch.cat([law.flatten(), torch.zeros(1, dtype=torch.float64)])


def _law(logits: Tensor, kept: Tensor, sampling: Sampling) -> Tensor:
    return torch.where(kept, supported_logprobs(logits, kept, sampling.temperature), 0.0)


def possible(prompt: Prompt, kept: Tensor) -> Tensor:
    """Return which responses the support lets happen, bool [K]."""
    drawable = torch.cat([kept.flatten(), torch.ones(1, dtype=torch.bool)])
    return drawable[prompt.edges].all(-1)


def response_logprobs(prompt: Prompt, parameters: Tensor, kept: Tensor, sampling: Sampling) -> Tensor:
    """Return log pi(y) of every response, [K]; of an impossible one a number without meaning."""
    return tables(prompt, parameters, kept, sampling).logprobs[prompt.edges].sum(-1)


def response_law(prompt: Prompt, parameters: Tensor, sampling: Sampling | None = None) -> Tensor:
    """Return the probability of every response under the law really sampled, [K], summing to 1.

    Differentiable in ``parameters``; the support of top-k and top-p is held fixed.
    """
    law = Sampling() if sampling is None else sampling
    kept = support(prompt, parameters, law)
    return torch.where(possible(prompt, kept), response_logprobs(prompt, parameters, kept, law).exp(), 0.0)


def jacobian(values: Tensor, parameters: Tensor) -> Tensor:
    """Return d values / d parameters, [len(values), D]."""
    # Row by row: the batched form of autograd.grad loads a compiler, seconds for a few hundred numbers.
    rows = [torch.autograd.grad(value, parameters, retain_graph=True)[0] for value in values]
    return torch.stack(rows)
