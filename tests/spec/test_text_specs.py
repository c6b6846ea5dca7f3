"""Text tasks, reward models and functions of the user's own in rows: identity, and a sentence for every fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.spec.identity import canonical_json
from grpo_ablate.spec.resolve import Row, load_experiment, switches
from grpo_ablate.spec.text_tasks import components
from grpo_ablate.workflow.digest import function_digest, row_digest

Write = Callable[..., Path]
HUB = {"name": "huggingface", "model": "organisation/model", "revision": "a" * 40}
MODEL = {"policy": HUB, "seeds_per_job": 1}
SAMPLING = {"sampling": {"prompts": 2, "group_size": 4, "max_tokens": 8}, "evaluation": {"samples": 2}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def lines(path: str, count: int = 40, start: int = 0) -> Path:
    rows = ({"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(start, start + count))
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(path)


def module(name: str, text: str) -> str:
    Path(f"{name}.py").write_text(text)
    return name


def resolved(write: Write, task: dict[str, Any], changes: dict[str, Any] | None = None, **testbed: Any) -> Row:
    told = {**MODEL, **SAMPLING, "task": task, **testbed}
    return load_experiment(write({"rows": {"base": changes or {}}}, told)).rows[0]


JSONL = {"name": "jsonl", "path": "data.jsonl"}


def test_what_a_data_file_holds_is_part_of_a_rows_identity(write: Write) -> None:
    lines("data.jsonl")
    first = resolved(write, JSONL)
    assert first.spec.task.name == "jsonl"
    contents = first.spec.task.contents
    assert contents.train + contents.held_out == 40 and len(contents.sha256) == 64
    assert contents.sha256 in canonical_json(first.effective)
    lines("data.jsonl", 41)
    assert resolved(write, JSONL).hash != first.hash
    lines("data.jsonl")
    assert resolved(write, JSONL).hash == first.hash


def test_a_stated_digest_must_be_that_of_the_file(write: Write) -> None:
    lines("data.jsonl")
    found = resolved(write, JSONL).spec.task
    assert found.name == "jsonl"
    pinned = {**JSONL, "contents": {"sha256": found.contents.sha256}}
    assert resolved(write, pinned).spec.task == found
    lines("data.jsonl", 39)
    with pytest.raises(UserError, match=r"row 'base': task\.contents\.sha256 is .*, but data\.jsonl now has "):
        resolved(write, pinned)


def test_the_version_of_reasoning_gym_is_part_of_a_rows_identity(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"name": "reasoning-gym", "dataset": "chain_sum"}
    first = resolved(write, task)
    assert first.spec.task.name == "reasoning-gym" and first.spec.task.library
    monkeypatch.setattr("grpo_ablate.tasks.text.reasoning_gym.installed", lambda: "9.9.9")
    assert resolved(write, task).hash != first.hash


@pytest.mark.parametrize(
    ("task", "changes", "expected"),
    [
        ({"name": "addition"}, {}, ("accuracy",)),
        ({"name": "addition", "form": "chat", "format": "think-answer"}, {}, ("accuracy", "format")),
        ({"name": "reasoning-gym", "dataset": "chain_sum"}, {}, ("score", "accuracy")),
        (JSONL, {}, ("accuracy",)),
        ({**JSONL, "verifier": "chrf", "format": "boxed"}, {}, ("chrf", "accuracy", "format")),
        ({**JSONL, "verifier": "own_components:judge"}, {}, ("score", "accuracy")),
    ],
)
def test_components_of_a_spec_are_those_of_its_task(
    write: Write, task: dict[str, Any], changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    from grpo_ablate.tasks.text.addition import Addition
    from grpo_ablate.tasks.text.jsonl import Jsonl
    from grpo_ablate.tasks.text.reasoning_gym import ReasoningGym

    lines("data.jsonl")
    module("own_components", "def judge(response, answer, row):\n    return 1\n")
    spec = resolved(write, task, changes).spec
    made = {"addition": Addition, "jsonl": Jsonl, "reasoning-gym": ReasoningGym}[spec.task.name](spec.task)  # type: ignore[operator]
    assert components(spec) == made.components == expected


def test_components_may_be_weighted_and_filtered_on_where_the_task_has_them(write: Write) -> None:
    chat = {"name": "addition", "form": "chat", "format": "think-answer"}
    weighted = {"reward": {"components": {"accuracy": 1.0, "format": 0.2}}}
    assert resolved(write, chat, weighted).spec.reward.components == {"accuracy": 1.0, "format": 0.2}
    with pytest.raises(UserError, match="the task addition has no component 'format'"):
        resolved(write, {"name": "addition"}, weighted)
    resolved(write, chat, {"sampling": {"dynamic": "drop", "filter_on": "format"}})
    with pytest.raises(UserError, match=r"the task addition has no component 'formats'; did you mean 'format'\?"):
        resolved(write, chat, {"sampling": {"dynamic": "drop", "filter_on": "formats"}})


BAD_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"name": "jsonl", "path": "dta.jsonl"}, "'base': dta.jsonl: there is no such file; did you mean 'data"),
    ({**JSONL, "path": "empty.jsonl"}, "empty.jsonl: is empty"),
    ({**JSONL, "path": "gaps.jsonl"}, "gaps.jsonl: line 2: has no answer under 'answer'"),
    ({**JSONL, "verifier": "numerik"}, "task.verifier: no verifier 'numerik'; did you mean 'numeric'?"),
    ({**JSONL, "verifier": "regular-expression"}, "is regular-expression, but task.pattern is empty."),
    ({**JSONL, "verifier": "regular-expression", "pattern": "(a"}, "task.pattern '(a' is no regular expression: "),
    ({**JSONL, "verifier": "a b:c"}, "task.verifier: no verifier 'a b:c'"),
    ({**JSONL, "verifier": "nowhere.at_all:judge"}, "'nowhere.at_all:judge': there is no module 'nowhere'"),
    ({**JSONL, "verifier": "own_verifyer:judge"}, "no module 'own_verifyer'; did you mean 'own_verifier'?"),
    ({**JSONL, "verifier": "own_verifier:juge"}, "has no function 'juge'; did you mean 'judge'?"),
    ({**JSONL, "verifier": "own_verifier:NUMBER"}, "the module 'own_verifier' has no function 'NUMBER'"),
    ({**JSONL, "verifier": "broken_module:judge"}, "does not import: NameError: name 'undefined' is not defined"),
    ({**JSONL, "verifier": "needy_module:judge"}, "does not import: No module named 'not_there'."),
    ({**JSONL, "verifier": "unparsed_module:judge"}, "'unparsed_module:judge' does not import: SyntaxError: "),
    ({**JSONL, "verifier": "leaving_module:judge"}, "'leaving_module:judge' does not import: SystemExit: 3."),
    ({**JSONL, "verifier": "raising_module:judge"}, "'raising_module:judge' does not import: ValueError: no jud"),
    ({**JSONL, "verifier": "own_verifier:short"},
     "'own_verifier:short' cannot be called with (response, answer, row): too many positional arguments."),
    ({**JSONL, "verifier": "regular-expression", "pattern": "a{99999999999}"}, "is no regular expression: the r"),
    ({**JSONL, "verifier": "regular-expression", "pattern": "(" * 9999}, "is no regular expression: maximum rec"),
    ({**JSONL, "time_limit": 1e7}, "task.time_limit is 10000000.0, expected at most 86400."),
    ({"name": "reasoning-gym", "dataset": "chain_sum", "parameters": {"min_terms": 1.5}}, "no question 0 can be"),
    ({**JSONL, "template": "Answer!"}, "task.template has no {question}"),
    ({**JSONL, "held_out_path": "./data.jsonl"}, "task.held_out_path is task.path"),
    ({**JSONL, "question": "qestion"}, "line 1: has no key 'qestion' (task.question); did you mean 'question'?"),
    ({**JSONL, "format": "thinking"}, "task.format is 'thinking', expected off, think-answer, boxed or hashes."),
    ({**JSONL, "pth": "x"}, "unknown key 'task.pth'; did you mean 'path'?"),
    ({"name": "addition", "format": "boxed"}, "task.format boxed is asked of a response, but the worked answers"),
    ({"name": "addition", "digits": [[1, 1, 1]]}, "task.digits.0"),
    ({"name": "adition"}, "task.name is 'adition'; did you mean 'addition'?"),
    ({"name": "reasoning-gym", "dataset": "chainsum"}, "has no data set 'chainsum'; did you mean 'chain_sum'?"),
    ({"name": "arithmetic"}, "reads and writes texts, but the task arithmetic has its own"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "sentence"), BAD_TASKS, ids=range(len(BAD_TASKS)))
def test_a_bad_task_is_refused_before_anything_runs(write: Write, task: dict[str, Any], sentence: str) -> None:
    lines("data.jsonl")
    Path("empty.jsonl").write_text("")
    Path("gaps.jsonl").write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": ""}\n')
    own = (
        "NUMBER = 3\ndef judge(response, answer, row):\n    return 1\ndef short(response, answer):\n    return 1\n"
    )
    module("own_verifier", own)
    module("leaving_module", "import sys\nsys.exit(3)\n")
    module("raising_module", "def __getattr__(name):\n    raise ValueError(f'no {name}')\n")
    module("broken_module", "undefined\ndef judge(response, answer, row):\n    return 1\n")
    module("needy_module", "import not_there\ndef judge(response, answer, row):\n    return 1\n")
    module("unparsed_module", "def judge(:\n")
    with pytest.raises(UserError) as caught:
        resolved(write, task)
    assert sentence in str(caught.value), str(caught.value)


def test_more_prompts_than_questions_are_refused_once_they_are_counted(write: Write) -> None:
    lines("data.jsonl", 8)
    testbed = {"sampling": {**SAMPLING["sampling"], "prompts": 20, "prompt_order": "each-once"}}
    with pytest.raises(UserError, match=r"sampling\.prompts is 20, but the task has \d prompts"):
        resolved(write, {**JSONL, "held_out_share": 0.5}, **testbed)


def test_a_package_that_is_not_installed_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    lines("data.jsonl")
    monkeypatch.setattr("grpo_ablate.spec.text_tasks.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"math-verify, but that package is not installed: pip install 'grpo-ablate\[t"
    ):
        resolved(write, {**JSONL, "verifier": "math-verify"})

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        UserError, match=r"reasoning-gym, but that package is not installed: pip install 'grpo-ablate\["
    ):
        resolved(write, {"name": "reasoning-gym", "dataset": "chain_sum"})


def test_a_text_task_needs_a_pretrained_model(write: Write) -> None:
    with pytest.raises(UserError, match=r"the task addition is in words, which policy\.name stacked cannot read"):
        resolved(write, {"name": "addition"}, policy={"name": "stacked"})


def reward_model(name: str) -> Path:
    """A folder that looks like a model's; nothing is loaded when a row is resolved."""
    Path(name).mkdir()
    Path(name, "config.json").write_text("{}")
    return Path(name)


def test_a_reward_models_files_are_part_of_a_rows_identity(write: Write) -> None:
    folder = reward_model("judge")
    scored = {"reward": {"source": "model", "model": "judge"}}
    first = resolved(write, {"name": "addition"}, scored)
    assert components(first.spec) == ("accuracy", "model")
    assert first.spec.reward.model_digest in canonical_json(first.effective) and first.spec.reward.model_digest
    (folder / "config.json").write_text('{"changed": true}')
    assert resolved(write, {"name": "addition"}, scored).hash != first.hash


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({"source": "model"}, "reward.source is model, but reward.model is empty"),
        ({"source": "model", "model": "nowhere"}, "row 'base': reward.model: there is no folder 'nowhere'."),
        ({"source": "model", "model": "experiments"}, "experiments: has no config.json"),
        (
            {"source": "model", "model": "judge", "model_digest": "abc"},
            "reward.model_digest is abc, but the files",
        ),
        (
            {"source": "model", "model": "judge", "refresh_model": 2, "model_dtype": "bfloat16"},
            "reward.refresh_model needs reward.model_dtype float32",
        ),
        ({"source": "modle"}, "reward.source is 'modle', expected task or model."),
        ({"components": {"model": 1.0}}, "the task addition has no component 'model'"),
    ],
)
def test_a_bad_reward_model_is_refused(write: Write, reward: dict[str, Any], sentence: str) -> None:
    reward_model("judge")
    with pytest.raises(UserError) as caught:
        resolved(write, {"name": "addition"}, {"reward": reward})
    assert sentence in str(caught.value)


def test_a_reward_model_scores_texts_only(write: Write) -> None:
    reward_model("judge")
    path = write({"rows": {"base": {"reward": {"source": "model", "model": "judge"}}}})
    with pytest.raises(
        UserError, match=r"reward\.source model scores texts, which the task selection does not have"
    ):
        load_experiment(path)


def test_keys_that_nothing_reads_cannot_act(write: Write) -> None:
    lines("data.jsonl")
    plain = resolved(write, JSONL)
    for changes in ({"model": "x"}, {"refresh_model": 3}, {"refresh_steps": 5}, {"refresh_learning_rate": 1.0}):
        same = resolved(write, JSONL, {"reward": changes})
        assert same.hash == plain.hash and [i.key for i in same.inert] == [f"reward.{key}" for key in changes]
    for key, value in (("pattern", "x"), ("held_out_share", 0.1)):
        assert resolved(write, {**JSONL, key: value}).hash == plain.hash
    exact = {**JSONL, "verifier": "exact"}
    assert resolved(write, {**exact, "tolerance": 0.5}).hash == resolved(write, exact).hash
    assert resolved(write, {**JSONL, "tolerance": 0.5}).hash != plain.hash


OWN = """
SHARE = 0.5

def halves(rewards, present):
    return rewards * SHARE

def other():
    pass
"""


def test_an_own_advantage_function_stands_in_for_baseline_and_scale(write: Write) -> None:
    module("own_advantage_a", OWN)
    rows = {
        "base": {},
        "own": {"advantage": {"function": "own_advantage_a:halves"}},
        "twin": {"advantage": {"function": "own_advantage_a:halves", "baseline": "leave-one-out", "ddof": 1}},
        "clipped": {"advantage": {"function": "own_advantage_a:halves", "advantage_clip": 1.0}},
    }
    base, own, twin, clipped = load_experiment(write({"rows": rows})).rows
    assert own.hash == twin.hash and len({base.hash, own.hash, clipped.hash}) == 3
    assert {inert.key for inert in twin.inert} == {"advantage.baseline", "advantage.ddof"}
    assert switches(None, None, ["advantage.function=own_advantage_a:halves"]).advantage.function


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("halves", "advantage.function is 'halves', expected a dotted path as package.module:function."),
        ("own_advantage_b:halvs", "has no function 'halvs'; did you mean 'halves'?"),
        ("own_advantage_b:other", "cannot be called with (rewards, present): too many positional arguments."),
        ("own_advantage_c:halves", "there is no module 'own_advantage_c'"),
    ],
)
def test_a_bad_advantage_function_is_refused(write: Write, function: str, sentence: str) -> None:
    module("own_advantage_b", OWN)
    with pytest.raises(UserError) as caught:
        load_experiment(write({"rows": {"base": {"advantage": {"function": function}}}}))
    assert sentence in str(caught.value)


def test_what_an_own_module_prints_is_no_part_of_the_output(write: Write, capsys: Any) -> None:
    lines("data.jsonl")
    module("talking_module", "print('hello')\ndef judge(response, answer, row):\n    return 1\n")
    resolved(write, {**JSONL, "verifier": "talking_module:judge"})
    said = capsys.readouterr()
    assert said.out == "" and said.err == "hello\n"


def test_the_source_of_an_own_function_is_part_of_the_training_digest(write: Write) -> None:
    module("own_advantage_d", OWN)
    rows = {"base": {}, "own": {"advantage": {"function": "own_advantage_d:halves"}}}
    base, own = (row.effective for row in load_experiment(write({"rows": rows})).rows)
    plain, first = row_digest(base), row_digest(own)
    assert plain != first
    for edit, acts in (
        (("rewards * SHARE", "rewards * SHARE * 2"), True),
        (("SHARE = 0.5", "SHARE = 0.25"), True),
        (("    pass", "    return 1"), False),
        (("def halves(", "# said\ndef halves("), False),
    ):
        Path("own_advantage_d.py").write_text(OWN.replace(*edit))
        assert (row_digest(own) != first) == acts
        assert row_digest(base) == plain


@pytest.mark.parametrize("package", ["own_package", "own_folder"])
def test_the_source_of_an_own_function_is_followed_through_its_package(package: str) -> None:
    """With and without an ``__init__.py``."""
    Path(package).mkdir()
    if package == "own_package":
        Path(package, "__init__.py").write_text("")
    rewards, parts = Path(package, "rewards.py"), Path(package, "parts.py")
    rewards.write_text(f"from {package}.parts import part\n\ndef judge(r, a, row):\n    return part(r)\n")
    parts.write_text("def part(r):\n    return 1\n\ndef unused():\n    return 2\n")
    first = function_digest(f"{package}.rewards:judge")
    parts.write_text("def part(r):\n    return 1\n\ndef unused():\n    return 3\n")
    assert function_digest(f"{package}.rewards:judge") == first
    parts.write_text("def part(r):\n    return 0\n")
    assert function_digest(f"{package}.rewards:judge") != first
