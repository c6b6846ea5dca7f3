"""Tokenizer and model of a policy section, from a folder, the hub or the package of SmolLM2."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.memory import out_of_memory
from grpo_ablate.policies.huggingface.smollm2 import smollm2_folder
from grpo_ablate.spec.model_files import SMOLLM2, fingerprint, model_folder
from grpo_ablate.spec.schema import HuggingFacePolicy

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# One of these is in every folder that has a tokenizer: transformers 5 makes an empty one where none is.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
HUB_FILES = ("*.json", "*.jinja", "*.model", "*.txt")


def device_of(settings: HuggingFacePolicy) -> torch.device:
    """Return the device that ``policy.device`` means here. Raises UserError where a GPU is asked for in vain."""
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise UserError(
            "policy.device is cuda, but torch sees no GPU here (`grpo-ablate doctor` says what this machine can "
            "run): use auto or cpu."
        )
    return torch.device("cuda" if there and settings.device != "cpu" else "cpu")


def source(settings: HuggingFacePolicy) -> str:
    """Return the folder that transformers and vLLM load; of a model on the hub, where its files are kept here.

    Raises:
        UserError: the folder is not the one that the row was planned with, SmolLM2's package is missing, or the
            hub cannot be reached and nothing of the model is here.
    """
    if settings.model == SMOLLM2:
        return str(smollm2_folder())
    folder = model_folder(settings)
    if folder is None:
        if settings.digest:
            raise UserError(f"policy.model: there is no folder '{settings.model}'.")
        return _from_the_hub(settings.model, settings.revision)
    found = fingerprint(folder)
    if settings.digest and settings.digest != found:
        raise UserError(
            f"policy.model: the files in {folder} have changed: their digest is {found}, the row was planned with "
            f"{settings.digest}; restore them, or plan the row anew."
        )
    return str(folder)


@cache
def _from_the_hub(name: str, revision: str) -> str:
    """Return where the top folder of a model lies, its weights in one format; fetch it where it is not here."""
    from huggingface_hub import HfApi, snapshot_download

    def fetched(**options: Any) -> str:
        other = ["*/*", "consolidated*"]  # the same weights for other libraries
        for weights in ("*.safetensors", "pytorch_model*.bin"):
            kinds = [*HUB_FILES, weights]
            found = snapshot_download(
                name, revision=revision, allow_patterns=kinds, ignore_patterns=other, **options
            )
            if any(Path(found).glob(weights)):
                break
        return str(found)

    with suppress(Exception):  # a commit does not change: what is here is whole, or fetched
        return fetched(local_files_only=True)
    try:
        HfApi().model_info(name, revision=revision, timeout=10)  # once: what follows tries for a minute
        return fetched()
    except Exception as error:  # the hub and its transport raise what they please
        raise UserError(
            f"policy.model: there is no folder '{name}', and revision {revision} of the model of that name cannot "
            f"be had from the hub: {_reason(error)}."
        ) from None


def load_tokenizer(settings: HuggingFacePolicy) -> Any:
    """Return the tokenizer that lies with the model; one without a pad token pads with its end token.

    Which token fills is of no consequence: lengths are kept beside the tokens, and masks come from them.

    Raises:
        UserError: there is no tokenizer, or it cannot be read.
    """
    from transformers import AutoTokenizer

    where = source(settings)
    if Path(where).is_dir() and not any(Path(where, name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            f"policy.model: {where} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); save the model's "
            "tokenizer there."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # transformers, tokenizers and the hub raise what they please
        raise UserError(_cannot(settings, "tokenizer", error)) from None
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(settings: HuggingFacePolicy) -> Any:
    """Return the model in the section's dtype on its device, without dropout, its parameters frozen.

    Raises:
        UserError: there is no model, a part of its weights is missing, or they do not fit into memory.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    device, where = device_of(settings), source(settings)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        config = without_dropout(AutoConfig.from_pretrained(where, trust_remote_code=False))
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            dtype=DTYPES[settings.dtype],
            attn_implementation=attention_of(config),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told below, in a sentence
            trust_remote_code=False,
        )
        model, told = loaded
        model = model.to(device)
    except Exception as error:
        if not out_of_memory(error):
            raise UserError(_cannot(settings, "model", error)) from None
        raise UserError(
            f"policy.model: {where} does not fit into the memory of {device} in {settings.dtype}: use "
            "policy.dtype bfloat16, or a smaller model."
        ) from None
    if told["mismatched_keys"]:
        name, given, wanted = min(told["mismatched_keys"])
        raise UserError(
            f"policy.model: the weights in {where} are not of the model that its config.json describes: {name} "
            f"has the shape {list(given)}, expected {list(wanted)}."
        )
    if told["missing_keys"]:
        first = sorted(told["missing_keys"])[0]
        raise UserError(
            f"policy.model: the weights in {where} lack {len(told['missing_keys'])} tensors of the model that its "
            f"config.json describes, {first} among them."
        )
    # The pad token is another's id where a tokenizer has none, and would get no gradient as an input.
    model.get_input_embeddings().padding_idx = None
    return model.eval().requires_grad_(False)


def end_tokens(settings: HuggingFacePolicy, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that the folder's generation settings, its configuration or its tokenizer call an end."""
    from transformers import AutoConfig, GenerationConfig

    where, found = source(settings), set[int]()
    told = [tokenizer.eos_token_id]
    for kind in (GenerationConfig, AutoConfig):
        with suppress(OSError, ValueError):  # a folder need not have the first; the second is read with the model
            told.append(kind.from_pretrained(where, trust_remote_code=False).eos_token_id)
    for tokens in told:
        found |= set(tokens) if isinstance(tokens, list) else set() if tokens is None else {int(tokens)}
    return tuple(sorted(found))


def without_dropout(config: Any) -> Any:
    """Set every rate of dropout and jitter in a configuration and its parts to 0.

    A ratio of two log-probabilities means something only where both are of the same network, and gradient
    checkpointing needs the mode in which dropout would act.
    """
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            without_dropout(value)
        elif (
            isinstance(value, float | int) and not isinstance(value, bool) and ("drop" in name or "jitter" in name)
        ):
            setattr(config, name, 0.0)
    return config


def attention_of(config: Any) -> str | None:
    """Return the implementation of attention that computes what a configuration says; None: the model's default.

    The default is fused where the model has one, and the fused one leaves out a cap on attention scores (Gemma 2).
    """
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return "eager" if capped else None


def context_length(config: Any) -> int | None:
    """Return how many tokens a sequence may have, None where the configuration does not say."""
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(found) if found else None


def _cannot(settings: HuggingFacePolicy, part: str, error: Exception) -> str:
    return f"policy.model: no {part} can be loaded from '{settings.model}': {_reason(error)}."


def _reason(error: Exception) -> str:
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].rstrip(".")[:300]
