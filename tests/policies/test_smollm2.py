"""SmolLM2-135M-Instruct: the folder that is made of its package, and rounds of training with vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ablate.policies.huggingface.smollm2 import smollm2_folder
from grpo_ablate.runs.train import make_loop
from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.resolve import find_row
from grpo_ablate.spec.schema import Spec

pytestmark = pytest.mark.slow


def short(engine: str, **sections: Any) -> Spec:
    """Return the shipped row on fewer and smaller rounds, with steps that move the weights."""
    row = find_row("experiments/smollm2-addition.yaml:group-std")[1].effective
    changes: dict[str, Any] = {
        "task": {"train_prompts": 64, "held_out": 2},
        "evaluation": {"every": 1, "samples": 1, "final_samples": "same"},
        "reward": {"transform": "random"},  # so that every round moves the weights
        "sampling": {"prompts": 2, "group_size": 4, "engine": engine},
        "optimizer": {"learning_rate": 1e-5},
        "budget": {"rollouts": 4 * 8},
    }
    return replace(row, changes)


def test_the_folder_is_a_chat_model_that_transformers_reads() -> None:
    folder = smollm2_folder()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008  # of its model card: 135M
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**asked, do_sample=False, max_new_tokens=24)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_and_the_trainer_agree_before_and_after_updates() -> None:
    loop = make_loop(short("vllm"), range(1))
    loop.start()
    found = []
    while not loop.finished:
        line = loop.advance()
        assert line is not None
        found.append({name: value.item() for name, value in line.values.items()})
    assert len(found) == 4
    for values in found:
        assert 0 < values["train/engine_gap_max"] < 1e-4
        assert abs(values["train/ratio_min"] - 1) < 1e-5 and abs(values["train/ratio_max"] - 1) < 1e-5
    assert all(values["train/gradient_norm"] > 0.1 for values in found[:-1])  # three updates before the last round
