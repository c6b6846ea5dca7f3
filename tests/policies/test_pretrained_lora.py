"""Adapters: the base model at the start, peft's own model in values and gradients, a reference without a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from pretrained_specs import drawn_batch, keys, make, spec
from test_pretrained_drawing import Texts
from tiny_model import save_tiny, tiny_llama
from torch import Tensor
from transformers import LlamaForCausalLM

from grpo_ablate.policies.huggingface.lora import merged
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import Kl

LORA = {"rank": 4, "alpha": 6.0}
FOUR = torch.arange(4)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("lora"), tiny_llama(tie_word_embeddings=True))


def adapted(folder: Path, policy: dict[str, Any] | None = None, seed: int = 5, **sections: Any) -> HuggingFace:
    settings = spec(
        folder, policy={"lora": LORA, **(policy or {})}, sampling={"prompts": 4, "max_tokens": 6}, **sections
    )
    return make(settings, Texts(), seed)


def trained(policy: HuggingFace) -> HuggingFace:
    """Give the second matrices numbers, so that the adapters do something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, leaf in policy.weights.leaves.items():
            if "lora_B" in name:
                leaf += 0.1 * torch.randn(leaf.shape, generator=generator)
        policy.weights._round()
    policy.stepped = True
    return policy


def of_peft(folder: Path, policy: HuggingFace) -> Any:
    """Return peft's own model with the policy's adapters."""
    base = LlamaForCausalLM.from_pretrained(folder, dtype=policy.model.dtype)
    base.config.pad_token_id = None
    base.get_input_embeddings().padding_idx = None
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=6.0, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    theirs = {name: p for name, p in model.named_parameters() if p.requires_grad}
    mine = {f"base_model.model.{name}": leaf for name, leaf in policy.weights.leaves.items()}
    assert theirs.keys() == mine.keys()
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(mine[name][0])
    return model


def test_a_policy_starts_as_its_base_model(folder: Path) -> None:
    plain = make(spec(folder, sampling={"prompts": 4, "max_tokens": 6}), Texts())
    one, other = drawn_batch(plain, prompts=FOUR), drawn_batch(adapted(folder), prompts=FOUR)
    assert torch.equal(one.tokens, other.tokens)
    torch.testing.assert_close(one.old_logprobs, other.old_logprobs, atol=0, rtol=0)


def test_only_adapters_of_the_inner_layers_train_and_they_are_float32(folder: Path) -> None:
    policy = adapted(folder, {"dtype": "bfloat16"})
    names = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert names == set(policy.weights.leaves) and len(names) == 2 * 7 * 2  # layers, projections, two matrices
    assert all(".lora_" in name and "lm_head" not in name for name in names)
    assert all(leaf.dtype == torch.float32 for leaf in policy.weights.leaves.values())
    assert {p.dtype for p in policy.model.parameters() if not p.requires_grad} == {torch.bfloat16}


@pytest.mark.parametrize("share", [False, True])
def test_values_and_gradients_are_those_of_peft(folder: Path, share: bool) -> None:
    policy = trained(adapted(folder, {"share_prompts": share, "microbatch_tokens": 80}))
    batch = drawn_batch(policy, prompts=FOUR)
    model = of_peft(folder, policy)
    factor = torch.randn(batch.token.shape, generator=torch.Generator().manual_seed(0))
    said = policy.logprobs(batch).logprobs
    policy.accumulate((factor * said).sum((1, 2, 3)))
    total = torch.zeros(())
    for group in range(4):
        prompt = torch.tensor(policy.prompts[group])
        for sample in range(4):
            token = batch.token[0, group, sample]
            response = batch.tokens[0, group, sample][token]
            logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
            torch.testing.assert_close(said[0, group, sample][token], expected, atol=1e-5, rtol=1e-5)
            total = total + (factor[0, group, sample][token] * expected).sum()
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            leaf = policy.weights.leaves[name.removeprefix("base_model.model.")]
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad[0], parameter.grad, atol=5e-5, rtol=1e-3)


def test_the_reference_is_the_base_and_takes_no_second_copy_of_it(folder: Path) -> None:
    policy = trained(adapted(folder, kl=Kl(beta=0.1)))
    base = sum(p.numel() for p in policy.model.parameters() if not p.requires_grad)
    assert sum(tensor.numel() for tensor in policy.reference.values()) < base / 5
    batch = drawn_batch(policy, prompts=FOUR)
    plain = make(spec(folder, sampling={"prompts": 4, "max_tokens": 6}), Texts())
    with torch.no_grad():
        expected = plain.logprobs(batch).logprobs
    torch.testing.assert_close(policy.reference_logprobs(batch), expected, atol=1e-5, rtol=0)
    assert (policy.logprobs(batch).logprobs - expected).abs().max() > 0.01


def test_adapters_start_from_the_seed_alone_within_pefts_bounds(folder: Path) -> None:
    torch.manual_seed(0)
    one = adapted(folder).weights.copies()
    torch.manual_seed(1)
    again, other = adapted(folder).weights.copies(), adapted(folder, seed=6).weights.copies()
    seen: list[Tensor] = []
    for name, value in one.items():
        assert torch.equal(value, again[name])
        if "lora_B" in name:
            assert not value.any()
            continue
        assert not torch.equal(value, other[name])
        bound = value.shape[1] ** -0.5
        assert value.abs().max() <= bound and value.abs().max() > 0.9 * bound
        seen.append(value.flatten()[:8])
    assert len({tuple(row.tolist()) for row in seen}) == len(seen)
    first = keys(5).uniform(Purpose.INITIAL_WEIGHTS, token=torch.arange(3), dimensions=2)[0]
    bound = next(iter(one.values())).shape[1] ** -0.5
    torch.testing.assert_close(
        next(iter(one.values())).flatten()[:3].double(), first * 2 * bound - bound, atol=1e-7, rtol=0
    )


def test_merged_weights_are_pefts_own_by_the_names_of_the_folder(folder: Path) -> None:
    policy = trained(adapted(folder))
    whole = dict(merged(policy.model))
    theirs = of_peft(folder, policy).merge_and_unload()
    assert whole.keys() == {name for name, _ in LlamaForCausalLM.from_pretrained(folder).named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(whole[name], parameter.detach(), atol=1e-6, rtol=1e-6)


def test_the_record_holds_the_adapters(folder: Path) -> None:
    policy = trained(adapted(folder))
    found = policy.parameters()
    assert found.keys() == policy.weights.leaves.keys()
    assert all(value.shape[0] == 1 and value.dtype == torch.float32 for value in found.values())
