"""Data files of questions and answers: layouts, the held-out part, and a sentence for every fault."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from data_files import GSM8K, MATH, write_lines, write_parquet

from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import JsonlTask
from grpo_ablate.tasks.text.jsonl import Jsonl
from grpo_ablate.tasks.text.rows import questions


def settings(path: Path, **keys: Any) -> JsonlTask:
    return JsonlTask(name="jsonl", path=str(path), **keys)


def math(path: Path, **keys: Any) -> JsonlTask:
    return settings(path, question="problem", answer="solution", layout="math", verifier="math-verify", **keys)


def test_gsm8k_rows_are_read_and_judged(tmp_path: Path) -> None:
    task = Jsonl(settings(write_lines(tmp_path / "train.jsonl", GSM8K), layout="gsm8k"))
    assert task.prompt_count + task.held_out_count == 40
    number = next(n for n in range(40) if "has 501 apples" in task.prompt(n)[-1]["content"])
    assert task.prompt(number) == [{"role": "user", "content": GSM8K[1]["question"]}]
    assert task.exhibit(number) == {"answer": "1,003"}
    judged = task.judge([number] * 3, ["501 + 502 = 1003, so 1,003.", "she has 1004", "who knows"])
    assert judged.reward == [1.0, 0.0, 0.0] and judged.components == {"accuracy": judged.reward}
    assert judged.answers == ["1003", "1004", None]


def test_math_rows_are_read_and_judged(tmp_path: Path) -> None:
    task = Jsonl(math(write_lines(tmp_path / "train.jsonl", MATH)))
    number = next(n for n in range(40) if "\\frac{6}{14}" in task.prompt(n)[-1]["content"])
    assert task.exhibit(number) == {"answer": r"\frac{3}{7}"}
    said = [r"so $\boxed{\frac{3}{7}}$", r"$\frac{6}{14}$", r"\boxed{3/7}", r"\boxed{\frac{7}{3}}", "no idea"]
    assert task.judge([number] * 5, said).reward == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_parquet_and_jsonl_files_of_the_same_rows_are_the_same_task(tmp_path: Path) -> None:
    lines = questions(math(write_lines(tmp_path / "a.jsonl", MATH)))
    table = questions(math(write_parquet(tmp_path / "a.parquet", MATH)))
    assert lines.train == table.train and lines.held_out == table.held_out
    assert lines.sha256 != table.sha256  # of the files


def test_the_digest_is_that_of_the_files_bytes(tmp_path: Path) -> None:
    train, held_out = write_lines(tmp_path / "a.jsonl", GSM8K[:30]), write_lines(tmp_path / "b.jsonl", GSM8K[30:])

    def expected(*paths: Path) -> str:
        return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()

    assert questions(settings(train, layout="gsm8k")).sha256 == expected(train)
    assert questions(settings(train, held_out_path=str(held_out), layout="gsm8k")).sha256 == expected(
        train, held_out
    )
    write_lines(held_out, GSM8K[31:])
    assert questions(settings(train, held_out_path=str(held_out), layout="gsm8k")).sha256 == expected(
        train, held_out
    )


def test_held_out_questions_are_chosen_by_their_text_and_never_train(tmp_path: Path) -> None:
    few = questions(settings(write_lines(tmp_path / "few.jsonl", GSM8K[:30]), held_out_share=0.3, layout="gsm8k"))
    all_of_them = questions(
        settings(write_lines(tmp_path / "all.jsonl", GSM8K[::-1] + GSM8K), held_out_share=0.3, layout="gsm8k")
    )

    def texts(found: Any) -> set[str]:
        return {question.question for question in found}

    assert texts(few.held_out) <= texts(all_of_them.held_out)
    assert texts(few.train) <= texts(all_of_them.train)
    assert not texts(all_of_them.train) & texts(all_of_them.held_out)
    assert 4 <= len(texts(all_of_them.held_out)) <= 20  # 12 of 40 expected


def test_a_held_out_file_takes_its_questions_out_of_training(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.jsonl", GSM8K)
    held_out = write_lines(tmp_path / "test.jsonl", GSM8K[10:20])
    found = questions(settings(train, held_out_path=str(held_out), layout="gsm8k", held_out=4, train_prompts=8))
    assert [q.question for q in found.train] == [row["question"] for row in GSM8K[:8]]
    assert [q.question for q in found.held_out] == [row["question"] for row in GSM8K[10:14]]


def test_white_space_makes_no_held_out_question_another(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.jsonl", GSM8K)
    spaced = [
        {**row, "question": f" {row['question'].replace(' has ', chr(10) + 'has  ')} "} for row in GSM8K[:10]
    ]
    held_out = write_lines(tmp_path / "test.jsonl", spaced)
    found = questions(settings(train, held_out_path=str(held_out), layout="gsm8k"))
    assert [q.question for q in found.train] == [row["question"] for row in GSM8K[10:]]
    assert [q.question for q in found.held_out] == [row["question"] for row in spaced]  # asked as they stand


def test_prompts_are_put_as_the_settings_say(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": n} for n in range(60)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    plain = Jsonl(settings(path, form="plain", template="Q: {question}\nA:", system="Count.", stop=["\n"]))
    asked = plain.questions[0].question
    assert plain.prompt(0) == f"Count.\n\nQ: {asked}\nA:" and plain.stop == ("\n",)
    chat = Jsonl(settings(path, template="{question} Only the number.", format="think-answer"))
    system, user = chat.prompt(0)
    assert system["role"] == "system" and "<think> </think> and <answer> </answer>" in system["content"]
    assert user == {"role": "user", "content": f"{chat.questions[0].question} Only the number."}


def test_chat_messages_as_questions_are_taken_as_they_are(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    rows = [{"prompt": messages, "reward_model": {"ground_truth": "4"}}]
    rows += [
        {"prompt": [{"role": "user", "content": f"{n} + 2?"}], "reward_model": {"ground_truth": str(n + 2)}}
        for n in range(3, 30)
    ]
    for path in (write_lines(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows)):
        task = Jsonl(settings(path, question="prompt", answer="reward_model.ground_truth", system="Be long."))
        prompts = [task.prompt(number) for number in range(28)]
        assert messages in prompts
        assert [{"role": "system", "content": "Be long."}, {"role": "user", "content": "3 + 2?"}] in prompts
        assert [{"role": "system", "content": "Be long."}, *messages] not in prompts


def test_the_format_decides_what_the_verifier_reads(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": "4"} for n in range(60)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    task = Jsonl(settings(path, format="think-answer", verifier="exact"))
    assert task.components == ("accuracy", "format")
    said = [
        "<think>x</think><answer> 4 </answer>",
        "<think>4</think><answer>5</answer>",
        "so <answer>4</answer>",
        "4",
    ]
    judged = task.judge([0] * 4, said)
    assert judged.components == {"accuracy": [1.0, 0.0, 1.0, 0.0], "format": [1.0, 1.0, 0.0, 0.0]}
    assert judged.reward == judged.components["accuracy"]
    assert judged.answers == ["4", "5", "4", None]
    boxed = Jsonl(settings(path, format="boxed"))
    assert boxed.judge([0] * 3, [r"5, \boxed{4}", r"\boxed{5} or 4", "4"]).components == {
        "accuracy": [1.0, 0.0, 0.0],
        "format": [1.0, 1.0, 0.0],
    }


def test_chrf_is_graded_and_accuracy_exact(tmp_path: Path) -> None:
    rows = [{"question": f"{n}", "answer": "le chat dort"} for n in range(60)]
    task = Jsonl(settings(write_lines(tmp_path / "a.jsonl", rows), verifier="chrf"))
    judged = task.judge([0, 0, 0], ["le chat dort", "le chien dort", "zzz"])
    assert task.components == ("chrf", "accuracy") and judged.components["accuracy"] == [1.0, 0.0, 0.0]
    assert judged.reward[0] == 1.0 > judged.reward[1] > judged.reward[2] == 0.0


GOOD = {"question": "1 + 1?", "answer": "2"}
BAD_LINES = [
    ("", "is empty: expected a question and an answer in every row."),
    ("\n\n", "is empty: expected a question and an answer in every row."),
    (json.dumps(GOOD) + "\n{'a': 1}\n", "line 2: is not JSON: "),
    ("[1, 2]\n", "line 1: expected a JSON object, found a list."),
    (
        json.dumps(GOOD) + '\n{"question": "1 + 2?", "anwser": "3"}\n',
        "line 2: has no key 'answer' (task.answer); did you mean 'anwser'?",
    ),
    ('{"prompt": "1 + 2?", "answer": "3"}\n', "line 1: has no key 'question' (task.question); "),
    ("{}\n", "line 1: has no key 'question' (task.question); the row is empty."),
    ('{"question": "1 + 2?", "answer": null}\n', "line 1: has no answer under 'answer'"),
    ('{"question": "1 + 2?", "answer": " "}\n', "line 1: has no answer under 'answer'"),
    ('{"question": "1 + 2?", "answer": ["3"]}\n', "line 1: has no answer under 'answer'"),
    ('{"question": "1 + 2?", "answer": NaN}\n', "line 1: has no answer under 'answer'"),
    ('{"question": "1 + 2?", "answer": true}\n', "line 1: has no answer under 'answer'"),
    (json.dumps(GOOD) + '\n{"question": "\\ud800?", "answer": "3"}\n', "line 2: holds half of a surrogate pair"),
    ('{"question": "1 + 2?", "answer": "3 \\udfff"}\n', "line 1: holds half of a surrogate pair"),
    ('{"question": "", "answer": "3"}\n', "line 1: has no question under 'question'"),
    ('{"question": 3, "answer": "3"}\n', "line 1: has no question under 'question'"),
    ('{"question": ["a"], "answer": "3"}\n', "line 1: the question is a list, but not of messages"),
    (
        '{"question": "1 + 2?", "answer": "three"}\n',
        "line 1: the answer 'three' is no number, but task.verifier is",
    ),
    (json.dumps(GOOD) + "\n", "task.held_out_share 0.1 holds out none of its 1 questions: raise it, or name"),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        questions(settings(path, verifier="exact" if "surrogate" in sentence else "last-number"))
    assert str(caught.value).startswith(f"{path}: ") and sentence in str(caught.value)


def test_other_bad_files_are_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", GSM8K)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "latin.jsonl").write_bytes('{"question": "é", "answer": "2"}'.encode("latin-1"))
    (tmp_path / "data.txt").write_text("x")
    (tmp_path / "folder.jsonl").mkdir()
    cases = {
        "trian.jsonl": "there is no such file; did you mean 'train.jsonl'?",
        "broken.parquet": "is no Parquet file.",
        "latin.jsonl": "line 1: is not JSON",
        "data.txt": "expected a file that ends in .jsonl, .ndjson or .parquet.",
        "folder.jsonl": "cannot be read: Is a directory.",
    }
    for name, sentence in cases.items():
        with pytest.raises(UserError) as caught:
            questions(settings(tmp_path / name))
        assert sentence in str(caught.value) and name in str(caught.value)
    with pytest.raises(UserError, match=r"line 1: the answer has no \\boxed\{\}, which task.layout math reads"):
        questions(settings(tmp_path / "train.jsonl", layout="math"))
    with pytest.raises(UserError, match=r"task.train_prompts is 1000, but .*train.jsonl has \d\d questions"):
        questions(settings(tmp_path / "train.jsonl", layout="gsm8k", train_prompts=1000))
    table = write_parquet(tmp_path / "table.parquet", [GOOD, {"question": "2 + 2?", "answer": None}])
    with pytest.raises(UserError, match=r"table\.parquet: row 2: has no answer"):
        questions(settings(table))
    with pytest.raises(UserError, match=r"goes with task\.form chat alone"):
        rows = [{"question": [{"role": "user", "content": "2?"}], "answer": "2"}]
        questions(settings(write_lines(tmp_path / "chat.jsonl", rows), form="plain"))
    with pytest.raises(UserError, match=r"chat\.jsonl: line 1: .* messages, which task\.template does not change"):
        questions(settings(tmp_path / "chat.jsonl", template="{question} Be brief."))
    with pytest.raises(UserError, match=r"cannot be read: File name too long\."):
        questions(settings(tmp_path / f"{'a' * 300}.jsonl"))
    with pytest.raises(UserError, match=r"^~nobody-of-this-name/a\.jsonl: there is no such file; "):
        questions(settings(Path("~nobody-of-this-name/a.jsonl")))


def test_tables_whose_values_are_no_texts_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    columns = {
        "no-utf8": (broken, "holds what cannot be read: 'utf-8' codec"),
        "far": (pa.array([10**14], pa.timestamp("s")), "holds what cannot be read: "),
        "bytes": (pa.array([b"4"]), "row 1: has no answer under 'answer'"),
        "nan": (pa.array([float("nan")]), "row 1: has no answer under 'answer'"),
    }
    for name, (column, sentence) in columns.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"question": ["1?"], "answer": column}), path)
        with pytest.raises(UserError) as caught:
            questions(settings(path, verifier="exact"))
        assert str(caught.value).startswith(f"{path}: {sentence}")


def test_marks_of_byte_order_and_ends_of_lines_change_nothing(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", GSM8K).read_bytes()
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"))
    one, other = (questions(settings(tmp_path / name, layout="gsm8k")) for name in ("a.jsonl", "b.jsonl"))
    assert one.train == other.train and one.held_out == other.held_out


def test_a_file_that_changed_since_the_row_was_resolved_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", GSM8K)
    told = settings(path, layout="gsm8k", contents={"sha256": questions(settings(path, layout="gsm8k")).sha256})
    assert Jsonl(told).prompt_count > 0
    write_lines(path, GSM8K[:-1])
    with pytest.raises(UserError, match=r"a\.jsonl: has changed since the row was resolved"):
        Jsonl(told)
