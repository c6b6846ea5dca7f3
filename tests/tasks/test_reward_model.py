"""A reward model's scores against transformers called directly, and refreshes that learn, repeat and resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import CHAT, byte_tokenizer, tiny_llama
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification

from grpo_ablate.errors import UserError
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import AdditionTask, Budget, Evaluation, HuggingFacePolicy, Reward, Spec
from grpo_ablate.tasks.text.protocol import Fault, Judged
from grpo_ablate.tasks.text.reward_model import ModelScored, RewardModel
from grpo_ablate.tasks.text.tokenized import Tokenized

SHORT = ["a", "bb", "ccc", "a longer response", "yes", "no"]


def folder(path: Path, labels: int = 1, template: str | None = CHAT, longest: int = 256, seed: int = 0) -> Path:
    """Write a tiny sequence-classification Llama over bytes with keyed random weights."""
    told = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=longest, num_labels=labels, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, attention_dropout=0.3,
    )  # fmt: skip
    model = LlamaForSequenceClassification(told)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    model.save_pretrained(path)
    byte_tokenizer(chat_template=template).save_pretrained(path)
    return path


class Yes:
    """A text task in which a response is right when it begins with y."""

    name, components, stop, groups = "yes", ("accuracy",), (), {}
    prompt_count, held_out_count = 4, 2

    def prompt(self, number: int) -> Any:
        return [{"role": "user", "content": f"question {number}?"}] if number % 2 else f"Question {number}:"

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        right = [math.nan if response == "?" else float(response.startswith("y")) for response in responses]
        return Judged(right, {"accuracy": right}, list(responses))

    def exhibit(self, number: int) -> dict[str, Any]:
        return {}


def scored(model: Path, **reward: Any) -> ModelScored:
    spec = Spec(
        task=AdditionTask(name="addition"),
        policy=HuggingFacePolicy(name="huggingface", model="unused", device="cpu"),
        evaluation=Evaluation(samples=2),
        reward=Reward(source="model", model=str(model), **reward),
        budget=Budget(rollouts=8),
    )
    task = Tokenized(Yes(), byte_tokenizer(chat_template=CHAT))
    return ModelScored(task, spec, Keys(torch.tensor([3])))


def score(task: ModelScored, numbers: list[int], responses: list[list[str]]) -> Any:
    """Score groups of responses, a group for each prompt number."""
    rows = [[task.tokenizer(text)["input_ids"] for text in group] for group in responses]
    width = max(len(row) for group in rows for row in group) + 1
    tokens = torch.zeros(1, len(rows), len(rows[0]), width, dtype=torch.int64)
    token = torch.zeros_like(tokens, dtype=torch.bool)
    for place, group in enumerate(rows):
        for sample, row in enumerate(group):
            tokens[0, place, sample, : len(row)] = torch.tensor(row)
            token[0, place, sample, : len(row)] = True
    return task.score(torch.tensor([numbers]), tokens, token)


def directly(path: Path, text: str) -> Tensor:
    """Return the logits of one text alone, by transformers itself."""
    model = LlamaForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([byte_tokenizer()(text)["input_ids"]])).logits[0].double()


def as_text(number: int, response: str) -> str:
    """Write prompt and response by the rules of the byte tokenizer's chat template."""
    if number % 2:
        return f"<start>user\nquestion {number}?<turn>\n<start>assistant\n{response}<turn>\n"
    return f"Question {number}:{response}"


def test_scores_are_the_logits_of_prompt_and_response_whatever_is_beside_them(tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    found = score(scored(path), [0, 1], [SHORT, SHORT])
    expected = [[float(directly(path, as_text(number, text))) for text in SHORT] for number in (0, 1)]
    torch.testing.assert_close(found.reward[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.equal(found.components["model"], found.reward)
    assert found.components["accuracy"].tolist() == [[[0, 0, 0, 0, 1, 0]] * 2]
    assert found.reward.std() > 0.01  # not all alike


def test_batches_by_length_change_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(Reward(source="model", model=str(folder(tmp_path / "model"))), torch.device("cpu"))
    rows = [list(range(4, 4 + length)) for length in (9, 2, 30, 9, 1, 17)]
    with torch.no_grad():
        together = model.scores(rows)
        monkeypatch.setattr("grpo_ablate.tasks.text.reward_model.TOKENS", 20)
        apart = model.scores(rows)
        alone = torch.cat([model.scores([row]) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(apart, alone, rtol=0, atol=1e-5)


def test_of_several_labels_the_last_counts_against_the_others(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", labels=3)
    found = score(scored(path), [0], [["yes"]])
    logits = directly(path, as_text(0, "yes"))
    share = logits.softmax(0)[2]  # of the last label
    assert float(found.reward) == pytest.approx(float((share / (1 - share)).log()), abs=1e-5)


def test_without_a_chat_template_messages_are_written_after_their_roles(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", template=None)
    found = score(scored(path), [1], [["yes"]])
    assert float(found.reward) == pytest.approx(
        float(directly(path, "user: question 1?\nassistant: yes")), abs=1e-5
    )


def test_what_is_too_long_for_the_model_has_no_reward(tmp_path: Path) -> None:
    task = scored(folder(tmp_path / "model", longest=40))
    found = score(task, [0], [["yes", "y" * 60]])
    assert found.reward.isnan().tolist() == [[[False, True]]]
    assert found.components["accuracy"].tolist() == [[[1, 1]]]
    reason = "the reward model: is longer than the 40 tokens it reads"
    assert task.take_faults() == [Fault(0, "y" * 60, reason)]


GROUPS = [["yes", "no", "yellow", "nothing", "yes!", "never"], ["y", "n", "yy", "nn", "?", "x"]]


def test_a_refresh_learns_to_tell_right_from_wrong(tmp_path: Path) -> None:
    task = scored(folder(tmp_path / "model"), refresh_model=1, refresh_steps=60, refresh_learning_rate=3e-3)
    before = score(task, [0, 1], GROUPS)
    task.refresh(1)
    after = score(task, [0, 1], GROUPS)
    right = before.components["accuracy"]

    def gap(found: Any) -> float:
        return float(found.reward[right == 1].mean() - found.reward[right == 0].mean())

    assert gap(after) > gap(before) + 2
    assert float(after.reward[right == 1].min()) > float(after.reward[right == 0].max())


def test_a_step_of_a_refresh_is_one_of_adamw_on_the_cross_entropy(tmp_path: Path) -> None:
    """The first step of Adam moves every weight by the rate, against the sign of its gradient."""
    path = folder(tmp_path / "model")
    model = RewardModel(Reward(source="model", model=str(path), refresh_learning_rate=1e-3), torch.device("cpu"))
    rows, right = [[5, 6, 7], [8, 9]], torch.tensor([1.0, 0.0], dtype=torch.float64)
    plain = LlamaForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    scores = torch.cat([plain(torch.tensor([row])).logits[0] for row in rows]).double()
    loss = -(scores.sigmoid()[0].log() + (1 - scores.sigmoid()[1]).log()) / 2
    loss.backward()
    before = {name: value.detach().clone() for name, value in model.model.named_parameters()}
    model.refresh(rows, right, torch.tensor([[0, 1]]))
    checked = 0
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        clear = parameter.grad.abs() > 1e-4  # Adam's eps is nothing beside it, clipped or not
        moved = dict(model.model.named_parameters())[name].detach() - before[name]
        expected = (-1e-3 * parameter.grad.sign())[clear]
        torch.testing.assert_close(moved[clear], expected, rtol=0, atol=2e-5)
        checked += int(clear.sum())
    assert checked > 1000


def test_only_training_prompts_with_a_verdict_are_kept_for_a_refresh(tmp_path: Path) -> None:
    task = scored(folder(tmp_path / "model"), refresh_model=1)
    score(task, [1, 4], GROUPS)  # 4 is held out
    assert [(one.number, one.response) for one in task.fresh] == [(1, text) for text in GROUPS[0]]
    score(task, [1], [GROUPS[1]])
    assert [one.response for one in task.fresh[6:]] == [text for text in GROUPS[1] if text != "?"]
    assert [one.right for one in task.fresh] == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]
    frozen = scored(tmp_path / "model")
    score(frozen, [1], [GROUPS[0]])
    assert frozen.fresh == [] and frozen.state() == {}


def test_slots_that_were_not_drawn_have_no_score_and_teach_nothing(tmp_path: Path) -> None:
    task = scored(folder(tmp_path / "model"), refresh_model=1)
    found = score(task, [1, 2], [["yes", "no"], ["", ""]])
    assert found.reward.isnan().tolist() == [[[False, False], [True, True]]]
    assert [(one.number, one.response) for one in task.fresh] == [(1, "yes"), (1, "no")]
    assert task.take_faults() == []


def test_a_tenth_of_a_refresh_is_drawn_from_earlier_responses(tmp_path: Path) -> None:
    task = scored(folder(tmp_path / "model"), refresh_model=1, refresh_steps=100)
    first, second = task._batches(1, fresh=50, past=0), task._batches(2, fresh=50, past=20)
    assert first.shape == (100, 32) and int(first.min()) >= 0 and int(first.max()) == 49
    assert (second >= 50).sum(1).tolist() == [3] * 100 and int(second.max()) == 69
    assert not torch.equal(first[:, 3:], second[:, 3:])
    assert torch.equal(first, task._batches(1, fresh=50, past=0))


def test_a_refreshed_model_continues_bit_by_bit_from_its_state(tmp_path: Path) -> None:
    settings = {"refresh_model": 1, "refresh_steps": 4, "refresh_learning_rate": 1e-3}
    path = folder(tmp_path / "model")
    whole, first, resumed = (scored(path, **settings) for _ in range(3))
    for task in (whole, first):
        score(task, [0, 1], GROUPS)
        task.refresh(1)
        score(task, [2, 3], GROUPS)
    resumed.load(first.state())
    whole.refresh(2)
    resumed.refresh(2)
    one, other = whole.state(), resumed.state()
    assert one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
    assert torch.equal(score(whole, [0], [SHORT]).reward, score(resumed, [0], [SHORT]).reward)


def test_folders_that_hold_no_reward_model_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    settings = Reward(source="model", model=str(path), model_digest="0" * 16)
    with pytest.raises(UserError, match=r"reward\.model: the files in .* have changed since the row was resolved"):
        RewardModel(settings, torch.device("cpu"))
    tiny_llama().save_pretrained(tmp_path / "causal")
    byte_tokenizer().save_pretrained(tmp_path / "causal")
    with pytest.raises(UserError, match=r"the weights in .*causal lack score\.weight: it is no sequence-class"):
        RewardModel(Reward(source="model", model=str(tmp_path / "causal")), torch.device("cpu"))
    (tmp_path / "causal/tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"reward\.model: .*causal has no tokenizer \(none of tokenizer\.json, "):
        RewardModel(Reward(source="model", model=str(tmp_path / "causal")), torch.device("cpu"))
    (path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"reward\.model: no sequence-classification model can be loaded from "):
        RewardModel(Reward(source="model", model=str(path)), torch.device("cpu"))
