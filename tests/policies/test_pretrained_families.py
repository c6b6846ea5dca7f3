"""Models of several families against plain forward passes in float64: right numbers, or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_specs import drawn_batch, make, spec
from test_pretrained_drawing import Texts
from tiny_model import save_tiny
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertLMHeadModel

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.requests import unpacked

ENDS: dict[str, Any] = {"vocab_size": 260, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
SHAPE = ENDS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": SHAPE,
    "gemma2": {**SHAPE, **CAPS, "sliding_window": 7, "query_pre_attn_scalar": 32},
    "gemma3_text": {**SHAPE, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {**SHAPE, "sliding_window": 8},
    "gpt2": {**ENDS, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2},
    "bloom": {**ENDS, "hidden_size": 64, "n_layer": 2, "n_head": 2},
    "mamba": {**ENDS, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
}
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "uneven": {"microbatch_tokens": 30},
    "checkpointed": {"gradient_checkpointing": True, "microbatch_tokens": 60},
    "shared": {"share_prompts": True},
}
SHARING = ("qwen2", "gpt2")
FOUR = torch.arange(4)[None]


def scattered(model: Any) -> Any:
    """Give a model's matrices numbers that make its law uneven."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = request.param
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **FAMILIES[name]))
    return name, save_tiny(tmp_path_factory.mktemp(name), scattered(model))


def drawn(folder: Path, **policy: Any) -> Any:
    law = {"temperature": 0.7, "top_k": 40, "top_p": 0.95}
    found = make(
        spec(folder, policy=policy, sampling={"prompts": 4, "group_size": 2, "max_tokens": 10, **law}), Texts()
    )
    return found, drawn_batch(found, prompts=FOUR)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_values_and_gradients_are_those_of_plain_forward_passes(family: tuple[str, Path], way: Any) -> None:
    name, folder = family
    if "share_prompts" in way and name not in SHARING:
        with pytest.raises(UserError, match=r"policy\.share_prompts: .*use share_prompts: false"):
            drawn(folder, **way)
        return
    policy, batch = drawn(folder, **way)
    says = policy.logprobs(batch)
    factor = torch.randn(batch.token.shape, generator=torch.Generator().manual_seed(0))
    policy.accumulate((factor * says.logprobs).sum((1, 2, 3)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    model.get_input_embeddings().padding_idx = None  # a drawn token of that id is an input as any other
    total = torch.zeros((), dtype=torch.float64)
    for group, sample in torch.cartesian_prod(torch.arange(4), torch.arange(2)).tolist():
        where = (0, group, sample, slice(0, int(batch.token[0, group, sample].sum())))
        prompt, response = torch.tensor(policy.prompts[group]), batch.tokens[where]
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1].double() / 0.7
        law = logits.masked_fill(~unpacked(batch.support[where], 260), -torch.inf).log_softmax(-1)
        expected = law.gather(1, response[:, None])[:, 0]
        for values in (batch.old_logprobs, batch.sampler_logprobs, says.logprobs):
            torch.testing.assert_close(values[where].double(), expected, atol=2e-5, rtol=0)
        total = total + (factor[where] * expected).sum()
    total.backward()
    for key, parameter in model.named_parameters():
        mine = policy.weights.leaves[key].grad
        assert mine is not None and parameter.grad is not None, key
        size = parameter.grad.abs().max().item()
        torch.testing.assert_close(mine[0].double(), parameter.grad, atol=1e-5 * (1 + size), rtol=1e-4)


def test_a_model_that_sees_later_tokens_is_refused(tmp_path: Path) -> None:
    """BERT reads both ways: what it says of a whole response is not what it drew the response from."""
    shape = {k: v for k, v in SHAPE.items() if k not in ("num_key_value_heads", "head_dim")}
    save_tiny(tmp_path, scattered(BertLMHeadModel(BertConfig(**shape))))
    with pytest.raises(UserError, match=r"sampling\.engine transformers: .*the model is no causal language model"):
        drawn(tmp_path)
