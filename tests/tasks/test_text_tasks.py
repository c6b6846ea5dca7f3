"""Addition and reasoning-gym as texts, and any text task through a tokenizer."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from tiny_model import CHAT, byte_tokenizer

from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import AdditionTask, ReasoningGymTask
from grpo_ablate.tasks.pools import Pool, pool_of
from grpo_ablate.tasks.text.addition import WORKED, Addition
from grpo_ablate.tasks.text.protocol import Fault, Judged
from grpo_ablate.tasks.text.reasoning_gym import ReasoningGym
from grpo_ablate.tasks.text.tokenized import Tokenized


def addition(**keys: Any) -> Addition:
    return Addition(AdditionTask(name="addition", **keys))


def gym(dataset: str = "chain_sum", **keys: Any) -> ReasoningGym:
    return ReasoningGym(
        ReasoningGymTask(name="reasoning-gym", dataset=dataset, **{"train_prompts": 40, "held_out": 10, **keys})
    )


def numbers_in(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def test_the_worked_sums_are_right() -> None:
    lines = WORKED.splitlines()
    assert len(lines) == 4
    for line in lines:
        first, second, total = numbers_in(line)
        assert first + second == total


def test_sizes_take_turns_and_sums_are_of_their_size() -> None:
    task = addition(digits=[[1, 1], [3, 2], [2, 1]], train_prompts=90, held_out=30)
    for number in range(120):
        prompt = task.prompt(number)
        assert isinstance(prompt, str) and prompt.startswith(WORKED) and prompt.endswith(" =")
        place = number if number < 90 else number - 90
        first, second = prompt.removeprefix(WORKED).removesuffix(" =").split(" + ")
        assert (len(first), len(second)) == [(1, 1), (3, 2), (2, 1)][place % 3]
    assert {name: sum(members) for name, members in task.groups.items()} == {
        "digits-1-1": 10, "digits-2-1": 10, "digits-3-2": 10,
    }  # fmt: skip
    assert task.groups["digits-3-2"][:4] == [False, True, False, False]


def test_held_out_sums_never_train_and_all_digits_come() -> None:
    task = addition(digits=[[1, 1]], train_prompts=4000, held_out=400)
    train, held_out = set(task.sums[:4000]), set(task.sums[4000:])
    possible = {(a, b) for a in range(10) for b in range(10)}
    assert train == {pair for pair in possible if pool_of(f"{pair[0]} + {pair[1]}") is Pool.TRAIN}
    assert held_out == {pair for pair in possible if pool_of(f"{pair[0]} + {pair[1]}") is Pool.HELD_OUT}
    assert not train & held_out


def test_fewer_prompts_are_the_first_of_more() -> None:
    few, many = addition(train_prompts=10, held_out=4), addition(train_prompts=50, held_out=20)
    assert few.sums == many.sums[:10] + many.sums[50:54]


def test_sums_are_judged_by_their_line_or_by_the_last_number_of_a_chat() -> None:
    task = addition(digits=[[2, 2]])
    total = sum(numbers_in(str(task.prompt(3)).removeprefix(WORKED)))
    said = [f" {total}", f"{total}.", f"the sum is {total}", f" {total + 1}", ""]
    assert task.judge([3] * 5, said).reward == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert task.stop == ("\n",) and task.exhibit(3) == {"answer": str(total)}
    chat = addition(digits=[[2, 2]], form="chat", format="think-answer")
    system, asked = chat.prompt(3)
    assert isinstance(asked, dict) and sum(numbers_in(asked["content"])) == total
    assert "<think> </think>" in system["content"]
    said = [f"<think>1</think><answer>{total}</answer>", f"<answer>so {total}</answer>", f"{total}"]
    assert chat.judge([3] * 3, said).components == {"accuracy": [1.0, 1.0, 0.0], "format": [1.0, 0.0, 0.0]}
    assert addition(form="chat").judge([0], ["The numbers 1, 2 and 3"]).answers == ["3"]


def answers_to(entry: dict[str, Any]) -> list[str]:
    right = str(entry["answer"])
    return [
        right,
        f" {right}\n",
        f"{right} or so",
        right[:-1],
        right.upper(),
        "",
        "nonsense",
        f"<answer>{right}</answer>",
    ]


@pytest.mark.parametrize(
    ("dataset", "parameters"),
    [
        ("chain_sum", {"min_terms": 2, "max_terms": 3}),
        ("letter_counting", {}),
        ("simple_equations", {}),
        ("countdown", {"min_numbers": 3, "max_numbers": 3}),
        ("word_sorting", {"max_words": 4}),
    ],
)
def test_scores_are_those_of_reasoning_gyms_own_scorer_called_directly(
    dataset: str, parameters: dict[str, Any]
) -> None:
    import reasoning_gym

    task = gym(dataset, parameters=parameters, train_prompts=4, held_out=2)
    direct = reasoning_gym.create_dataset(dataset, seed=1, size=1, **parameters)
    for number in range(6):
        entry = task.entries[number]
        said = answers_to(entry)
        expected = [float(direct.score_answer(answer.strip(), entry)) for answer in said]
        judged = task.judge([number] * len(said), said)
        assert judged.reward == judged.components["score"] == expected
        assert judged.components["accuracy"] == [float(score == 1) for score in expected]
        assert expected[0] == 1.0 and not judged.faults


def test_entries_are_the_data_sets_own_and_held_out_ones_are_others() -> None:
    import reasoning_gym

    task = gym("chain_sum", parameters={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    direct = reasoning_gym.create_dataset(
        "chain_sum", seed=1 << 20, size=40, min_terms=2, max_terms=2, min_digits=1, max_digits=1
    )
    assert [task.entries[number] for number in range(40)] == list(direct)
    held_out = [entry["question"] for entry in task.entries[40:]]
    assert len(set(held_out)) == 10 and not set(held_out) & {entry["question"] for entry in task.entries[:40]}


def test_reasoning_gym_prompts_are_chats_or_follow_worked_questions() -> None:
    chat, shown = gym(), gym(form="few-shot", shots=2)
    assert chat.prompt(0) == [{"role": "user", "content": chat.entries[0]["question"]}]
    prompt = shown.prompt(0)
    assert isinstance(prompt, str) and prompt.count("Question: ") == 3 and prompt.count("Answer: ") == 2
    assert prompt.endswith(f"Question: {shown.entries[0]['question']}\nAnswer:")
    assert shown.stop == ("\n",) and chat.stop == ()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"dataset": "chain_summ"},
            "task.dataset: reasoning-gym has no data set 'chain_summ'; did you mean 'chain_sum'?",
        ),
        (
            {"parameters": {"max_term": 3}},
            "task.parameters: chain_sum has no parameter 'max_term'; did you mean 'max_terms'?",
        ),
        ({"parameters": {"seed": 3}}, "task.parameters: chain_sum has no parameter 'seed'; "),
        ({"parameters": {"min_terms": 5, "max_terms": 2}}, "task.parameters: chain_sum refuses them: "),
        ({"parameters": {"min_terms": "two"}}, "task.parameters: chain_sum refuses them: "),
        ({"parameters": {"min_terms": 1.5}}, "task.parameters: no question 0 can be made with them: "),
        (
            {"dataset": "coin_flip", "parameters": {"min_trials": 2, "max_trials": 2}, "held_out": 50},
            "task.held_out is 50, but beside its 40 training prompts coin_flip gave ",
        ),
        ({"dataset": "rush_hour", "form": "few-shot"}, "task.form few-shot shows worked answers, but rush_hour "),
        ({"library": "0.0.1"}, "the row was resolved with reasoning-gym 0.0.1, and version "),
    ],
)
def test_what_reasoning_gym_does_not_know_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        gym(**keys)
    assert str(caught.value).startswith(sentence)


class Scripted:
    """A text task of three prompts that judges a response by its first letter."""

    name, components, prompt_count, held_out_count = "scripted", ("accuracy", "format"), 2, 1
    stop = ("\n", "END")
    groups = {"odd": [True]}

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def prompt(self, number: int) -> Any:
        if number == 0:
            return "plain text:"
        return [{"role": "system", "content": "s"}, {"role": "user", "content": f"question {number}"}]

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        self.seen += zip(numbers, responses, strict=True)
        values = [{"y": 1.0, "n": 0.0}.get(response[:1], math.nan) for response in responses]
        faults = [
            Fault(number, response, "no idea")
            for number, response, value in zip(numbers, responses, values, strict=True)
            if value != value
        ]
        return Judged(
            values, {"accuracy": values, "format": [0.5] * len(values)}, [r or None for r in responses], faults
        )

    def exhibit(self, number: int) -> dict[str, Any]:
        return {"answer": "y"}


def test_prompts_are_tokenized_plainly_or_by_the_chat_template() -> None:
    tokenizer = byte_tokenizer(chat_template=CHAT)
    task = Tokenized(Scripted(), tokenizer)
    tokens, lengths = task.prompt_tokens(torch.tensor([[0, 1], [2, 0]]))
    assert tokens.shape[:2] == lengths.shape == (2, 2) and tokens.shape[2] == int(lengths.max())
    plain = tokens[0, 0, : lengths[0, 0]].tolist()
    assert plain == tokens[1, 1, : lengths[1, 1]].tolist() == tokenizer("plain text:")["input_ids"]
    chat = tokenizer.decode(tokens[1, 0, : lengths[1, 0]].tolist())
    assert chat == "<start>system\ns<turn>\n<start>user\nquestion 2<turn>\n<start>assistant\n"
    assert (tokens[0, 0, lengths[0, 0] :] == tokenizer.pad_token_id).all()
    assert task.exhibit(1, tokenizer("yes")["input_ids"]) == {
        "prompt": "system: s\nuser: question 1", "answer": "y", "response": "yes",
    }  # fmt: skip


def test_responses_are_decoded_up_to_a_stop_text_without_end_token_or_filling() -> None:
    tokenizer = byte_tokenizer(chat_template=CHAT)
    text = Scripted()
    task = Tokenized(text, tokenizer, ends=(1, 2))
    said = ["yes\nmore", "yENDs", "n<end>", "n<turn>", "no", "é", "", "<end>", "y<end>y<end>"]  # "": not drawn
    rows = [tokenizer(one)["input_ids"] for one in said]
    width = max(map(len, rows)) + 1
    tokens = torch.full((1, 1, len(rows), width), 77)
    token = torch.zeros_like(tokens, dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens[0, 0, place, : len(row)] = torch.tensor(row, dtype=torch.int64)
        token[0, 0, place, : len(row)] = True
    scores = task.score(torch.tensor([[1]]), tokens, token)
    decoded = ["yes", "y", "n", "n", "no", "é", "", "", "y<end>y"]
    assert text.seen == [(1, one) for place, one in enumerate(decoded) if place != 6]
    nan = math.nan
    expected = torch.tensor([1, 1, 0, 0, 0, nan, nan, nan, 1], dtype=torch.float64)
    assert torch.equal(scores.reward[0, 0].nan_to_num(-1), expected.nan_to_num(-1))
    assert scores.components.keys() == {"accuracy", "format"}
    assert scores.answers is not None
    answers = scores.answers[0, 0].tolist()
    assert answers[6] == answers[7] == -1 and answers[2] == answers[3]
    assert scores.components["format"][0, 0].isnan().tolist() == [place == 6 for place in range(9)]
    assert len(set(answers)) == len(set(decoded))
    assert task.take_faults() == [Fault(1, one, "no idea") for one in ("é", "")]
    assert task.take_faults() == []


def test_a_chat_needs_a_template() -> None:
    task = Tokenized(Scripted(), byte_tokenizer())
    assert task.prompt_tokens(torch.tensor([0]))[1].tolist() == [11]
    with pytest.raises(UserError, match="has no chat template, which the task scripted needs"):
        task.prompt_tokens(torch.tensor([1]))


def test_a_template_that_refuses_a_role_is_named() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    task = Tokenized(Scripted(), byte_tokenizer(chat_template=refusing + CHAT))
    with pytest.raises(UserError, match=r"of policy\.model refuses messages of the roles system, user: no sys"):
        task.prompt_tokens(torch.tensor([1]))
