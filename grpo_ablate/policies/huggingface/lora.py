"""Low-rank adapters by peft, started from keyed numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.schema import Lora

ADAPTER = "default"
ROW = 1 << 16  # numbers of one key's ``token`` coordinate


def add_adapters(model: Any, settings: Lora, keys: Keys) -> None:
    """Put an adapter in float32 beside every linear layer of ``model`` but the output's; they alone train.

    The first matrix is uniform within 1 / sqrt(inputs), as peft draws it, by the seed's key; the second is 0, so
    that the policy starts as the base model. Raises UserError where peft is not installed or finds no linear
    layer.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError(
            "policy.lora needs the package peft: install it with `pip install -c requirements.lock -e '.[lora]'`."
        ) from None
    alpha: Any = settings.alpha  # peft divides by the rank, whatever its annotation says
    config = LoraConfig(r=settings.rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear")
    try:
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    except ValueError as error:
        raise UserError(f"policy.lora: peft cannot adapt this model: {error}.") from None
    place = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        parameter.data = parameter.data.float()
        if "lora_A" in name:
            bound = 1 / math.sqrt(parameter.shape[1])
            parameter.data.copy_(_uniform(keys, place, parameter.numel()).view_as(parameter) * 2 * bound - bound)
            place += parameter.numel()


def merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's weights by the names of its folder, adapters added to what they stand beside."""
    from peft.tuners.lora import LoraLayer

    inside: set[str] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, LoraLayer):
            layer: Any = module
            inside |= {f"{prefix}.{name}" for name, _ in layer.named_parameters()}
            for name, parameter in layer.base_layer.named_parameters():
                delta = layer.get_delta_weight(ADAPTER).to(parameter.dtype) if name == "weight" else 0
                yield f"{prefix}.{name}", parameter.detach() + delta
    for name, parameter in model.named_parameters():
        if name not in inside:
            yield name, parameter.detach()


def _uniform(keys: Keys, first: int, count: int) -> Tensor:
    number = torch.arange(first, first + count)
    return keys.uniform(Purpose.INITIAL_WEIGHTS, slot=number // ROW, token=number % ROW, dimensions=2)[0]
