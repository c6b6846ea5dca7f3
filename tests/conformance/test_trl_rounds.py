"""Whole rounds of a real model: on our rollouts trl's trainer ends with our weights.

Here trl's own forward pass, padding, masks, optimiser and clipping of the gradient are at work, too.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

from small_language import followed, small_spec
from transformers import AutoTokenizer, LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_ablate.bench.trl_settings import objective_arguments, quiet_arguments, training_arguments
from grpo_ablate.bench.trl_side import prompt_texts
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.transformers_folder import from_llama, save_transformers
from grpo_ablate.spec.presets import PRESETS

ROUNDS = 3
PRESET = PRESETS["trl-1.16"].switches
UPDATE = {**PRESET["update"], "mismatch": "none", "inner_passes": 3, "minibatches": 1}
SPARSE = {"advantage": PRESET["advantage"], "update": UPDATE}
CASES = {
    "default": SPARSE,
    "adamw": {**SPARSE, "optimizer": {"name": "adamw", "learning_rate": 3e-4, "betas": [0.9, 0.95],
                                      "max_grad_norm": 1.0}},
    "clip-acts": {**SPARSE, "update": {**UPDATE, "clip_low": 0.01, "clip_high": 0.02}},
    "temperature": {**SPARSE, "sampling": {"temperature": 0.7}},
    "kl": {**SPARSE, "kl": {"beta": 0.5, "gradient": "ratio"}},
    "dr-grpo": {"advantage": {"scale": "none"}, "update": {**UPDATE, "reduction": "constant"}},
    "gspo": {**SPARSE, "update": {**UPDATE, "surrogate": "sequence", "reduction": "sequence-mean"}},
    "entropy": {**SPARSE, "update": {**UPDATE, "entropy_coefficient": 0.1}},
    "truncated-masked": {**SPARSE, "reward": {"overlong": "mask", "masked_in_denominator": False},
                         "sampling": {"max_tokens": 20}},
}  # fmt: skip


def ours(loop, folder):
    """Run the rounds here; return what each drew and the weights after it."""
    parameters = {name: tensor[0] for name, tensor in loop.policy.parameters().items()}
    save_transformers(parameters, loop.spec.policy, loop.task, folder)
    rounds = []
    for _ in range(ROUNDS):
        loop.advance()
        rounds.append((loop.drawn.batch, {name: t[0].clone() for name, t in loop.policy.parameters().items()}))
    return parameters, rounds


def responses(batch):
    """Return the tokens of every response, padding left out."""
    tokens, scored = batch.tokens[0].flatten(0, 1), batch.token[0].flatten(0, 1)
    return [row[mask].tolist() for row, mask in zip(tokens, scored, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_on_our_rollouts_trl_ends_with_our_weights(case, tmp_path):
    spec = small_spec(rounds=ROUNDS, **CASES[case])
    loop = followed(spec)
    start, rounds = ours(loop, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = prompt_texts(loop.task, torch.cat([batch.prompts[0] for batch, _ in rounds]), tokenizer)
    left, weights = iter(rounds), []

    def replay(prompts, trainer):
        batch, _ = next(left)
        asked = trainer.processing_class(prompts)["input_ids"]
        return {"prompt_ids": asked, "completion_ids": responses(batch), "logprobs": None,
                "reward": batch.reward[0].flatten().tolist()}  # fmt: skip

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            if state.global_step % spec.steps_per_round == 0:
                weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    def drawn_reward(*, reward, **_):
        return reward

    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    # transformers gives the pad token's embedding no gradient; random weights say it like any other word.
    model.model.embed_tokens.padding_idx = None
    arguments = {
        **quiet_arguments(str(tmp_path / "out"), 0, "cpu"),
        **training_arguments(spec, case),
        **objective_arguments(spec, case),
    }
    from datasets import Dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        trainer = GRPOTrainer(
            model,
            drawn_reward,
            GRPOConfig(**arguments),
            Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer,
            callbacks=[Watch()],
            rollout_func=replay,
        )
    trainer.train()

    assert len(weights) == ROUNDS
    architecture = Architecture(spec.policy, len(loop.task.vocabulary))
    moved = 0.0
    for (_, mine), state in zip(rounds, weights, strict=True):
        theirs = from_llama(state, architecture)
        for name, tensor in mine.items():
            torch.testing.assert_close(
                theirs[name], tensor, rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
            )
            moved = max(moved, float((tensor - start[name]).abs().max()))
    assert moved > 5e-4  # far more than the tolerance: the steps are there to be seen
