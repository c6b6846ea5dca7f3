"""Whether a model lets responses share their prompt: its attention must take a mask for every pair of places."""

from __future__ import annotations

import math
from typing import Any

import torch

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.scoring import Responses, Scorer
from grpo_ablate.spec.schema import HuggingFacePolicy

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}  # largest difference in log-probability of a few tokens


def check_sharing(scorer: Scorer, settings: HuggingFacePolicy) -> None:
    """Raise UserError where a few tokens scored with a shared prompt differ from the same tokens scored alone.

    A window of attention shows itself in long sequences only, so the configuration must say that there is none.
    """
    config: Any = scorer.model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windowed = set(kinds) != {"full_attention"} if kinds else getattr(config, "sliding_window", None) is not None
    if windowed or not _difference(scorer) <= TOLERANCE[settings.dtype]:
        raise UserError(
            f"policy.share_prompts: '{settings.model}' has layers that do not take a mask for every pair of "
            "tokens: use share_prompts: false."
        )


def _difference(scorer: Scorer) -> float:
    """Return the largest difference in log-probability; infinite where the model cannot take such a mask."""
    known = scorer.model.get_input_embeddings().num_embeddings
    some = (torch.arange(3, 15) % known).tolist()
    responses = Responses(
        [some[:5], some[:3]], [[some[5:9], some[8:10], some[4:6]], [some[2:6], some[7:12]]], 1.0, 6
    )
    try:
        shared = scorer.values(responses).logprobs
    except (ValueError, TypeError, RuntimeError, IndexError):  # the mask has more axes than the model expects
        return math.inf
    scorer.share = False
    alone = scorer.values(responses).logprobs
    scorer.share = True
    return float((shared - alone).abs().max())
