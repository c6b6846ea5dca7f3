"""One member as a folder that transformers and vLLM read, tokenizer included, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.spec.schema import StackedPolicy
from grpo_ablate.tasks.protocol import LanguageTask
from grpo_ablate.tensor_files import os_errors

LAYER = "model.layers.{}."
OUTPUT = "lm_head.weight"


def to_llama(parameters: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return the weights of a LlamaForCausalLM, by its names, from one member's parameters [...]."""
    settings = architecture.settings
    heads = [settings.heads, settings.kv_heads, settings.kv_heads]
    found = {"model.embed_tokens.weight": parameters["embedding"], "model.norm.weight": parameters["norm"]}
    if not settings.tied:
        found[OUTPUT] = parameters["head"].T
    for layer in range(settings.layers):
        name, theirs = f"layers.{layer}.", LAYER.format(layer)
        sizes = [count * settings.head_size for count in heads]
        query, key, value = parameters[name + "attention_in"].T.split(sizes)
        gate, up = parameters[name + "mlp_in"].T.chunk(2)
        found |= {
            theirs + "input_layernorm.weight": parameters[name + "attention_norm"],
            theirs + "self_attn.q_proj.weight": _in_halves(query, settings.head_size),
            theirs + "self_attn.k_proj.weight": _in_halves(key, settings.head_size),
            theirs + "self_attn.v_proj.weight": value,
            theirs + "self_attn.o_proj.weight": parameters[name + "attention_out"].T,
            theirs + "post_attention_layernorm.weight": parameters[name + "mlp_norm"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": parameters[name + "mlp_out"].T,
        }
    return {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in found.items()}


def from_llama(weights: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return one member's parameters from the weights of a LlamaForCausalLM; the inverse of ``to_llama``."""
    settings = architecture.settings
    found = {"embedding": weights["model.embed_tokens.weight"], "norm": weights["model.norm.weight"]}
    if not settings.tied:
        found["head"] = weights[OUTPUT].T
    for layer in range(settings.layers):
        name, theirs = f"layers.{layer}.", LAYER.format(layer)
        query = _interleaved(weights[theirs + "self_attn.q_proj.weight"], settings.head_size)
        key = _interleaved(weights[theirs + "self_attn.k_proj.weight"], settings.head_size)
        inputs = torch.cat([query, key, weights[theirs + "self_attn.v_proj.weight"]])
        both = torch.cat([weights[theirs + "mlp.gate_proj.weight"], weights[theirs + "mlp.up_proj.weight"]])
        found |= {
            name + "attention_norm": weights[theirs + "input_layernorm.weight"],
            name + "attention_in": inputs.T,
            name + "attention_out": weights[theirs + "self_attn.o_proj.weight"].T,
            name + "mlp_norm": weights[theirs + "post_attention_layernorm.weight"],
            name + "mlp_in": both.T,
            name + "mlp_out": weights[theirs + "mlp.down_proj.weight"].T,
        }
    return {name: found[name].float().contiguous() for name in architecture.shapes}


def _in_halves(rows: Tensor, size: int) -> Tensor:
    """Undo the interleaving of the halves within each head; rows [heads D, H]."""
    return rows.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)


def _interleaved(rows: Tensor, size: int) -> Tensor:
    return rows.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def configuration(architecture: Architecture, task: LanguageTask) -> dict[str, Any]:
    """Return the config.json of the folder."""
    settings = architecture.settings
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": architecture.vocabulary,
        "hidden_size": settings.hidden,
        "intermediate_size": settings.intermediate,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": settings.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": settings.rms_eps,
        "rope_theta": settings.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rope_theta},
        "tie_word_embeddings": settings.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": task.end,
        "pad_token_id": task.pad,
        "torch_dtype": "float32",
    }


def save_transformers(
    parameters: dict[str, Tensor], settings: StackedPolicy, task: LanguageTask, folder: Path
) -> None:
    """Write one member, ``parameters`` by name without a leading axis, as a LlamaForCausalLM folder."""
    architecture = Architecture(settings, len(task.vocabulary))
    folder.mkdir(parents=True, exist_ok=True)
    with os_errors():
        save_file(to_llama(parameters, architecture), folder / "model.safetensors", metadata={"format": "pt"})
    texts: dict[str, Any] = {
        "config.json": configuration(architecture, task),
        "generation_config.json": {"eos_token_id": task.end, "pad_token_id": task.pad},
        **tokenizer_files(task),
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_transformers(folder: Path, settings: StackedPolicy, vocabulary: int) -> dict[str, Tensor]:
    """Return one member's parameters from a LlamaForCausalLM folder.

    Raises UserError where the folder's weights are not those of ``settings`` over ``vocabulary`` tokens.
    """
    architecture = Architecture(settings, vocabulary)
    path = folder / "model.safetensors"
    try:
        weights = load_file(path)
        found = from_llama(weights, architecture)
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: not the weights of this policy's Llama model ({error}).") from None
    for name, shape in architecture.shapes.items():
        if tuple(found[name].shape) != shape:
            raise UserError(f"{path}: {name} has shape {tuple(found[name].shape)}, the policy needs {shape}.")
    return found


def tokenizer_files(task: LanguageTask) -> dict[str, Any]:
    """Return tokenizer.json and tokenizer_config.json: a word is a token, words stand between spaces.

    The end and pad tokens are special: decoding can skip them.
    """
    added = [
        {
            "id": token,
            "content": task.vocabulary[token],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in sorted({task.end, task.pad})
    ]
    words = {word: token for token, word in enumerate(task.vocabulary)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": task.vocabulary[task.pad]},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": task.vocabulary[task.end],
        "pad_token": task.vocabulary[task.pad],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "padding_side": "left",
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}
