"""Log-probabilities, entropies and KL divergences of recorded responses, microbatch by microbatch.

Whatever the microbatches, memory holds the activations of one. Values come first, without a graph but for the last
microbatch; when the gradient of the loss in these values is known, the others are computed again with one and the
gradient goes on to the weights. Responses of which the loss says nothing are not computed again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.algorithm.sampling import law_logprobs
from grpo_ablate.policies.huggingface.passes import Pass, Unit, dealt, laid_out, units
from grpo_ablate.policies.huggingface.requests import packed, unpacked
from grpo_ablate.spec.schema import Sampling

NUMBERS = 1 << 23  # of the laws that are computed at a time


@dataclass(frozen=True)
class Responses:
    """What is scored: R = B G responses to B prompts, under the law they were drawn from."""

    prompts: list[list[int]]
    tokens: list[list[list[int]]]  # [B][G], a response's scored tokens; empty: not scored
    temperature: float
    limit: int  # T
    support: Tensor | None = None  # uint8 [R, T, ceil(V / 8)], packed

    @property
    def count(self) -> int:
        """R."""
        return sum(map(len, self.tokens))


@dataclass(frozen=True)
class Values:
    """What a policy says of responses, float32 [R, T] each; 0 where nothing is scored."""

    logprobs: Tensor
    entropy: Tensor
    divergence: Tensor  # KL(policy, reference) at each prefix; 0 where it was not asked for


@dataclass
class Pending:
    """Values whose gradient is to come, and what is needed to pass it on."""

    responses: Responses
    values: Values  # leaves
    divergence: bool
    sequences: list[Unit]  # those without a graph
    graph: tuple[Pass, tuple[Tensor, ...]] | None  # the last microbatch and its values [K]


class Scorer:
    """Scores responses with ``model``; ``reference`` puts the reference's weights in its place for a while."""

    def __init__(
        self,
        model: Any,
        pad: int,
        budget: int,
        *,
        share_prompts: bool,
        checkpointed: bool = False,
        reference: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self.model, self.pad, self.budget, self.share = model, pad, budget, share_prompts
        self.checkpointed = checkpointed
        self.reference = reference
        takes = inspect.signature(model.forward).parameters
        self.positioned, self.trimmed = "position_ids" in takes, "logits_to_keep" in takes

    def values(self, responses: Responses, *, divergence: bool = False) -> Values:
        """Return values without a gradient."""
        with torch.no_grad():
            return self._values(responses, divergence, False)[0]

    @torch.no_grad()
    def support(self, responses: Responses, law: Sampling) -> Tensor:
        """Return what the law leaves of the policy as it is now, and each scored token, packed uint8 [R, T, ...].

        For engines that do not say what they could draw; at the edge of top-k or top-p they may see it otherwise.
        """
        found: Tensor | None = None
        for batch in self._passes(units(responses.prompts, responses.tokens, self.budget, share=self.share)):
            logits = self._logits(batch)
            place = Law(batch.predictor, batch.target, 1.0, None, None)
            for part in place.parts(logits.shape[-1]):
                kept = law_logprobs(logits.index_select(0, place.predictor[part]).float(), law) > -torch.inf
                bits = packed(kept.scatter_(1, place.target[part, None], True)).cpu()
                if found is None:
                    found = torch.zeros(responses.count, responses.limit, bits.shape[-1], dtype=torch.uint8)
                found[batch.row[part], batch.step[part]] = bits
        assert found is not None, "there is a response to score"
        return found

    def start(self, responses: Responses, *, divergence: bool = False) -> Pending:
        """Return values as leaves: once they have a gradient, ``finish`` passes it on to the weights."""
        values, sequences, graph = self._values(responses, divergence, True)
        leaves = Values(*(tensor.detach().requires_grad_() for tensor in vars(values).values()))
        return Pending(responses, leaves, divergence, sequences, graph)

    def finish(self, pending: Pending, collect: Callable[[], None]) -> None:
        """Add to the weights' gradients what the leaves' gradients make of them; ``collect`` follows each pass."""
        upstream = [
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in vars(pending.values).values()
        ]
        live = torch.stack([(gradient != 0).any(1) for gradient in upstream]).any(0)

        def backward(batch: Pass, found: tuple[Tensor, ...]) -> None:
            gradients = [gradient[batch.row, batch.step].to(found[0].device) for gradient in upstream]
            torch.autograd.backward(found, gradients)
            collect()

        if pending.graph is not None and bool(live[pending.graph[0].row].any()):
            backward(*pending.graph)
        pending.graph = None
        left = [unit for each in pending.sequences if (unit := _kept(each, live.tolist())).rows]
        for batch in self._passes(left):
            backward(batch, self._scored(batch, pending.responses, pending.divergence))

    def _values(
        self, responses: Responses, divergence: bool, graph: bool
    ) -> tuple[Values, list[Unit], tuple[Pass, tuple[Tensor, ...]] | None]:
        found = Values(*(torch.zeros(responses.count, responses.limit) for _ in range(3)))
        sequences = units(responses.prompts, responses.tokens, self.budget, share=self.share)
        batches = list(dealt(sequences, self.budget))
        kept = None
        for number, batch in enumerate(batches):
            last = graph and number == len(batches) - 1
            laid = laid_out(batch, self.pad, share=self.share).to(self.model.device)
            with torch.enable_grad() if last else torch.no_grad():
                scored = self._scored(laid, responses, divergence)
            for target, values in zip(vars(found).values(), scored, strict=True):
                target[laid.row, laid.step] = values.detach().cpu()
            if last:
                kept = laid, scored
        without = batches[:-1] if kept else batches
        return found, [unit for batch in without for unit in batch], kept

    def _passes(self, sequences: list[Unit]) -> Iterator[Pass]:
        for batch in dealt(sequences, self.budget):
            yield laid_out(batch, self.pad, share=self.share).to(self.model.device)

    def _scored(self, batch: Pass, responses: Responses, divergence: bool) -> tuple[Tensor, ...]:
        """Return log-probabilities, entropies and divergences [K] of a microbatch's scored tokens."""
        reference = None
        if divergence:
            with torch.no_grad(), self.reference():
                reference = self._logits(batch)
        support = responses.support
        if support is not None:
            support = support[batch.row, batch.step].to(batch.tokens.device)
        law = Law(batch.predictor, batch.target, responses.temperature, support, reference)
        return tuple(_Scores.apply(self._logits(batch), law))

    def _logits(self, batch: Pass) -> Tensor:
        """Return the logits [n keep, V] of the columns that predict."""
        # Without dropout the modes differ in one thing: only the first recomputes activations, and keeps no cache.
        self.model.train(self.checkpointed and torch.is_grad_enabled())
        inputs: dict[str, Any] = {"attention_mask": batch.mask, "use_cache": False}
        if self.positioned:
            inputs["position_ids"] = batch.positions
        if self.trimmed:
            inputs["logits_to_keep"] = batch.keep
        logits = self.model(batch.tokens, **inputs).logits
        self.model.eval()
        return logits[:, -batch.keep :].flatten(0, 1)


@dataclass(frozen=True)
class Law:
    """How logits [N, V] become the law of K scored tokens (maths: the real sampling law)."""

    predictor: Tensor  # int64 [K], the row of the logits
    target: Tensor  # int64 [K]
    temperature: float
    support: Tensor | None  # uint8 [K, ceil(V / 8)], packed
    reference: Tensor | None  # [N, V], the reference's logits

    def logprobs(self, logits: Tensor, part: slice) -> Tensor:
        """Return the log-probabilities float32 [k, V] of some of the tokens; -inf outside the support."""
        rows = logits.index_select(0, self.predictor[part]).float()
        if self.temperature != 1:
            rows = rows / self.temperature
        if self.support is not None:
            rows = torch.where(unpacked(self.support[part], rows.shape[-1]), rows, -torch.inf)
        return rows.log_softmax(-1)

    def parts(self, vocabulary: int) -> Iterator[slice]:
        """Yield the tokens some at a time."""
        size = max(1, NUMBERS // vocabulary)
        for first in range(0, len(self.target), size):
            yield slice(first, first + size)

    def gap(self, logprobs: Tensor, part: slice) -> Tensor:
        """Return log policy - log reference [k, V], 0 outside the support."""
        assert self.reference is not None
        return torch.where(logprobs > -torch.inf, logprobs - self.logprobs(self.reference, part), 0.0)


class _Scores(torch.autograd.Function):
    """Logits [N, V] to log-probabilities, entropies and divergences [K]; keeps the logits and nothing else."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, law: Law) -> tuple[Tensor, ...]:
        found: list[tuple[Tensor, ...]] = []
        for part in law.parts(logits.shape[-1]):
            logprobs = law.logprobs(logits, part)
            probability = logprobs.exp()
            entropy = -_expected(probability, logprobs)
            divergence = torch.zeros_like(entropy)
            if law.reference is not None:
                divergence = _expected(probability, law.gap(logprobs, part))
            found.append((logprobs.gather(1, law.target[part, None])[:, 0], entropy, divergence))
        logprobs, entropy, divergence = (torch.cat(part) for part in zip(*found, strict=True))
        ctx.save_for_backward(logits, entropy, divergence)
        ctx.law = law
        return logprobs, entropy, divergence

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, entropy, divergence = ctx.saved_tensors
        law: Law = ctx.law
        of_logprobs, of_entropy, of_divergence = gradients
        total = torch.zeros_like(logits)
        for part in law.parts(logits.shape[-1]):
            logprobs = law.logprobs(logits, part)
            probability = logprobs.exp()
            slope = -of_logprobs[part, None] * probability
            slope.scatter_add_(1, law.target[part, None], of_logprobs[part, None])
            # d E_p[v] / d logit_a = p_a (v_a - E_p[v]) where v is log p plus a constant.
            if bool(of_entropy[part].any()):
                finite = torch.where(logprobs > -torch.inf, logprobs, 0.0)
                slope -= of_entropy[part, None] * probability * (finite + entropy[part, None])
            if law.reference is not None and bool(of_divergence[part].any()):
                far = law.gap(logprobs, part) - divergence[part, None]
                slope += of_divergence[part, None] * probability * far
            total.index_add_(0, law.predictor[part], (slope / law.temperature).to(total.dtype))
        return total, None


def _expected(probability: Tensor, values: Tensor) -> Tensor:
    return torch.where(probability == 0, 0.0, probability * values).sum(-1)


def _kept(unit: Unit, live: list[bool]) -> Unit:
    """Return a sequence with its live responses."""
    kept = [place for place, row in enumerate(unit.rows) if live[row]]
    return Unit(unit.prompt, [unit.rows[place] for place in kept], [unit.tokens[place] for place in kept])
