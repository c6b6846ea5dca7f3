"""The rollout engine ``transformers``: its ``generate``, with noise by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from grpo_ablate.algorithm.sampling import law_logprobs
from grpo_ablate.policies.huggingface.agreement import check_agreement
from grpo_ablate.policies.huggingface.ends import Ends
from grpo_ablate.policies.huggingface.requests import Drawn, Request, cuts, packed
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import Sampling

KEPT = 16  # tokens whose keys and values take no more memory than what one token leaves behind in training
NUMBERS = 1 << 24  # of a step's laws that are computed at a time


class TransformersEngine:
    """Draws from ``model`` by transformers' ``generate``, some prompts at a time.

    ``tokens`` bounds a batch by its tokens, prompts included; ``tolerance`` is the mean gap that the first round
    may have to the trainer's log-probabilities. With ``share_prompts`` the keys and values of a
    prompt are computed once for its responses.
    """

    def __init__(
        self, model: Any, ends: Ends, pad: int, keys: Keys, tokens: int, tolerance: float, *, share_prompts: bool
    ):
        self.model, self.ends, self.pad, self.keys = model, ends, pad, keys
        self.tokens, self.share_prompts = KEPT * tokens, share_prompts
        self.tolerance, self.checked = tolerance, False

    @torch.no_grad()
    def draw(self, request: Request) -> Drawn:
        """Draw the responses: tokens, and log-probabilities as the step-by-step forward passes gave them."""
        uniforms = self._uniforms(request)
        parts = [
            self._drawn(request.prompts[first:last], uniforms[first:last], request.law)
            for first, last in self._parts(request)
        ]
        tokens, logprobs = (torch.cat([part[place] for part in parts]) for place in (0, 1))
        length, ended = self.ends.lengths(tokens.flatten(0, 1))
        shape = tokens.shape[:2]
        support = torch.cat([part[2] for part in parts]) if cuts(request.law) else None
        return Drawn(tokens, length.view(shape), ended.view(shape), logprobs, support)

    def check(self, gaps: Tensor) -> None:
        """Compare the first round, token by token with kept keys and values, with the trainer's single pass.

        ``gaps`` float64 [n] are those of its tokens. Raises UserError where they do not agree.
        """
        if not self.checked and gaps.numel():
            check_agreement(
                gaps,
                self.tolerance,
                "transformers",
                "the model is no causal language model, or its cache computes something else",
            )
            self.checked = True

    def _uniforms(self, request: Request) -> Tensor:
        """Return the keyed uniforms float64 [N, S, T]; negative where the most probable token is taken."""
        draw, limit = request.draw, request.law.max_tokens
        drawn = self.keys.uniform(
            draw.purpose,
            round=draw.round,
            attempt=draw.attempt,
            slot=request.slots[:, None, None],
            sample=torch.arange(request.samples)[:, None],
            token=torch.arange(limit),
            dimensions=4,
        )[0]
        return torch.cat([drawn, torch.full((len(request.prompts), request.greedy, limit), -1.0).double()], 1)

    def _parts(self, request: Request) -> Iterator[tuple[int, int]]:
        """Yield first and last + 1 of the prompts of each batch."""
        first, width = 0, 0
        for number, prompt in enumerate(request.prompts):
            width = max(width, len(prompt))
            rows = (number + 1 - first) * request.responses
            if number > first and rows * (width + request.law.max_tokens) > self.tokens:
                yield first, number
                first, width = number, len(prompt)
        yield first, len(request.prompts)

    def _drawn(self, prompts: list[list[int]], uniforms: Tensor, law: Sampling) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens and log-probabilities [n, S, T] and the packed support of n prompts."""
        device = self.model.device
        count, samples, limit = uniforms.shape
        width = max(map(len, prompts))
        tokens = torch.full((count, width), self.pad)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        inputs: dict[str, Any] = {}
        if self.share_prompts and width > 1:
            inputs["past_key_values"] = self._cache(tokens[:, :-1], mask[:, :-1], samples)
        law_drawn = KeyedLaw(law, uniforms.flatten(0, 1), width)
        criteria = StoppingCriteriaList([TextsReached(self.ends, width)] if self.ends.texts else [])
        self.model.generate(
            tokens.repeat_interleave(samples, 0),
            attention_mask=mask.repeat_interleave(samples, 0),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=limit,
                eos_token_id=self.ends.tokens.tolist() or None,
                pad_token_id=self.pad,
                use_cache=True,
            ),
            logits_processor=LogitsProcessorList([law_drawn]),
            stopping_criteria=criteria,
            **inputs,
        )
        return tuple(tensor.unflatten(0, (count, samples)) for tensor in law_drawn.found(self.pad))

    def _cache(self, tokens: Tensor, mask: Tensor, samples: int) -> DynamicCache:
        """Return keys and values of all of the prompts [n, P] but their last token, ``samples`` rows each."""
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        self.model(tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(samples)
        return cache


class KeyedLaw(LogitsProcessor):
    """Draws each step's tokens by inversion of uniforms float64 [R, T], and forces them on ``generate``.

    Where a uniform is negative the most probable token is taken. ``width`` is that of the padded prompts.
    """

    def __init__(self, law: Sampling, uniforms: Tensor, width: int):
        self.law, self.uniforms, self.width = law, uniforms, width
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self.support: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores [R, V] that leave one token for each row."""
        step = input_ids.shape[1] - self.width
        uniforms = self.uniforms[:, step].to(scores.device)
        size = max(1, NUMBERS // scores.shape[-1])
        parts = [self._drawn(*part) for part in zip(scores.split(size), uniforms.split(size), strict=True)]
        tokens, logprobs, support = (torch.cat(part) for part in zip(*parts, strict=True))
        self.tokens.append(tokens.cpu())
        self.logprobs.append(logprobs.cpu())
        self.support.append(support.cpu())
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def _drawn(self, scores: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = law_logprobs(scores.float(), self.law)
        tokens = inverted(logprobs.exp(), uniforms)
        tokens = torch.where(uniforms < 0, logprobs.argmax(-1), tokens)
        support = packed(logprobs > -torch.inf) if cuts(self.law) else tokens[:, None]
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0], support

    def found(self, pad: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, log-probabilities [R, T] and supports of all steps, those that were not taken too."""
        missing = self.uniforms.shape[1] - len(self.tokens)

        def whole(steps: list[Tensor], value: float) -> Tensor:
            return torch.stack([*steps, *[torch.full_like(steps[0], value)] * missing], 1)

        return whole(self.tokens, pad), whole(self.logprobs, 0.0), whole(self.support, 0)


def inverted(probability: Tensor, uniform: Tensor) -> Tensor:
    """Return the tokens int64 [R] at which the distribution function passes ``uniform`` float64 [R].

    ``probability`` [R, V]. A token of probability 0 is never returned, whatever the rounding of the sums; where
    they are not numbers, as of a policy that has diverged, the last token is. The same uniforms give neighbouring
    policies mostly the same tokens, which pairs the rows of a seed.

    >>> inverted(torch.tensor([[0.5, 0.0, 0.5]] * 4), torch.tensor([0.0, 0.49, 0.5, 0.99], dtype=torch.float64))
    tensor([0, 0, 2, 2])
    """
    cumulative = probability.cumsum(-1, dtype=torch.float64)
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())  # the last that can be drawn
    found = torch.searchsorted(cumulative, uniform[:, None].clamp(min=0).contiguous(), right=True)
    return torch.minimum(found, last).clamp(max=probability.shape[-1] - 1)[:, 0]


class TextsReached(StoppingCriteria):
    """Tells ``generate`` which rows have come to a stop text."""

    def __init__(self, ends: Ends, width: int):
        self.ends, self.width = ends, width

    def __call__(self, input_ids: Any, scores: Any, **named: Any) -> Any:
        """Return bool [R]."""
        return self.ends.lengths(input_ids[:, self.width :])[1]
