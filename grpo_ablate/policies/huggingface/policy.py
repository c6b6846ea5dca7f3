"""A pretrained causal language model behind the protocol of the training loop; one member."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Batch
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.agreement import Agreement
from grpo_ablate.policies.huggingface.ends import Ends
from grpo_ablate.policies.huggingface.engines import make_engine
from grpo_ablate.policies.huggingface.evaluation import evaluate
from grpo_ablate.policies.huggingface.loading import context_length, end_tokens, load_model, load_tokenizer
from grpo_ablate.policies.huggingface.lora import add_adapters
from grpo_ablate.policies.huggingface.memory import weights_within_memory, within_memory
from grpo_ablate.policies.huggingface.requests import Drawn, Request, cuts
from grpo_ablate.policies.huggingface.scoring import Pending, Responses, Scorer, Values
from grpo_ablate.policies.huggingface.sharing import check_sharing
from grpo_ablate.policies.huggingface.weights import Weights
from grpo_ablate.policies.protocol import Draw, Samples
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.schema import HuggingFacePolicy, Spec
from grpo_ablate.tasks.protocol import LanguageTask


class HuggingFace:
    """The model that ``policy.model`` names, on the prompts of a language task; M is 1.

    ``start`` is not used: the model is the start. The task's tokens are those of the model's tokenizer.
    Tensors that are returned live on the CPU.

    Raises:
        UserError: the model or a setting cannot be had here, or a prompt leaves no room for a response.
    """

    def __init__(self, spec: Spec, task: LanguageTask, keys: Keys, start: dict[str, Tensor] | None = None):
        assert isinstance(spec.policy, HuggingFacePolicy)
        if len(keys.seeds) != 1:
            raise UserError(
                f"a pretrained model trains one seed a job, not {len(keys.seeds)}: seeds_per_job must be 1."
            )
        self.spec, self.task, self.keys, self.settings = spec, task, keys, spec.policy
        tokenizer = load_tokenizer(self.settings)
        self.model = load_model(self.settings)
        own = getattr(task, "end", None)
        ends = {*end_tokens(self.settings, tokenizer), *(() if own is None else (own,))}
        self.ends = Ends(tokenizer, ends, getattr(task, "stop", ()))
        if not self.ends:
            raise UserError(
                f"policy.model: '{self.settings.model}' has no end token, and the task {spec.task.name} no stop "
                "text: no response could end; set eos_token in the tokenizer's configuration."
            )
        self.prompts = self._prompts()
        known = self.model.get_input_embeddings().num_embeddings
        told = tokenizer.pad_token_id
        self.pad: int = told if told is not None and told < known else 0  # a tokenizer may have added its own
        if self.settings.lora == "off":
            self.model.requires_grad_(True)
        else:
            add_adapters(self.model, self.settings.lora, keys)
        self.model.generation_config = type(self.model.generation_config)()  # its penalties are no part of the law
        if self.settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        # A copy of what trains is all there is to a reference, under adapters a small one.
        kept = spec.kl.beta > 0 or self.settings.lora != "off"
        with weights_within_memory(self.settings.model):
            self.weights = Weights(self.model, spec.optimizer, spec.rounds * spec.steps_per_round)
            self.reference = self.weights.copies() if kept else {}
        self.refreshed = False
        self.stepped = False  # since the reference was taken
        self.version = 0  # of the weights
        self.scorer = Scorer(
            self.model,
            self.pad,
            self.settings.microbatch_tokens,
            share_prompts=self.settings.share_prompts,
            checkpointed=self.settings.gradient_checkpointing,
            reference=self._as_reference,
        )
        if self.settings.share_prompts:
            check_sharing(self.scorer, spec.policy)
        self.pending: Pending | None = None
        self.agreement = Agreement()
        self.seconds = {"rollout": 0.0, "scoring": 0.0}  # of sampling: where its time goes
        self.engine = make_engine(self)

    def _prompts(self) -> list[list[int]]:
        """Return the tokens of every prompt; refuse those that cannot be answered."""
        everything = torch.arange(self.task.prompt_count + self.task.held_out_count)
        tokens, lengths = self.task.prompt_tokens(everything)
        longest, limit = int(lengths.argmax()), self.spec.sampling.max_tokens
        context, most = context_length(self.model.config), int(lengths.max())
        if context is not None and most + limit > context:
            raise UserError(
                f"task {self.spec.task.name}: prompt {longest} has {most} tokens, and with sampling.max_tokens "
                f"{limit} it exceeds the context of {context} tokens of '{self.settings.model}': shorten it, or "
                "lower sampling.max_tokens."
            )
        if int(lengths.min()) < 1:
            raise UserError(f"task {self.spec.task.name}: prompt {int(lengths.argmin())} is empty.")
        found = [row[:length].tolist() for row, length in zip(tokens, lengths.tolist(), strict=True)]
        known, last = self.model.get_input_embeddings().num_embeddings, max(map(max, found))
        if last >= known:
            raise UserError(
                f"policy.model: the tokenizer of '{self.settings.model}' knows tokens up to {last}, the model has "
                f"{known}: they do not belong together."
            )
        return found

    def sample(
        self, prompts: Tensor, group_size: int, draw: Draw, *, wanted: Tensor, kl_exact: bool = False
    ) -> Samples:
        """Draw responses under the sampling law; the old log-probabilities are those of the scoring pass.

        So they are what the first optimiser step finds again. The engine's own are kept beside them.
        """
        law = self.spec.sampling
        shape = (1, prompts.shape[1], group_size, law.max_tokens)
        tokens = torch.full(shape, self.pad)
        token = torch.zeros(shape, dtype=torch.bool)
        truncated = torch.zeros(shape[:3], dtype=torch.bool)
        sampler = torch.zeros(shape)
        slots = wanted[0].nonzero()[:, 0]
        drawn = self.draw(prompts[0, slots], draw, group_size, slots=slots)
        tokens[0, slots], token[0, slots] = drawn.tokens, drawn.token
        truncated[0, slots] = ~drawn.ended
        sampler[0, slots] = torch.where(drawn.token, drawn.logprobs, 0.0)
        support = None
        if drawn.support is not None:
            support = torch.zeros(*shape, drawn.support.shape[-1], dtype=torch.uint8)
            support[0, slots] = drawn.support
        began = time.perf_counter()
        with within_memory(self.settings.microbatch_tokens, "scoring responses"):
            if cuts(law) and support is None:  # the engine does not say: what the trainer would have drawn from
                support = self.scorer.support(self._responses(prompts, tokens, token, None), law).unflatten(
                    0, shape[1:3]
                )[None]
            values = self.scorer.values(self._responses(prompts, tokens, token, support), divergence=kl_exact)
        self.seconds["scoring"] += time.perf_counter() - began
        old = values.logprobs.view(shape)
        gaps = (old.double() - sampler.double())[token]
        self.engine.check(gaps)
        self.agreement.add(gaps)
        return Samples(
            tokens=tokens,
            token=token,
            truncated=truncated,
            sampler_logprobs=sampler,
            old_logprobs=old,
            old_kl_exact=values.divergence.view(shape) if kl_exact else None,
            support=support,
        )

    def draw(
        self,
        prompts: Tensor,
        draw: Draw,
        samples: int,
        *,
        slots: Tensor | None = None,
        greedy: int = 0,
        plain: bool = False,
    ) -> Drawn:
        """Answer ``prompts`` int64 [N]: ``samples`` times by chance, keyed by ``slots`` (default: their places).

        ``plain``: at temperature 1 with full support, whatever the sampling law is.
        """
        law = self.spec.sampling
        if plain:
            law = law.model_copy(update={"temperature": 1.0, "top_k": "off", "top_p": 1.0})
        slots = torch.arange(len(prompts)) if slots is None else slots
        began = time.perf_counter()
        with within_memory(self.settings.microbatch_tokens, "drawing responses"):
            chosen = [self.prompts[number] for number in prompts.tolist()]
            drawn = self.engine.draw(Request(chosen, slots, draw, samples, law, greedy))
        if draw.purpose is Purpose.RESPONSE:
            self.seconds["rollout"] += time.perf_counter() - began
        return drawn

    def logprobs(self, batch: Batch, *, kl_exact: bool = False) -> Says:
        """Return log-probabilities under the batch's law, the exact entropy, and the exact KL where asked.

        All three are 0 outside ``batch.present``. Their gradient goes on to the weights in ``accumulate``.
        """
        token = batch.token & batch.present[..., None]
        responses = self._responses(batch.prompts, batch.tokens, token, batch.support)
        with within_memory(self.settings.microbatch_tokens, "scoring responses"):
            if torch.is_grad_enabled():
                self.pending = self.scorer.start(responses, divergence=kl_exact)
                values = self.pending.values
            else:
                values = self.scorer.values(responses, divergence=kl_exact)
        shape = token.shape
        divergence = values.divergence.view(shape) if kl_exact else None
        return Says(values.logprobs.view(shape), values.entropy.view(shape), divergence)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the reference's log-probabilities [1, B, G, T] under the same law.

        A policy that is its own reference has the batch's old ones: rounding must not tell the responses of a
        group apart where the KL is part of the reward.
        """
        if self.spec.kl.place != "loss" and not self.stepped:
            return batch.old_logprobs
        token = batch.token & batch.present[..., None]
        responses = self._responses(batch.prompts, batch.tokens, token, batch.support)
        with within_memory(self.settings.microbatch_tokens, "scoring responses"), self._as_reference():
            return self.scorer.values(responses).logprobs.view(token.shape)

    def score_plainly(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Values:
        """Return what the policy says (temperature 1, full support) of tokens [N, S, T], [N S, T] each.

        With the divergence from the reference where one is kept.
        """
        responses = self._responses(prompts[None], tokens[None], token[None], None, plain=True)
        with within_memory(self.settings.microbatch_tokens, "scoring responses"):
            return self.scorer.values(responses, divergence=bool(self.reference))

    def _responses(
        self, prompts: Tensor, tokens: Tensor, token: Tensor, support: Tensor | None, *, plain: bool = False
    ) -> Responses:
        """Return the tokens [1, B, G, T] where ``token`` is true as the scorer takes them."""
        length = token[0].sum(-1)
        rows = [
            [response[:count] for response, count in zip(group, counts, strict=True)]
            for group, counts in zip(tokens[0].tolist(), length.tolist(), strict=True)
        ]
        return Responses(
            prompts=[self.prompts[number] for number in prompts[0].tolist()],
            tokens=rows,
            temperature=1.0 if plain else self.spec.sampling.temperature,
            limit=tokens.shape[-1],
            support=None if support is None else support[0].flatten(0, 1),
        )

    def _as_reference(self) -> AbstractContextManager[None]:
        return self.weights.replaced(self.reference)

    def refresh_reference(self, members: Tensor) -> None:
        """Make the current weights the reference, where ``members`` bool [1] says so."""
        if bool(members[0]):
            self.reference = self.weights.copies()
            # Batches that wait for their round were drawn before: to them the reference is another policy.
            self.refreshed, self.stepped = True, self.spec.update.staleness > 0

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of the loss [1] to the weights, by way of the values that ``logprobs`` returned."""
        assert self.pending is not None, "accumulate follows logprobs"
        loss.sum().backward()
        with within_memory(self.settings.microbatch_tokens, "training"):
            self.scorer.finish(self.pending, self.weights.collect)
        self.pending = None

    def step(self, members: Tensor) -> Tensor:
        """Take one optimiser step where ``members`` bool [1] says so; return the gradient norm, float64 [1]."""
        self.stepped = self.stepped or bool(members[0])
        self.version += 1
        with within_memory(self.settings.microbatch_tokens, "taking a step"):
            return self.weights.step(members)

    def finite(self) -> Tensor:
        """Return whether every trained weight is finite, bool [1]."""
        return self.weights.finite()

    def evaluate(self, samples: int | str, round: int) -> dict[str, Tensor]:
        """Measure the policy itself on the held-out prompts, and close the sums of the engine's agreement."""
        assert isinstance(samples, int)
        return evaluate(self, samples, round) | self.agreement.take()

    def gradients(self) -> list[Tensor]:
        """Return the gradients float32 [1, ...] that the next step will use, to be changed in place."""
        return self.weights.gradients()

    def parameters(self) -> dict[str, Tensor]:
        """Return the adapters, float32 [1, ...]; of a whole model the sha256 of each tensor, uint8 [1, 32]."""
        if self.settings.lora == "off":
            return self.weights.digests()
        return {name: leaf.detach().cpu() for name, leaf in self.weights.leaves.items()}

    def state(self) -> dict[str, Tensor]:
        """Return weights, optimiser, a reference other than the start, and the sums of the engine's agreement."""
        found = self.weights.state() | {
            "flags": torch.tensor([self.refreshed, self.stepped]),
            "agreement": self.agreement.sums,
        }
        if self.refreshed:
            found |= {f"reference.{name}": tensor.cpu() for name, tensor in self.reference.items()}
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self.weights.load(state)
        self.version += 1
        self.refreshed, self.stepped = state["flags"].tolist()
        self.agreement.sums = state["agreement"].clone()
        if self.refreshed:
            self.reference = {
                name: state[f"reference.{name}"].to(self.model.device) for name in self.weights.leaves
            }
