"""One categorical distribution per prompt with logits of its own: the policy of the selection task.

A response is one token, the number of a candidate (T = 1). Everything is float64, and the reference,
the entropy, the KL divergence and the expected quality are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.algorithm.sampling import law_logprobs, supported_logprobs
from grpo_ablate.policies.evaluation import sampled_metrics
from grpo_ablate.policies.optimizer import StackedOptimizer
from grpo_ablate.policies.protocol import Draw, Samples
from grpo_ablate.rng import Keys, Purpose, RoundUniforms
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.selection import Selection


class Tabular:
    """M members, each with logits float64 [P, C] over the C candidates of P prompts, started uniform.

    Sampling and scoring use the law of ``spec.sampling`` (temperature, top-k, top-p); evaluation measures
    the policy itself, at temperature 1 with every candidate, so that rows with different laws compare.
    """

    def __init__(self, spec: Spec, task: Selection, keys: Keys):
        self.spec, self.task, self.keys = spec, task, keys
        self.members = len(keys.seeds)
        self.temperature = spec.sampling.temperature
        shape = (self.members, *task.qualities.shape)
        self.logits = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        self.reference = torch.zeros(shape, dtype=torch.float64)
        self.optimizer = StackedOptimizer([self.logits], spec.optimizer, spec.rounds * spec.steps_per_round)
        self.invalid = None if task.valid.all() else ~task.valid
        self.truncates = spec.sampling.top_k != "off" or spec.sampling.top_p < 1
        self.uniforms = RoundUniforms(keys, Purpose.RESPONSE, (spec.sampling.prompts, spec.sampling.group_size, 1))

    @torch.no_grad()
    def sample(
        self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool = False
    ) -> Samples:
        """Draw candidates by inverting the distribution function at keyed uniforms.

        The same uniforms give neighbouring policies mostly the same candidates, which pairs the rows of a seed.
        """
        support = self._support(prompts)
        law = self._law(self.logits, prompts, support)
        tokens = _invert(law, self._uniforms(prompts, group_size, draw))[..., None]
        logprobs = _chosen(law, tokens)
        old_kl = None
        if kl_exact:
            reference = self._law(self.reference, prompts, support)
            old_kl = _spread(_divergence(law, reference, support), tokens)
        return Samples(
            tokens=tokens,
            token=torch.ones_like(tokens, dtype=torch.bool),
            truncated=torch.zeros(tokens.shape[:3], dtype=torch.bool),
            sampler_logprobs=logprobs,
            old_logprobs=logprobs,
            old_kl_exact=old_kl,
            support=support,
        )

    def logprobs(self, batch: Batch, *, kl_exact: bool = False) -> Says:
        """Return log-probabilities under the batch's law, the exact entropy, and the exact KL where asked."""
        law = self._law(self.logits, batch.prompts, batch.support)
        divergence = None
        if kl_exact:
            reference = self._law(self.reference, batch.prompts, batch.support)
            divergence = _spread(_divergence(law, reference, batch.support), batch.tokens)
        entropy = _spread(_entropy(law, batch.support), batch.tokens)
        return Says(_chosen(law, batch.tokens), entropy, divergence)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the reference's log-probabilities [M, B, G, 1] under the same law."""
        return _chosen(self._law(self.reference, batch.prompts, batch.support), batch.tokens)

    def refresh_reference(self, members: Tensor) -> None:
        """Make the current logits the reference of ``members``."""
        self.reference = torch.where(members[:, None, None], self.logits.detach(), self.reference)

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of each member's loss [M]; members share no parameters, so the sum keeps them apart."""
        loss.sum().backward()

    def step(self, members: Tensor) -> Tensor:
        """Take one optimiser step for ``members``; return the gradient norms, float64 [M]."""
        return self.optimizer.step(members)

    def finite(self) -> Tensor:
        """Return whether every logit of a member is finite, bool [M]."""
        return self.logits.detach().isfinite().flatten(1).all(1)

    @torch.no_grad()
    def evaluate(self, samples: int | str, round: int) -> dict[str, Tensor]:
        """Measure the policy on every prompt: exactly, or from ``samples`` keyed candidates per prompt.

        Of tied most probable candidates greedy accuracy counts the share that is best. In the sampled form
        a distinct answer is a distinct candidate, and pass@k asks for a candidate of the highest quality.
        """
        prompts = torch.arange(self.task.prompt_count).expand(self.members, -1)
        support = None if self.invalid is None else ~self.invalid[prompts]
        law = _logprobs(self.logits, support, 1.0)
        probability = law.exp()
        top = law == law.amax(-1, keepdim=True)
        best, qualities = self.task.best, self.task.qualities
        found = {
            "eval/reward": (probability * qualities).sum(-1).mean(-1),
            "eval/accuracy": (probability * best).sum(-1).mean(-1),
            "eval/greedy_accuracy": ((top & best).sum(-1) / top.sum(-1)).double().mean(-1),
            "eval/entropy": _entropy(law, support).mean(-1),
            "eval/kl": _divergence(law, _logprobs(self.reference, support, 1.0), support).mean(-1),
        }
        if isinstance(samples, int):
            tokens = _invert(law, self._uniforms(prompts, samples, Draw(Purpose.EVALUATION, round)))
            scored = torch.ones_like(tokens, dtype=torch.bool)[..., None]
            found |= sampled_metrics(self.task.score(prompts, tokens[..., None], scored), tokens)
        return found

    def parameters(self) -> dict[str, Tensor]:
        """Return the logits, float64 [M, P, C]."""
        return {"logits": self.logits.detach()}

    def state(self) -> dict[str, Tensor]:
        """Return logits, reference and the optimiser's state."""
        optimizer = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return {"logits": self.logits.detach(), "reference": self.reference, **optimizer}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        with torch.no_grad():
            self.logits.copy_(state["logits"])
        self.reference = state["reference"].clone()
        prefix = "optimizer."
        self.optimizer.load({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})

    def _uniforms(self, prompts: Tensor, group_size: int, draw: Draw) -> Tensor:
        """Return the keyed uniforms [M, B, G] of a call."""
        if draw.purpose is Purpose.RESPONSE:
            return self.uniforms(draw.round, draw.attempt)[..., 0]
        slot, sample = torch.arange(prompts.shape[1])[:, None], torch.arange(group_size)
        return self.keys.uniform(
            draw.purpose, round=draw.round, attempt=draw.attempt, slot=slot, sample=sample, dimensions=3
        )

    def _support(self, prompts: Tensor) -> Tensor | None:
        """Return the candidates that can be drawn now, bool [M, B, C]; None where every candidate can."""
        if not self.truncates:
            return None if self.invalid is None else ~self.invalid[prompts]
        logits = _rows(self.logits, prompts)
        if self.invalid is not None:
            logits = logits.masked_fill(self.invalid[prompts], -torch.inf)
        return law_logprobs(logits, self.spec.sampling) > -torch.inf

    def _law(self, logits: Tensor, prompts: Tensor, support: Tensor | None) -> Tensor:
        """Return the law's log-probabilities of the candidates of ``prompts``, float64 [M, B, C]."""
        return _logprobs(_rows(logits, prompts), support, self.temperature)


def _logprobs(logits: Tensor, support: Tensor | None, temperature: float) -> Tensor:
    if support is not None:
        return supported_logprobs(logits, support, temperature)
    return (logits if temperature == 1 else logits / temperature).log_softmax(-1)


def _rows(table: Tensor, prompts: Tensor) -> Tensor:
    """Return the rows [M, B, C] of a table [M, P, C] that belong to ``prompts`` int64 [M, B]."""
    return table.gather(1, prompts[:, :, None].expand(-1, -1, table.shape[2]))


def _chosen(law: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each chosen candidate: law [M, B, C], tokens [M, B, G, 1] -> [M, B, G, 1]."""
    return law.gather(2, tokens[..., 0])[..., None]


def _spread(values: Tensor, tokens: Tensor) -> Tensor:
    """Repeat a number per prompt [M, B] over the responses: [M, B, G, 1]."""
    return values[:, :, None, None].expand(tokens.shape)


def _expectation(law: Tensor, values: Tensor, support: Tensor | None) -> Tensor:
    """Return the mean of ``values`` under the law, [M, B]; what lies outside the support never enters."""
    if support is not None:
        values = torch.where(support, values, 0.0)
    return (law.exp() * values).sum(-1)


def _entropy(law: Tensor, support: Tensor | None) -> Tensor:
    return -_expectation(law, law, support)


def _divergence(law: Tensor, reference: Tensor, support: Tensor | None) -> Tensor:
    return _expectation(law, law - reference, support)


def _invert(law: Tensor, uniforms: Tensor) -> Tensor:
    """Return the candidates int64 [M, B, G] at which the distribution function passes the uniforms [M, B, G].

    A candidate of probability 0 is never returned, whatever the rounding of the sums.
    """
    cumulative = law.exp().cumsum(-1)
    # From the last candidate that can be drawn onwards, the function is 1 by definition.
    last = (cumulative >= cumulative[..., -1:]) | cumulative.isnan()
    bounds = torch.where(last, torch.inf, cumulative)
    return (uniforms[..., None] >= bounds[:, :, None, :]).sum(-1)
