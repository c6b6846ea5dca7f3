"""Rollout engines by the name that ``sampling.engine`` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_ablate.policies.huggingface.agreement import TOLERANCE
from grpo_ablate.policies.huggingface.requests import Engine

if TYPE_CHECKING:
    from grpo_ablate.policies.huggingface.policy import HuggingFace


def _transformers(policy: HuggingFace) -> Engine:
    from grpo_ablate.policies.huggingface.drawing import TransformersEngine

    settings = policy.settings
    return TransformersEngine(
        policy.model,
        policy.ends,
        policy.pad,
        policy.keys,
        settings.microbatch_tokens,
        TOLERANCE[settings.dtype],
        share_prompts=settings.share_prompts,
    )


def _vllm(policy: HuggingFace) -> Engine:
    from grpo_ablate.policies.huggingface.vllm_engine import VllmEngine

    return VllmEngine(policy)


ENGINES = {"transformers": _transformers, "vllm": _vllm}


def make_engine(policy: HuggingFace) -> Engine:
    """Return the engine that a policy's spec asks for."""
    return ENGINES[policy.spec.sampling.engine](policy)
