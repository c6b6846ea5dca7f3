"""Runs of pretrained models: the stacked policy's updates, resumption bit by bit, evaluations, the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pretrained_specs import drawn_batch, keys, make, make_loop, saved, scattered, spec
from safetensors.torch import load_file
from small_task import Small
from stacked_specs import keys as member_keys
from stacked_specs import make as make_stacked
from stacked_specs import spec as stacked_spec
from test_pretrained_drawing import Texts
from tiny_model import save_tiny, tiny_llama
from torch import Tensor

from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface import scoring
from grpo_ablate.policies.huggingface.agreement import Agreement, check_agreement
from grpo_ablate.policies.huggingface.policy import HuggingFace
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.policy import Stacked
from grpo_ablate.policies.stacked.transformers_folder import from_llama
from grpo_ablate.rng import Purpose
from grpo_ablate.runs.train import train
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Kl, Spec
from grpo_ablate.tasks.arithmetic import Arithmetic
from grpo_ablate.tasks.protocol import Scores
from grpo_ablate.tasks.registry import make_task

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kl": {"kl": Kl(beta=0.05, estimator="k3")},
    "cut law": {"sampling": {"temperature": 0.9, "top_p": 0.9}},
    "resample": {"sampling": {"dynamic": "resample"}},
}


def start(folder: Path, **sections: Any) -> Stacked:
    """Return a stacked policy away from its even law, and write it as a folder."""
    stacked = scattered(make_stacked(stacked_spec(**sections), 5))
    saved(folder, stacked)
    return stacked


@pytest.mark.parametrize("sections", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("policy", [{}, {"share_prompts": True, "microbatch_tokens": 25}], ids=str)
def test_a_run_is_that_of_the_stacked_policy_from_the_same_folder(
    tmp_path: Path, sections: Any, policy: Any
) -> None:
    """Two policies, one loop, the same keys: the same responses and rewards, and parameters that stay together."""
    stacked = start(tmp_path, **sections)
    sections = {"evaluation": stacked_spec().evaluation.model_copy(update={"every": 1}), **sections}
    settings = spec(tmp_path, 3, policy=policy, **sections)
    flat = {name: value[:1] for name, value in stacked.parameters().items()}
    other = stacked_spec(3, **sections)
    theirs = Loop(other, Stacked(other, Small(), member_keys(5), flat), Small(), member_keys(5))
    mine = make_loop(settings)
    for loop in (theirs, mine):
        loop.start()
        while not loop.finished:
            loop.advance()
    for one, two in zip(mine.history.lines, theirs.history.lines, strict=True):
        assert torch.equal(one.counters, two.counters)
        for name, value in two.values.items():
            if name != "eval/kl" or sections.get("kl"):
                torch.testing.assert_close(one.values[name], value, atol=2e-4, rtol=1e-3, equal_nan=True, msg=name)
    assert isinstance(theirs.policy, Stacked)
    architecture = Architecture(other.policy, 11)  # type: ignore[arg-type]
    found = from_llama({name: leaf[0].detach() for name, leaf in mine.policy.weights.leaves.items()}, architecture)
    for name, value in theirs.policy.parameters().items():
        assert (value[0] - flat[name][0]).abs().max() > 1e-3
        torch.testing.assert_close(found[name], value[0], atol=3e-4, rtol=0)


DEMANDING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adamw": ({}, {}),
    "staleness": ({}, {"update": stacked_spec().update.model_copy(update={"staleness": 1})}),
    "refreshed reference": ({"dtype": "bfloat16"}, {"kl": Kl(beta=0.05, refresh_reference=2)}),
    "own reference": ({}, {"kl": Kl(beta=0.05, estimator="k1", place="reward-before", refresh_reference=2)}),
    "adapters": ({"lora": {"rank": 2}, "dtype": "bfloat16"}, {"kl": Kl(beta=0.05, refresh_reference=3)}),
    "shared": (
        {"share_prompts": True, "microbatch_tokens": 30},
        {"sampling": {"top_p": 0.8, "dynamic": "resample"}},
    ),
}


def lines(loop: Loop) -> list[tuple[int, dict[str, Any]]]:
    return [
        (line.round, {name: value.tolist() for name, value in sorted(line.values.items())})
        for line in loop.history.lines
    ]


@pytest.mark.parametrize(("policy", "sections"), DEMANDING.values(), ids=DEMANDING)
def test_a_resumed_run_continues_bit_by_bit(tmp_path: Path, policy: Any, sections: Any) -> None:
    start(tmp_path)
    evaluation = stacked_spec().evaluation.model_copy(update={"every": 3})
    settings = spec(tmp_path, 6, policy=policy, evaluation=evaluation, **sections)
    whole = make_loop(settings)
    whole.start()
    states: dict[int, dict[str, Tensor]] = {}
    while not whole.finished:
        whole.advance()
        states[whole.round] = {name: tensor.clone() for name, tensor in whole.state().items()}
    for moment in sorted({1, 2, whole.round - 1}):
        torch.manual_seed(moment)  # which must not matter
        resumed = make_loop(settings)
        resumed.load({name: tensor.clone() for name, tensor in states[moment].items()})
        while not resumed.finished:
            resumed.advance()
        end = resumed.state()
        assert end.keys() == states[whole.round].keys()
        for name, tensor in end.items():
            expected = states[whole.round][name]
            if tensor.is_floating_point():
                tensor, expected = tensor.nan_to_num(), expected.nan_to_num()
            assert torch.equal(tensor, expected), name
        assert repr(lines(resumed)) == repr(lines(whole))


def test_a_finished_run_keeps_its_weights_and_no_moments_of_the_optimiser(tmp_path: Path) -> None:
    start(tmp_path)
    loop = make_loop(spec(tmp_path, 2))
    loop.start()
    loop.advance()
    assert any(name.startswith("policy.optimizer.") for name in loop.state())
    loop.advance()
    state = loop.state()
    assert loop.finished and not any(name.startswith("policy.optimizer.") for name in state)
    again = make_loop(spec(tmp_path, 2))
    again.load(state)
    assert again.finished and again.state().keys() == state.keys()
    assert all(
        torch.equal(value, loop.policy.parameters()[name]) for name, value in again.policy.parameters().items()
    )


def test_an_evaluation_measures_the_keyed_responses_at_temperature_one(tmp_path: Path) -> None:
    start(tmp_path)
    policy = make(spec(tmp_path, sampling={"temperature": 0.3, "top_k": 2}, kl=Kl(beta=0.1)))
    found = policy.evaluate(6, 4)
    task = policy.task
    prompts = (task.prompt_count + torch.arange(8))[None]
    drawn = policy.draw(prompts[0], Draw(Purpose.EVALUATION, 4), 6, plain=True)
    scores = task.score(prompts, drawn.tokens[None], drawn.token[None])
    right = scores.components["accuracy"] == 1
    expected = {
        "eval/reward": scores.reward.mean(),
        "eval/accuracy": right.double().mean(),
        "eval/length": drawn.length.double().mean(),
        "eval/truncated": (~drawn.ended).double().mean(),
        "eval/reward_odd": scores.reward[:, 1::2].mean(),
        "eval/length_even": drawn.length[::2].double().mean(),
        "eval/pass_at_1": right.double().mean(),
        "eval/kl": torch.zeros((), dtype=torch.float64),
    }
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value[None].double(), msg=name)
    assert all(value.shape == (1,) and value.dtype == torch.float64 for value in found.values())
    greedy = policy.draw(prompts[0], Draw(Purpose.EVALUATION, 4), 0, greedy=1, plain=True)
    best = task.score(prompts, greedy.tokens[None], greedy.token[None]).components["accuracy"]
    torch.testing.assert_close(found["eval/greedy_accuracy"], best.mean()[None])
    # Entropy by enumeration of the first tokens, where a response has one.
    one = make(spec(tmp_path, sampling={"max_tokens": 1}))
    entropy = one.evaluate(2, 0)["eval/entropy"]
    with torch.no_grad():
        laws = [
            one.model(torch.tensor([one.prompts[n]])).logits[0, -1].log_softmax(-1) for n in prompts[0].tolist()
        ]
    expected_entropy = torch.stack([-(law.exp() * law).sum() for law in laws]).mean()
    torch.testing.assert_close(entropy[0], expected_entropy.double(), atol=1e-5, rtol=1e-5)
    assert one.evaluate(2, 0)["eval/kl"].isnan().all()  # without a reference there is nothing to say


def test_rewards_that_no_verifier_gave_are_left_out_of_an_evaluation(tmp_path: Path) -> None:
    class Silent(Small):
        def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
            found = super().score(prompts, tokens, token)
            gone = torch.zeros_like(found.reward, dtype=torch.bool)
            gone[..., 0] = tokens.shape[2] > 1
            missing = torch.where(gone, torch.nan, found.reward)
            return replace(found, reward=missing, components={"accuracy": torch.where(gone, torch.nan, 1.0)})

    start(tmp_path)
    found = make(spec(tmp_path), Silent()).evaluate(4, 0)
    plain = make(spec(tmp_path))
    prompts = (plain.task.prompt_count + torch.arange(8))[None]
    drawn = plain.draw(prompts[0], Draw(Purpose.EVALUATION, 0), 4, plain=True)
    rewards = plain.task.score(prompts, drawn.tokens[None], drawn.token[None]).reward
    torch.testing.assert_close(found["eval/reward"], rewards[..., 1:].mean()[None])
    assert found["eval/accuracy"].item() == 1  # all that are known


def test_the_engines_gap_is_measured_over_the_rounds_between_evaluations(tmp_path: Path) -> None:
    start(tmp_path)
    settings = spec(tmp_path, 4, evaluation=stacked_spec().evaluation.model_copy(update={"every": 2}))
    loop = make_loop(settings)
    gaps: list[Tensor] = []
    plain = loop.policy.agreement.add
    loop.policy.agreement.add = lambda found: (gaps.append(found), plain(found))
    first = loop.start()
    assert not any(name.startswith("train/engine") for name in first.values)
    loop.advance()
    line = loop.advance()
    assert line is not None
    gap = torch.cat(gaps)
    ratio = gap.exp()
    expected = {
        "train/engine_gap": gap.abs().mean(),
        "train/engine_gap_max": gap.abs().max(),
        "train/engine_sample_size": ratio.sum() ** 2 / (len(gap) * ratio.square().sum()),
        "train/engine_kl": (ratio - 1 - gap).mean(),
    }
    for name, value in expected.items():
        torch.testing.assert_close(line.values[name][0], value, atol=1e-12, rtol=1e-6)
    assert line.values["train/engine_gap_max"] < 1e-5
    assert len(gaps) == 2


def test_gaps_of_known_laws_have_known_measures() -> None:
    """Engine (.5, .5), trainer (.8, .2): KL .2231; w is 1.6 and .4 alike often: a sample size of 1 / 1.36."""
    sums = Agreement()
    gaps = (
        torch.tensor([0.8, 0.2, 0.2, 0.8], dtype=torch.float64).log()
        - torch.tensor(0.5, dtype=torch.float64).log()
    )
    sums.add(gaps[:1])
    sums.add(gaps[1:])
    found = {name: value.item() for name, value in sums.take().items()}
    assert found["train/engine_kl"] == pytest.approx(0.22314355)
    assert found["train/engine_sample_size"] == pytest.approx(1 / 1.36)
    assert found["train/engine_gap_max"] == pytest.approx(0.91629073)
    assert found["train/engine_gap"] == pytest.approx((0.47000363 + 0.91629073) / 2)
    assert sums.take() == {}
    check_agreement(gaps * 1e-6, 1e-3, "vllm", "it is stale")
    with pytest.raises(
        UserError, match=r"vllm: .* differ from the trainer's by 0\.693 on average, .* it is stale"
    ):
        check_agreement(gaps, 0.5, "vllm", "it is stale")
    with pytest.raises(UserError, match="differ from the trainer's by nan"):
        check_agreement(gaps * torch.nan, 0.5, "vllm", "it is stale")


def run_spec(folder: Path, **policy: Any) -> Spec:
    """Return the spec of a short run on the arithmetic task, whose tokens the folder's model has."""
    return Spec.model_validate(
        {
            "task": {"name": "arithmetic", "held_out": 8, "train_prompts": 32},
            "policy": {"name": "huggingface", "model": str(folder), "device": "cpu", **policy},
            "sampling": {"prompts": 2, "group_size": 4, "max_tokens": 8},
            "evaluation": {"every": 2, "samples": 2},
            "optimizer": {"name": "adamw", "learning_rate": 1e-3},
            "budget": {"rollouts": 32},
        }
    )


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = Arithmetic(run_spec(Path("x")).task)  # type: ignore[arg-type]
    policy = {"hidden": 32, "heads": 1, "kv_heads": 1, "layers": 1, "intermediate": 32}
    stacked = scattered(Stacked(stacked_spec(policy=policy), task, member_keys(0)))
    return saved(tmp_path_factory.mktemp("arithmetic"), stacked, task)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("metrics.parquet", "samples.jsonl", "run.json")}


def test_a_run_leaves_a_record_with_the_digest_of_its_weights(arithmetic: Path, tmp_path: Path) -> None:
    train(
        run_spec(arithmetic), range(1), tmp_path / "run", tmp_path / "scratch", testbed="big", checkpoint_seconds=0
    )
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["status"] == "finished" and run["budget"]["rollouts"] == [32]
    found = load_file(tmp_path / "run/parameters.safetensors")
    state = load_file(tmp_path / "scratch/checkpoint.safetensors")
    import hashlib

    for name, value in found.items():
        weights = state["policy.parameters." + name.removesuffix(".sha256")]
        assert bytes(value[0].tolist()) == hashlib.sha256(weights.numpy().tobytes()).digest()
    assert len(found) == 12 and (tmp_path / "run/parameters.safetensors").stat().st_size < 5000
    sample = json.loads((tmp_path / "run/samples.jsonl").read_text().splitlines()[0])
    assert sample["tokens"] and sample["prompt"].endswith("=")


def test_a_run_that_fails_for_want_of_memory_loses_nothing(
    arithmetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run_spec(arithmetic)
    train(settings, range(1), tmp_path / "whole", tmp_path / "a", testbed="big")
    plain, calls = scoring.Scorer.finish, [0]

    def failing(self: Any, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(self, *arguments)

    monkeypatch.setattr(scoring.Scorer, "finish", failing)
    with pytest.raises(UserError, match=r"out of memory while training: lower policy\.microbatch_tokens"):
        train(settings, range(1), tmp_path / "run", tmp_path / "b", testbed="big", checkpoint_seconds=0)
    assert not (tmp_path / "run").exists()
    train(settings, range(1), tmp_path / "run", tmp_path / "b", testbed="big", checkpoint_seconds=0)
    assert calls[0] == 3 + 2  # two rounds were kept
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_policy_that_diverges_is_measured_and_ends(tmp_path: Path) -> None:
    start(tmp_path)
    wild = stacked_spec().optimizer.model_copy(
        update={"name": "sgd", "learning_rate": 1e38, "max_grad_norm": "off"}
    )
    update = stacked_spec().update.model_copy(update={"inner_passes": 1, "minibatches": 1})
    loop = make_loop(spec(tmp_path, 5, optimizer=wild, update=update))
    loop.start()
    while not loop.finished:
        loop.advance()
    assert 1 <= loop.diverged.item() == loop.round < 5  # a finite step, after which nothing is finite
    assert loop.history.lines[-1].values["eval/entropy"].isnan().all()


def test_weights_that_are_no_numbers_are_a_sentence(tmp_path: Path) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    save_tiny(tmp_path, model)
    with pytest.raises(UserError, match="differ from the trainer's by nan"):
        drawn_batch(make(spec(tmp_path, sampling={"prompts": 4}), Texts()), prompts=torch.arange(4)[None])


def test_a_task_in_words_trains(tmp_path: Path) -> None:
    """Prompts of several lengths with a verifier of texts, through the loop with dynamic sampling."""

    class Digits(Texts):
        held_out_count = 4

        def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
            tokens, length = super().prompt_tokens(prompts.flatten() % 4)
            return tokens.view(*prompts.shape, -1), length.view(prompts.shape)

        def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
            said = [
                [self.tokenizer.decode(row[kept]) for row, kept in zip(group, scored, strict=True)]
                for group, scored in zip(tokens[0], token[0], strict=True)
            ]
            right = torch.tensor([[float(any(c.isdigit() for c in text)) for text in group] for group in said])
            return Scores(right[None].double(), {"accuracy": right[None].double()})

    save_tiny(tmp_path)
    sampling = {"prompts": 4, "group_size": 8, "max_tokens": 5, "dynamic": "drop"}
    adam = stacked_spec().optimizer.model_copy(update={"learning_rate": 5e-3})
    every = stacked_spec().evaluation.model_copy(update={"every": 15, "samples": 16})
    settings = spec(tmp_path, 15, sampling=sampling, optimizer=adam, evaluation=every)
    loop = make_loop(settings, Digits())
    first = loop.start()
    while not loop.finished:
        loop.advance()
    last = loop.history.lines[-1]
    assert last.values["eval/reward"].item() > first.values["eval/reward"].item() + 0.2


def test_batches_of_a_round_can_be_scored_again_after_a_dump(tmp_path: Path) -> None:
    """``train --dump-round`` asks what the policy says before the first step, and the step must not notice."""
    start(tmp_path)
    ends = []
    for looks in (0, 1):
        policy = make(spec(tmp_path))
        batch = drawn_batch(policy)
        says = policy.logprobs(batch)
        if looks:
            with torch.no_grad():
                policy.logprobs(batch)
        policy.accumulate(says.logprobs.sum((1, 2, 3)))
        policy.step(torch.ones(1, dtype=torch.bool))
        ends.append(policy.weights.copies())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


@pytest.mark.parametrize("policy", [{}, {"lora": {"rank": 2}}, {"dtype": "bfloat16"}], ids=str)
def test_a_trained_model_is_exported_as_a_folder_that_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny(Path("tiny"))
    testbed = {
        "description": "a tiny model",
        "seeds_per_job": 1,
        "task": {"name": "addition", "held_out": 4, "train_prompts": 16},
        "policy": {"name": "huggingface", "model": "tiny", "device": "cpu", **policy},
        "sampling": {"prompts": 2, "group_size": 4, "max_tokens": 8},
        "evaluation": {"every": 2, "samples": 2},
        "reward": {"transform": "random"},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "budget": {"rollouts": 32},
    }
    experiment = {"question": "?", "testbed": "big", "baseline": "base", "seeds": 1, "rows": {"base": {}}}
    Path("experiments/testbeds").mkdir(parents=True)
    Path("experiments/testbeds/big.yaml").write_text(yaml.safe_dump(testbed))
    Path("experiments/one.yaml").write_text(yaml.safe_dump(experiment))
    spec = load_experiment(Path("experiments/one.yaml")).rows[0].effective

    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0)

    assert command("train", "experiments/one.yaml:base") == 0
    assert command("export", "experiments/one.yaml:base", "--seed", "0", "--to", "trained") == 0
    (scratch,) = Path("results/scratch").rglob("checkpoint.safetensors")
    resumed = made(spec)
    resumed.load({n.removeprefix("policy."): t for n, t in load_file(scratch).items() if n.startswith("policy.")})
    told = {"model": "trained", "digest": "", "lora": "off"}
    again = made(spec.model_copy(update={"policy": spec.policy.model_copy(update=told)}))
    batch = drawn_batch(resumed)
    with torch.no_grad():
        said, before = (each.logprobs(batch).logprobs for each in (again, made(spec)))
    torch.testing.assert_close(said, batch.old_logprobs, atol=0 if "dtype" in policy else 1e-5, rtol=0)
    assert (said - before).abs().max() > 1e-3
    scratch.unlink()
    if not policy:
        assert command("export", "experiments/one.yaml:base", "--seed", "0", "--to", "other") == 2
        assert not Path("other").exists()


def made(spec: Spec) -> HuggingFace:
    return HuggingFace(spec, make_task(spec.task, spec.policy), keys(0))
