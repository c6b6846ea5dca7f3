"""M Llama-shaped transformers behind the protocol of the training loop, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.policies.optimizer import StackedOptimizer
from grpo_ablate.policies.protocol import Draw, Samples
from grpo_ablate.policies.stacked import drawing, scoring
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.decoder import Workspace, decoder
from grpo_ablate.policies.stacked.evaluation import evaluate
from grpo_ablate.policies.stacked.initial import flattened, initial_parameters
from grpo_ablate.policies.stacked.layout import Layout, layout
from grpo_ablate.policies.stacked.rotation import rotations
from grpo_ablate.rng import Keys, Purpose, RoundUniforms
from grpo_ablate.spec.schema import Spec, StackedPolicy
from grpo_ablate.tasks.protocol import LanguageTask


class Stacked:
    """M members over the vocabulary of a language task, from ``start`` or from keyed random weights.

    ``start`` are parameters by name, [M, ...] or [1, ...] for a start that all members share. On a CPU members
    are scored and trained one after the other, each in its own shapes, so that none can reach another's
    rounding; on a GPU all of them at once. Tensors that are returned live on the CPU.
    """

    def __init__(self, spec: Spec, task: LanguageTask, keys: Keys, start: dict[str, Tensor] | None = None):
        settings = spec.policy
        assert isinstance(settings, StackedPolicy)
        self.spec, self.task, self.keys = spec, task, keys
        self.members = len(keys.seeds)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.chunk = 1 if self.device.type == "cpu" else self.members
        self.architecture = Architecture(settings, len(task.vocabulary))
        if start is None:
            start = initial_parameters(settings, len(task.vocabulary), keys)
        self.flat = flattened(start, self.architecture, self.members).to(self.device).requires_grad_()
        self.reference = self.flat.detach().clone()
        self.gradient = torch.zeros_like(self.reference)
        self.leaves = [self._leaf(first) for first in range(0, self.members, self.chunk)]
        self.optimizer = StackedOptimizer([self.flat], spec.optimizer, spec.rounds * spec.steps_per_round)
        everything = torch.arange(task.prompt_count + task.held_out_count)
        prompts, length = task.prompt_tokens(everything)
        # torch's softmax over fewer than 16 numbers is many times slower.
        prompts = torch.nn.functional.pad(prompts, (0, max(0, 16 - prompts.shape[1])), value=task.pad)
        self.prompts, self.prompt_length = prompts.to(self.device), length.to(self.device)
        positions = prompts.shape[1] + spec.sampling.max_tokens
        self.turns = rotations(self.architecture, positions, self.device)
        shape = (spec.sampling.prompts, spec.sampling.group_size, spec.sampling.max_tokens)
        self.workspace = Workspace()
        self.uniforms = RoundUniforms(keys, Purpose.RESPONSE, shape)

    def _leaf(self, first: int) -> Tensor:
        """Return a chunk of members as a leaf of its own, whose gradient is a view of the whole's."""
        leaf = self.flat.detach()[first : first + self.chunk].requires_grad_()
        leaf.grad = self.gradient[first : first + self.chunk]
        return leaf

    @torch.no_grad()
    def sample(
        self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool = False
    ) -> Samples:
        """Draw responses under the sampling law; the trainer's log-probabilities are the sampler's.

        Both are the same float32 arithmetic in another order of sums, so that the first ratios of a round differ
        from 1 by rounding alone. A KL in the reward takes them as the reference's are taken: the KL of a policy
        that is its own reference is then exactly 0, where rounding would tell the responses of a group apart.
        """
        drawn = self.generate(prompts, group_size, self._uniforms(prompts, group_size, draw), wanted)
        logprobs = old_logprobs = drawn.logprobs.cpu()
        old_kl, kl = None, self.spec.kl
        if kl.beta > 0 and kl.place != "loss":
            says = self._score(prompts, drawn.tokens, drawn.token, drawn.support, kl_exact)
            old_logprobs, old_kl = says.logprobs.detach(), says.kl_exact
        return Samples(
            tokens=drawn.tokens.cpu(),
            token=drawn.token.cpu(),
            truncated=drawn.truncated.cpu(),
            sampler_logprobs=logprobs,
            old_logprobs=old_logprobs,
            old_kl_exact=old_kl,
            support=None if drawn.support is None else drawn.support.cpu(),
        )

    def generate(
        self, prompts: Tensor, group_size: int, uniforms: Tensor, wanted: Tensor, *, plain: bool = False
    ) -> drawing.Drawn:
        """Draw ``group_size`` responses to ``prompts`` int64 [M, B]; greedily where ``uniforms`` are negative.

        ``plain``: at temperature 1 with full support, whatever the sampling law is.
        """
        law = self.spec.sampling
        if plain:
            law = law.model_copy(update={"temperature": 1.0, "top_k": "off", "top_p": 1.0})
        where = prompts.to(self.device)
        return drawing.draw(
            decoder(self.flat.detach(), self.architecture, self.turns),
            self.prompts[where],
            self.prompt_length[where],
            uniforms.to(self.device),
            wanted.to(self.device),
            group_size,
            law,
            self.task.end,
            self.task.pad,
            self.workspace,
        )

    def logprobs(self, batch: Batch, *, kl_exact: bool = False) -> Says:
        """Return log-probabilities under the batch's law, the exact entropy, and the exact KL where asked.

        All three are 0 outside ``batch.present``, and cost nothing there.
        """
        token = batch.token & batch.present[..., None]
        return self._score(batch.prompts, batch.tokens, token, batch.support, kl_exact)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the reference's log-probabilities [M, B, G, T] under the same law."""
        token = batch.token & batch.present[..., None]
        parts = []
        for first in range(0, self.members, self.chunk):
            place = self._layout(first, batch.prompts, batch.tokens, token)
            law = self._law(first, place, batch.support, plain=False)
            rows = scoring.row_logprobs(self._chunk(self.reference, first), self.architecture, place, law)
            parts.append(_widened(scoring.at_targets(rows, place), batch.tokens))
        return torch.cat(parts).cpu()

    def score_plainly(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Says:
        """Return what the policy itself says of responses (temperature 1, full support), exact KL included."""
        return self._score(prompts, tokens, token, None, True, plain=True)

    def _score(
        self,
        prompts: Tensor,
        tokens: Tensor,
        token: Tensor,
        support: Tensor | None,
        kl_exact: bool,
        *,
        plain: bool = False,
    ) -> Says:
        """Score the responses where ``token`` is true, chunk by chunk of members."""
        parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
        for leaf, first in zip(self.leaves, range(0, self.members, self.chunk), strict=True):
            place = self._layout(first, prompts, tokens, token)
            law = self._law(first, place, support, plain=plain)
            if kl_exact:
                reference = self._chunk(self.reference, first)
                law = replace(law, reference=scoring.row_logprobs(reference, self.architecture, place, law))
            parts.append(scoring.score(leaf, self.architecture, place, law))

        def whole(values: Sequence[Tensor]) -> Tensor:
            return torch.cat([_widened(value, tokens) for value in values]).cpu()

        logprobs, entropy, divergence = zip(*parts, strict=True)
        return Says(whole(logprobs), whole(entropy), whole(divergence) if kl_exact else None)

    def _chunk(self, tensor: Tensor, first: int) -> Tensor:
        return tensor[first : first + self.chunk]

    def _layout(self, first: int, prompts: Tensor, tokens: Tensor, token: Tensor) -> Layout:
        where = self._chunk(prompts, first).to(self.device)
        return layout(
            self.prompts[where],
            self.prompt_length[where],
            self._chunk(tokens, first).to(self.device),
            self._chunk(token, first).to(self.device),
            self.architecture,
            self.turns,
        )

    def _law(self, first: int, place: Layout, support: Tensor | None, *, plain: bool) -> scoring.Law:
        """Return the law of a chunk's rows: the temperature, and the stored support [M, B, G, T, V] row by row."""
        if plain:
            return scoring.Law()
        if support is None:
            return scoring.Law(self.spec.sampling.temperature)
        stored = self._chunk(support, first).to(self.device)[:, :, :, : place.rows.shape[-1]]
        chunk, vocabulary = len(stored), stored.shape[-1]
        rows = torch.ones(chunk * place.queries, vocabulary, dtype=torch.bool, device=self.device)
        # The first token of a group has one row for all responses, and they all had the same support.
        rows[place.rows[place.scored]] = stored[place.scored]
        return scoring.Law(self.spec.sampling.temperature, rows.view(chunk, place.queries, vocabulary))

    def refresh_reference(self, members: Tensor) -> None:
        """Make the current parameters the reference of ``members``."""
        self.reference = torch.where(members.to(self.device)[:, None], self.flat.detach(), self.reference)

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of each member's loss [M]; members share no parameters, so the sum keeps them apart."""
        loss.sum().backward()

    def step(self, members: Tensor) -> Tensor:
        """Take one optimiser step for ``members``; return the gradient norms, float64 [M]."""
        self.flat.grad = self.gradient
        norms = self.optimizer.step(members.to(self.device))
        self.gradient.zero_()
        return norms.cpu()

    def finite(self) -> Tensor:
        """Return whether every parameter of a member is finite, bool [M]."""
        return self.flat.detach().isfinite().all(1).cpu()

    def evaluate(self, samples: int | str, round: int) -> dict[str, Tensor]:
        """Measure the policy itself on the held-out prompts."""
        assert isinstance(samples, int)
        return evaluate(self, samples, round)

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name, float32 [M, ...], as views."""
        return self.architecture.views(self.flat.detach().cpu())

    def state(self) -> dict[str, Tensor]:
        """Return parameters, reference and the optimiser's state."""
        optimizer = {f"optimizer.{name}": tensor.cpu() for name, tensor in self.optimizer.state().items()}
        return {"parameters": self.flat.detach().cpu(), "reference": self.reference.cpu(), **optimizer}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        with torch.no_grad():
            self.flat.copy_(state["parameters"])
        self.reference = state["reference"].to(self.device).clone()
        prefix = "optimizer."
        self.optimizer.load({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})

    def _uniforms(self, prompts: Tensor, group_size: int, draw: Draw) -> Tensor:
        """Return the keyed uniforms [M, B, G, T] of a call."""
        if draw.purpose is Purpose.RESPONSE:
            return self.uniforms(draw.round, draw.attempt)
        return self.keyed(draw, torch.arange(prompts.shape[1]), group_size)

    def keyed(self, draw: Draw, slots: Tensor, group_size: int) -> Tensor:
        """Return the keyed uniforms [M, slots, G, T] of some prompt slots int64 [slots]."""
        return self.keys.uniform(
            draw.purpose,
            round=draw.round,
            attempt=draw.attempt,
            slot=slots[:, None, None],
            sample=torch.arange(group_size)[:, None],
            token=torch.arange(self.spec.sampling.max_tokens),
            dimensions=4,
        )


def _widened(values: Tensor, tokens: Tensor) -> Tensor:
    """Pad [C, B, G, n] with zeros to the width T of ``tokens`` [M, B, G, T]."""
    return torch.nn.functional.pad(values, (0, tokens.shape[-1] - values.shape[-1]))
