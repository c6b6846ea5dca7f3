"""What the engine `transformers` draws: law, ends and keys; beside the stacked policy and forward passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_specs import drawn_batch, make, pair, saved, scattered, spec
from small_task import Small
from stacked_specs import make as make_stacked
from stacked_specs import spec as stacked_spec
from tiny_model import byte_tokenizer, save_tiny, tiny_llama
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.ends import Ends
from grpo_ablate.policies.huggingface.requests import unpacked
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose

LAWS: dict[str, dict[str, Any]] = {
    "model": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 3, "temperature": 1.3},
    "top-p": {"top_p": 0.7},
    "all": {"top_k": 6, "top_p": 0.8, "temperature": 0.9},
}
law = pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
share = pytest.mark.parametrize("share", [False, True], ids=["alone", "shared"])


class Texts:
    """A task in words: prompts of several lengths, as bytes."""

    texts = ("Q: 1+2=", "Q: 12+34=", "?", "Q: 7+8 is what number, please?")
    prompt_count, held_out_count = 4, 0

    def __init__(self, *stop: str) -> None:
        self.stop = stop
        self.groups: dict[str, Tensor] = {}
        self.tokenizer = byte_tokenizer()

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        rows = [self.tokenizer(self.texts[number])["input_ids"] for number in prompts.tolist()]
        width = max(map(len, rows))
        padded = [row + [self.tokenizer.pad_token_id] * (width - len(row)) for row in rows]
        return torch.tensor(padded), torch.tensor([len(row) for row in rows])


def by_hand(policy: Any, model: Any, batch: Any, group: int, sample: int) -> Tensor:
    """Return the law's log-probabilities [L, V] at every prefix of one response, by a plain forward pass."""
    prompt = torch.tensor(policy.prompts[int(batch.prompts[0, group])])
    token = batch.token[0, group, sample]
    response = batch.tokens[0, group, sample][token]
    with torch.no_grad():
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    logits = logits / policy.spec.sampling.temperature
    if batch.support is not None:
        known = unpacked(batch.support[0, group, sample][token], logits.shape[-1])
        logits = logits.masked_fill(~known, -torch.inf)
    return logits.log_softmax(-1)


@law
@share
def test_the_same_keys_draw_the_responses_of_the_stacked_policy(
    tmp_path: Path, sampling: Any, share: bool
) -> None:
    """Two implementations of the model and of the law meet in every token, and agree on what it cost."""
    stacked, policy = pair(tmp_path, {"share_prompts": share}, sampling=sampling)
    theirs, mine = drawn_batch(stacked), drawn_batch(policy)
    assert torch.equal(mine.token, theirs.token) and torch.equal(mine.truncated, theirs.truncated)
    assert torch.equal(mine.tokens[mine.token], theirs.tokens[mine.token])
    for name in ("old_logprobs", "sampler_logprobs"):
        torch.testing.assert_close(getattr(mine, name), theirs.old_logprobs, atol=1e-5, rtol=0)
    if theirs.support is not None:
        assert torch.equal(unpacked(mine.support, 11)[mine.token], theirs.support[mine.token])


@law
@share
def test_log_probabilities_are_those_of_a_plain_forward_pass(tmp_path: Path, sampling: Any, share: bool) -> None:
    _, policy = pair(tmp_path, {"share_prompts": share}, {"heads": 4, "kv_heads": 2}, sampling=sampling)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    batch = drawn_batch(policy)
    for group in range(batch.tokens.shape[1]):
        for sample in range(batch.tokens.shape[2]):
            token = batch.token[0, group, sample]
            expected = by_hand(policy, model, batch, group, sample)
            expected = expected.gather(1, batch.tokens[0, group, sample][token][:, None])[:, 0]
            for values in (batch.old_logprobs, batch.sampler_logprobs):
                torch.testing.assert_close(values[0, group, sample][token], expected, atol=1e-5, rtol=1e-5)
                assert (values[0, group, sample][~token] == 0).all()


@law
@share
def test_the_first_ratios_of_a_round_are_one_under_every_law(tmp_path: Path, sampling: Any, share: bool) -> None:
    _, policy = pair(tmp_path, {"share_prompts": share, "microbatch_tokens": 40}, sampling=sampling)
    batch = drawn_batch(policy)
    ratio = (policy.logprobs(batch).logprobs - batch.old_logprobs).exp()
    assert (ratio - 1).abs().max() < 1e-5


@share
def test_what_is_drawn_beside_a_prompt_changes_nothing(tmp_path: Path, share: bool) -> None:
    """Alone, among others, and among others cut into batches: the same tokens, whatever pads them."""
    save_tiny(tmp_path)
    settings = spec(tmp_path, policy={"share_prompts": share}, sampling={"prompts": 4, "max_tokens": 9})
    policy = make(settings, Texts())
    prompts = torch.arange(4)[None]
    together = drawn_batch(policy, prompts=prompts)
    policy.engine.tokens = 50
    apart = drawn_batch(policy, prompts=prompts)
    assert torch.equal(together.tokens[together.token], apart.tokens[apart.token])
    for group in range(4):
        wanted = torch.arange(4)[None] == group
        alone = drawn_batch(policy, prompts=prompts, wanted=wanted)
        assert torch.equal(alone.token[0, group], together.token[0, group])
        assert not alone.token[0, torch.arange(4) != group].any()
        token = together.token[0, group]
        assert torch.equal(alone.tokens[0, group][token], together.tokens[0, group][token])
        torch.testing.assert_close(
            alone.old_logprobs[0, group], together.old_logprobs[0, group], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_on_which_a_tokenizer_pads_has_no_effect(tmp_path: Path, side: str) -> None:
    found = []
    for name, each in (("left", "left"), (side, side)):
        save_tiny(tmp_path / name, tokenizer=byte_tokenizer(padding_side=each))
        found.append(
            drawn_batch(
                make(spec(tmp_path / name, sampling={"prompts": 4}), Texts()), prompts=torch.arange(4)[None]
            )
        )
    assert torch.equal(found[0].tokens, found[1].tokens)
    assert torch.equal(found[0].old_logprobs, found[1].old_logprobs)


def test_a_tokenizer_without_a_pad_token_trains_as_one_with(tmp_path: Path) -> None:
    class Ended(Texts):
        texts = ("Q: 1+2=", "12<end>34=", "?", "7+8<end>?<end>")

    found = []
    for name, pad, number in (("with", "<pad>", 0), ("without", None, 1)):
        save_tiny(tmp_path / name, tiny_llama(pad_token_id=number), byte_tokenizer(pad_token=pad))
        sampling = {"prompts": 4, "group_size": 16, "max_tokens": 40}
        policy = make(spec(tmp_path / name, sampling=sampling), Ended())
        batch = drawn_batch(policy, prompts=torch.arange(4)[None])
        policy.accumulate(policy.logprobs(batch).logprobs.sum((1, 2, 3)))
        found.append((batch, {name: leaf.grad for name, leaf in policy.weights.leaves.items()}))
    (one, gradients), (other, others) = found
    assert bool((one.tokens == 1)[one.token].any())  # the end token, which pads the other's, was drawn
    assert torch.equal(one.token, other.token) and torch.equal(one.tokens[one.token], other.tokens[other.token])
    assert torch.equal(one.old_logprobs, other.old_logprobs)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name
    assert gradients["model.embed_tokens.weight"][0, 1].any()


def test_a_pad_token_that_the_model_does_not_know_is_never_fed_to_it(tmp_path: Path) -> None:
    """The tokenizer was given one after training; prompts of one length and of several."""
    save_tiny(tmp_path / "plain")
    tokenizer = byte_tokenizer(pad_token=None)
    tokenizer.add_special_tokens({"pad_token": "<filler>"})
    assert tokenizer.pad_token_id == 260
    save_tiny(tmp_path / "added", tokenizer=tokenizer)

    class Padded(Texts):
        def __init__(self) -> None:
            super().__init__()
            self.tokenizer = tokenizer

    for prompts in (torch.arange(4)[None], torch.tensor([[0, 0]])):
        sampling = {"prompts": prompts.shape[1], "group_size": 16, "max_tokens": 40}
        one = drawn_batch(make(spec(tmp_path / "plain", sampling=sampling), Texts()), prompts=prompts)
        other = drawn_batch(make(spec(tmp_path / "added", sampling=sampling), Padded()), prompts=prompts)
        assert len(set(one.token.sum(-1).flatten().tolist())) > 1
        assert torch.equal(one.tokens[one.token], other.tokens[other.token])
        assert torch.equal(one.old_logprobs, other.old_logprobs)


def test_every_end_token_of_a_model_ends_a_response_and_is_scored(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    GenerationConfig(eos_token_id=[1, 70, 71, 72, 73]).save_pretrained(tmp_path)
    batch = drawn_batch(
        make(spec(tmp_path, sampling={"prompts": 4, "group_size": 16, "max_tokens": 60}), Texts()),
        prompts=torch.arange(4)[None],
    )
    ends, seen = {1, 70, 71, 72, 73}, set()
    for tokens, token, cut in zip(
        batch.tokens[0].flatten(0, 1), batch.token[0].flatten(0, 1), batch.truncated[0].flatten(), strict=True
    ):
        response = tokens[token].tolist()
        assert not ends & set(response[:-1])
        assert (response[-1] in ends) != bool(cut) and (len(response) == 60 or not cut)
        seen.add(response[-1])
    assert len(seen & ends) >= 4


def certain_model() -> LlamaForCausalLM:
    """Return a model whose layers do nothing, by which token i is followed by i + 1, and 9 by the end token."""
    model = tiny_llama(num_hidden_layers=1, vocab_size=260)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        code = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0))).Q
        model.model.embed_tokens.weight[:64] = code * 8
        follows = torch.arange(64).roll(-1)
        follows[9] = 1
        for token, after in enumerate(follows.tolist()):
            model.lm_head.weight[after] += code[token] * 12
    return model


@share
def test_each_log_probability_is_that_of_its_own_token(tmp_path: Path, share: bool) -> None:
    """A model that is certain of each next token: 0 exactly there, the end token's too, and far below beside."""
    save_tiny(tmp_path, certain_model())

    class Counting(Texts):
        def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
            rows = torch.tensor([[5, 6, 7, 0], [3, 4, 0, 0], [8, 0, 0, 0], [4, 5, 6, 7]])
            return rows[prompts], torch.tensor([3, 2, 1, 4])[prompts]

    policy = make(
        spec(tmp_path, policy={"share_prompts": share}, sampling={"prompts": 4, "max_tokens": 7}), Counting()
    )
    batch = drawn_batch(policy, prompts=torch.arange(4)[None])
    for group, expected in enumerate([[8, 9, 1], [5, 6, 7, 8, 9, 1], [9, 1], [8, 9, 1]]):
        for sample in range(4):
            token = batch.token[0, group, sample]
            assert batch.tokens[0, group, sample][token].tolist() == expected
            assert (batch.old_logprobs[0, group, sample][token] == 0).all()
    assert not batch.truncated.any()
    last = batch.token & ~batch.token.roll(-1, -1)
    other = replace(batch, tokens=torch.where(last, 20, batch.tokens))
    found = policy.logprobs(other).logprobs.detach()
    assert (found[last] < -50).all() and (found[batch.token & ~last] == 0).all()


@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        (("\n",), "12\n34", "12\n"),
        (("ab",), "xa bab cab", "xa bab"),
        (("\n\n", "z"), "a\nb\n\nz", "a\nb\n\n"),
        (("né",), "un né né", "un né"),
        (("q",), "12", None),
    ],
)
def test_a_stop_text_ends_a_response_with_the_token_that_completes_it(
    stop: tuple[str, ...], text: str, kept: str | None
) -> None:
    tokenizer = byte_tokenizer()
    ends = Ends(tokenizer, [1], stop)
    tokens = torch.tensor(tokenizer(text)["input_ids"])[None]
    length, ended = ends.lengths(tokens)
    assert bool(ended) == (kept is not None)
    assert tokenizer.decode(tokens[0, : length[0]]) == (text if kept is None else kept)


@pytest.mark.parametrize("stop", ["e", "he"])
def test_responses_stop_at_their_stop_text_while_they_are_drawn(tmp_path: Path, stop: str) -> None:
    """A model that spells the alphabet over and over ends at the stop text, or at the limit if it never comes."""
    tokenizer = byte_tokenizer()
    letters = tokenizer("thec")["input_ids"]
    model = certain_model()
    with torch.no_grad():
        code = model.model.embed_tokens.weight[:4].clone() / 8
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight.zero_()
        for place, letter in enumerate(letters):  # t, h, e, c, t, ...
            model.model.embed_tokens.weight[letter] = code[place] * 8
            model.lm_head.weight[letters[(place + 1) % 4]] += code[place] * 12
    save_tiny(tmp_path, model, tokenizer)

    class Spelling(Texts):
        texts = ("t", "c", "h", "e")

    policy = make(spec(tmp_path, sampling={"prompts": 4, "max_tokens": 6}), Spelling(stop))
    batch = drawn_batch(policy, prompts=torch.arange(4)[None])
    expected = {"e": ["he", "the", "e", "cthe"], "he": ["he", "the", "ecthe", "cthe"]}[stop]
    for group, text in enumerate(expected):
        assert tokenizer.decode(batch.tokens[0, group, 0][batch.token[0, group, 0]]) == text
    assert not batch.truncated.any()


def test_numbers_come_from_keys_and_from_nothing_else(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    settings = spec(tmp_path, sampling={"prompts": 4})
    torch.manual_seed(1)
    one = drawn_batch(make(settings, Texts()), prompts=torch.arange(4)[None])
    torch.manual_seed(2)
    policy = make(settings, Texts())
    torch.randn(100)
    drawn_batch(policy, 3, prompts=torch.arange(4)[None])
    again = drawn_batch(policy, prompts=torch.arange(4)[None])
    assert torch.equal(one.tokens, again.tokens) and torch.equal(one.old_logprobs, again.old_logprobs)
    for other in (
        drawn_batch(policy, 1, prompts=torch.arange(4)[None]),
        drawn_batch(make(settings, Texts(), seed=6), prompts=torch.arange(4)[None]),
    ):
        assert not torch.equal(one.tokens, other.tokens)
    for group in range(4):  # the samples of a group are not alike
        assert len({tuple(row) for row in one.tokens[0, group].tolist()}) > 1


def test_first_tokens_are_as_frequent_as_the_law_says(tmp_path: Path) -> None:
    stacked = scattered(make_stacked(stacked_spec(), 5))
    saved(tmp_path, stacked)
    policy = make(
        spec(
            tmp_path,
            sampling={"temperature": 1.4, "top_p": 0.9, "prompts": 1, "group_size": 4000, "max_tokens": 1},
        )
    )
    batch = drawn_batch(policy, prompts=torch.tensor([[3]]))
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(tmp_path)(torch.tensor([policy.prompts[3]])).logits[0, -1]
    probability = (logits / 1.4).softmax(-1)
    order = probability.argsort(descending=True)
    count = int((probability[order].cumsum(0) < 0.9).sum()) + 1
    expected = torch.zeros_like(probability)
    expected[order[:count]] = probability[order[:count]] / probability[order[:count]].sum()
    assert 3 <= count < len(order)
    seen = torch.bincount(batch.tokens.flatten(), minlength=len(order)) / 4000
    assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_greedy_answers_are_those_of_transformers(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    policy = make(spec(tmp_path, sampling={"temperature": 0.3, "max_tokens": 12}), Texts())
    drawn = policy.draw(torch.arange(4), Draw(Purpose.EVALUATION, 0), 2, greedy=1, plain=True)
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    for number in range(4):
        prompt = torch.tensor([policy.prompts[number]])
        theirs = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
        assert drawn.tokens[number, 2][: drawn.length[number, 2]].tolist() == theirs.tolist()


def test_penalties_that_a_model_folder_asks_for_are_no_part_of_the_law(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    plain = drawn_batch(make(spec(tmp_path, sampling={"prompts": 4}), Texts()), prompts=torch.arange(4)[None])
    told = GenerationConfig(
        eos_token_id=1, repetition_penalty=5.0, temperature=0.1, top_k=2, do_sample=True, min_new_tokens=6
    )
    told.save_pretrained(tmp_path)
    other = drawn_batch(make(spec(tmp_path, sampling={"prompts": 4}), Texts()), prompts=torch.arange(4)[None])
    assert torch.equal(plain.tokens, other.tokens)


def test_a_model_and_task_that_can_end_no_response_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, tiny_llama(eos_token_id=None), byte_tokenizer(eos_token=None))
    GenerationConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no response could end"):
        make(spec(tmp_path), Texts())
    make(spec(tmp_path), Texts("\n"))


def test_prompts_longer_than_the_context_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, tiny_llama(max_position_embeddings=36))
    make(spec(tmp_path, sampling={"max_tokens": 6}), Texts())
    with pytest.raises(
        UserError, match=r"prompt 3 has 30 tokens, and with sampling.max_tokens 7 it exceeds the context of 36"
    ):
        make(spec(tmp_path, sampling={"max_tokens": 7}), Texts())


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, tiny_llama(vocab_size=40))
    with pytest.raises(UserError, match="the model has 40: they do not belong together"):
        make(spec(tmp_path), Texts())


def test_more_than_one_seed_is_refused(tmp_path: Path) -> None:
    from grpo_ablate.policies.huggingface.policy import HuggingFace
    from grpo_ablate.rng import Keys

    with pytest.raises(UserError, match="one seed a job, not 2"):
        HuggingFace(spec(tmp_path), Small(), Keys(torch.tensor([0, 1])))
