"""Tiny pretrained models for the tests: folders with random weights and a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<end>", "<turn>", "<start>")
CHAT = (
    "{% for message in messages %}<start>{{ message['role'] }}\n{{ message['content'] }}<turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def byte_tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the special ones and the 256 bytes; ``settings`` override its own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate((*SPECIAL, *letters))}
    inner = Tokenizer(models.BPE(vocab=words, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    told = {"pad_token": "<pad>", "eos_token": "<end>", "padding_side": "left", **settings}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        clean_up_tokenization_spaces=False,
        **{k: v for k, v in told.items() if v is not None},
    )


def tiny_llama(seed: int = 0, spread: float = 0.3, **settings: Any) -> LlamaForCausalLM:
    """Return a two-layer Llama with heads of 32 over the bytes, its matrices of standard deviation ``spread``."""
    told = {
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        **settings,
    }
    model = LlamaForCausalLM(LlamaConfig(**told)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else spread / 4 * noise)
    return model


def save_tiny(folder: Path, model: Any = None, tokenizer: Any = None) -> Path:
    """Write a model and a tokenizer as a folder; return it."""
    (model if model is not None else tiny_llama()).save_pretrained(folder)
    (tokenizer if tokenizer is not None else byte_tokenizer(chat_template=CHAT)).save_pretrained(folder)
    return folder
