"""A member as a transformers folder: the same logits, the same tokens, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_task import WORDS, Small
from stacked_specs import make, spec
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ablate.errors import UserError
from grpo_ablate.policies.stacked.transformers_folder import load_transformers, save_transformers

SECTIONS = [{}, {"kv_heads": 1, "tied": True}, {"heads": 4, "kv_heads": 2, "layers": 1, "rope_theta": 500.0}]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_equal_transformers_with_padding_on_either_side(tmp_path: Path, section: dict, side: str) -> None:
    policy = make(spec(policy=section), 0, 7)
    parameters = {name: value[1] for name, value in policy.parameters().items()}
    save_transformers(parameters, policy.spec.policy, policy.task, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    numbers = torch.tensor([[0, 9, 20, 3, 4, 30, 8, 1]])
    length = policy.prompt_length[numbers[0]]
    # Every prompt followed by nothing, padded to one width on the given side.
    width = int(length.max())
    tokens = torch.full((8, width), policy.task.pad)
    mask = torch.zeros(8, width, dtype=torch.int64)
    for row, count in enumerate(length.tolist()):
        where = slice(width - count, width) if side == "left" else slice(0, count)
        tokens[row, where] = policy.prompts[numbers[0, row], :count]
        mask[row, where] = 1
    position = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask, position_ids=position).logits
    last = torch.full_like(length, width - 1) if side == "left" else length - 1
    theirs = logits[torch.arange(8), last].log_softmax(-1)
    wanted = torch.ones(2, 8, dtype=torch.bool)
    greedy = policy.generate(numbers.expand(2, -1), 1, torch.full((2, 8, 1, 7), -1.0), wanted, plain=True)
    torch.testing.assert_close(greedy.logprobs[1, :, 0, 0], theirs.amax(-1), atol=1e-5, rtol=0)
    assert torch.equal(greedy.tokens[1, :, 0, 0], theirs.argmax(-1))


def test_transformers_generates_the_greedy_responses(tmp_path: Path) -> None:
    policy = make(spec(), 3)
    parameters = {name: value[0] for name, value in policy.parameters().items()}
    save_transformers(parameters, policy.spec.policy, policy.task, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    numbers = torch.arange(8)[None] * 5
    mine = policy.generate(
        numbers, 1, torch.full((1, 8, 1, 7), -1.0), torch.ones(1, 8, dtype=torch.bool), plain=True
    )
    for row, number in enumerate(numbers[0]):
        prompt = policy.prompts[number][: policy.prompt_length[number]][None]
        limit = policy.spec.sampling.max_tokens
        theirs = model.generate(prompt, max_new_tokens=limit, do_sample=False)[0, prompt.shape[1] :]
        response = mine.tokens[0, row, 0][mine.token[0, row, 0]]
        assert theirs.tolist() == response.tolist()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_folder_holds_every_bit_of_the_parameters(tmp_path: Path, section: dict) -> None:
    policy = make(spec(policy=section), 5)
    parameters = {name: value[0] for name, value in policy.parameters().items()}
    save_transformers(parameters, policy.spec.policy, policy.task, tmp_path)
    found = load_transformers(tmp_path, policy.spec.policy, len(WORDS))
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert torch.equal(found[name], value), name
    again = make(spec(policy=section), 5, 6, start={name: value[None] for name, value in found.items()})
    assert torch.equal(again.flat[0], policy.flat[0]) and torch.equal(again.flat[1], policy.flat[0])


@pytest.mark.parametrize("end_is_pad", [False, True])
def test_the_tokenizer_reads_and_writes_words(tmp_path: Path, end_is_pad: bool) -> None:
    policy = make(spec(), 0, task=Small(end_is_pad=end_is_pad))
    parameters = {name: value[0] for name, value in policy.parameters().items()}
    save_transformers(parameters, policy.spec.policy, policy.task, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("say a and g")["input_ids"] == [2, 4, 3, 10]
    assert tokenizer("a b <end>")["input_ids"] == [4, 5, 1]
    assert tokenizer.decode([2, 4, 3, 10, 1]) == "say a and g <end>"
    assert tokenizer.decode([2, 4, 3, 10, 1], skip_special_tokens=True) == "say a and g"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, policy.task.pad)
    assert tokenizer(["say a", "say a and g"], padding=True)["input_ids"][0][:2] == [policy.task.pad] * 2


def test_another_shape_is_refused_in_a_sentence(tmp_path: Path) -> None:
    policy = make(spec(), 0)
    parameters = {name: value[0] for name, value in policy.parameters().items()}
    save_transformers(parameters, policy.spec.policy, policy.task, tmp_path)
    with pytest.raises(UserError, match="not the weights"):
        load_transformers(tmp_path, make(spec(policy={"layers": 3}), 0).spec.policy, len(WORDS))
    with pytest.raises(UserError, match="embedding has shape"):
        load_transformers(tmp_path, policy.spec.policy, 12)
    with pytest.raises(UserError, match="not the weights"):
        load_transformers(tmp_path / "nowhere", policy.spec.policy, len(WORDS))
