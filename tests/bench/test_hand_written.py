"""The hand-written transformers loop is GRPO: from equal weights and samples, its step is this project's."""

import pytest
import torch
from small_language import followed, small_spec
from transformers import LlamaForCausalLM

from grpo_ablate.bench.hand_written import HandWritten, left_padded, until_end
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.transformers_folder import from_llama, save_transformers


def exported(loop, folder):
    """Return a transformers model with the weights of the loop's one member."""
    parameters = {name: tensor[0] for name, tensor in loop.policy.parameters().items()}
    save_transformers(parameters, loop.spec.policy, loop.task, folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    # transformers gives the pad token's embedding no gradient; random weights say it like any other word.
    model.model.embed_tokens.padding_idx = None
    return model


def same_samples(trainer, loop):
    """Return what the loop drew, as the hand-written loop holds it, and the orders of its minibatches."""
    batch = loop.drawn.batch
    tokens, attention = left_padded(*loop.task.prompt_tokens(batch.prompts[0]), loop.task.pad)
    tokens = tokens.repeat_interleave(loop.spec.sampling.group_size, 0)
    attention = attention.repeat_interleave(loop.spec.sampling.group_size, 0)
    return trainer.rollouts(batch.prompts[0], torch.cat([tokens, batch.tokens[0].flatten(0, 1)], 1), attention)


CASES = {
    "documents": {},
    "documents-adamw": {"optimizer": {"name": "adamw", "learning_rate": 3e-4, "betas": [0.9, 0.95], "warmup": 3}},
    "clipping-active": {"update": {"inner_passes": 4, "minibatches": 2, "clip_low": 0.01, "clip_high": 0.02}},
    "mean-only": {"advantage": {"scale": "none"}},
    "ddof-and-eps": {"advantage": {"ddof": 1, "eps": 0.1}},
    "constant": {"update": {"inner_passes": 2, "minibatches": 2, "reduction": "constant"}},
    "token-mean": {"update": {"inner_passes": 2, "reduction": "token-mean"}},
    "temperature": {"sampling": {"temperature": 0.7}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_hand_written_round_equals_ours(case, tmp_path):
    loop = followed(small_spec(**CASES[case]))
    model = exported(loop, tmp_path)
    start = {name: tensor.clone() for name, tensor in loop.policy.parameters().items()}
    trainer = HandWritten(model, loop.task, loop.spec)
    loop.advance()
    frozen = same_samples(trainer, loop)
    passes = loop.spec.update.inner_passes
    orders = loop.dealt if loop.spec.update.minibatches > 1 else [torch.arange(4)[None]] * passes
    trainer.train(frozen, orders)

    architecture = Architecture(loop.spec.policy, len(loop.task.vocabulary))
    theirs = from_llama(model.state_dict(), architecture)
    moved = 0.0
    for name, ours in loop.policy.parameters().items():
        torch.testing.assert_close(
            theirs[name], ours[0], rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
        moved = max(moved, float((ours - start[name]).abs().max()))
    assert moved > 5e-4  # far more than the tolerance: the step is there to be seen


def test_samples_end_at_the_first_end_token_and_their_logprobs_are_those_of_the_model(tmp_path):
    spec = small_spec()
    loop = followed(spec)
    trainer = HandWritten(exported(loop, tmp_path), loop.task, spec)
    torch.manual_seed(0)
    prompts = torch.tensor([3, 9, 1, 60])
    drawn = trainer.sample(prompts)
    width = drawn.tokens.shape[1] - drawn.scored.shape[1]
    responses = drawn.tokens[:, width:]
    assert torch.equal(drawn.scored, until_end(responses, loop.task.end))
    assert len({tuple(row) for row in responses[:4].tolist()}) > 1  # a group's responses differ
    tokens, lengths = loop.task.prompt_tokens(prompts)
    for row in (0, 5, 15):  # without any padding, one by one
        length, count = int(lengths[row // 4]), int(drawn.scored[row].sum())
        whole = torch.cat([tokens[row // 4, :length], responses[row, :count]])[None]
        with torch.no_grad():
            laws = trainer.model(whole).logits[0, length - 1 : -1].log_softmax(-1)
        expected = laws.gather(1, responses[row, :count, None])[:, 0]
        torch.testing.assert_close(drawn.old_logprobs[row, :count], expected, rtol=0, atol=1e-5)
