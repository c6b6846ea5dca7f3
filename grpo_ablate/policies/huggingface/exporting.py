"""A trained model as a folder that transformers and vLLM read, tokenizer included; adapters are merged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from grpo_ablate.policies.huggingface.loading import load_model, load_tokenizer
from grpo_ablate.policies.huggingface.lora import add_adapters, merged
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import HuggingFacePolicy
from grpo_ablate.tensor_files import os_errors


def save_trained(settings: HuggingFacePolicy, trained: dict[str, Tensor], folder: Path) -> None:
    """Write the model of a policy section with the weights ``trained``, by name, in the section's dtype.

    Raises:
        UserError: the model that training started from is not there any more.
    """
    settings = settings.model_copy(update={"device": "cpu"})
    model = load_model(settings)
    if settings.lora != "off":
        add_adapters(model, settings.lora, Keys(torch.zeros(1, dtype=torch.int64)))
    with torch.no_grad():
        own = dict(model.named_parameters())
        for name, value in trained.items():
            own[name].copy_(value)
    whole = dict(merged(model)) if settings.lora != "off" else {}
    if whole:
        model = load_model(settings)
        model.load_state_dict(whole, strict=False)  # tied weights have one name
    with os_errors():
        model.save_pretrained(folder)
    load_tokenizer(settings).save_pretrained(folder)
