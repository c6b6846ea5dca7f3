"""YAML is read strictly, and every fault is one sentence that names the place."""

from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.spec.reading import checked, parse_yaml, read_yaml
from grpo_ablate.spec.schema import Spec, Switches


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e-9", 1e-9),
        ("5E2", 500.0),
        (".5", 0.5),
        ("010", 10),
        ("-3", -3),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("2026-01-02", "2026-01-02"),
        ("1:30", "1:30"),
        ("~", None),
        (".inf", float("inf")),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    read = parse_yaml(f"key: {text}", "file")["key"]
    assert read == value
    assert type(read) is type(value)


def test_a_key_written_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(UserError, match=r"x\.yaml: line 3: 'a' is written twice \(first on line 1\)"):
        parse_yaml("a: 1\nb: 2\na: 3\n", "x.yaml")


def test_merge_keys_bring_in_what_is_not_overridden() -> None:
    read = parse_yaml("base: &x {scale: none, ddof: 1}\nother: {<<: *x, ddof: 0}\n", "file")
    assert read["other"] == {"scale": "none", "ddof": 0}


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "\tx: 1", "a: !!python/object/apply:os.system ['true']"])
def test_broken_or_unsafe_yaml_is_a_sentence_with_the_line(text: str) -> None:
    with pytest.raises(UserError, match=r"x\.yaml: line \d+:"):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize(("text", "found"), [("", "empty"), ("- 1", "a list"), ("word", "a str")])
def test_a_file_that_is_no_mapping_is_refused(text: str, found: str) -> None:
    with pytest.raises(UserError, match=f"expected a mapping of keys to values, found it {found}"):
        parse_yaml(text, "x.yaml")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.yaml: cannot be read"):
        read_yaml(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"advantage": {"basline": "mean"}}, "unknown key 'advantage.basline'; did you mean 'baseline'?"),
        ({"advantge": {}}, "unknown key 'advantge'; did you mean 'advantage'?"),
        ({"update": {"beta": 0.1}}, "unknown key 'update.beta'; did you mean 'kl.beta'?"),
        ({"advantage": {"ddof": 2}}, "advantage.ddof is 2, expected 0 or 1."),
        ({"advantage": {"scale": "std"}}, "expected none, group-std, batch-std or leave-one-out-std"),
        ({"update": {"clip_high": -0.1}}, "update.clip_high is -0.1, expected at least 0 or off."),
        ({"update": {"clip_high": "of"}}, "update.clip_high is 'of', expected a number or off."),
        ({"kl": {"beta": -1}}, "kl.beta is -1, expected at least 0."),
        ({"kl": {"beta": True}}, "kl.beta is True, expected a number."),
        ({"kl": {"beta": "0.1"}}, "kl.beta is '0.1', expected a number."),
        ({"kl": {"beta": float("nan")}}, "kl.beta is nan, expected a finite number"),
        ({"sampling": {"group_size": 2.5}}, "sampling.group_size is 2.5, expected a whole number."),
        ({"sampling": {"group_size": 0}}, "sampling.group_size is 0, expected at least 1."),
        ({"kl": None}, "kl is empty, expected a mapping of keys to values."),
        ({"reward": {"components": {"format": "x"}}}, "reward.components.format is 'x', expected a number."),
    ],
)
def test_a_wrong_value_names_key_value_and_what_was_expected(data: object, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(Switches, data, "f")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("f: ")
    assert str(caught.value).count("\n") == 0


def test_a_whole_number_serves_where_a_number_is_expected() -> None:
    assert checked(Switches, {"kl": {"beta": 1}}, "f").kl.beta == 1.0


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"task": {"name": "arithmetik"}}, "task.name is 'arithmetik'; did you mean 'arithmetic'?"),
        (
            {"task": {"name": "arithmetic", "held_outs": 3}},
            "unknown key 'task.held_outs'; did you mean 'held_out'?",
        ),
        ({"task": {"name": "arithmetic", "held_out": 0}}, "task.held_out is 0, expected at least 1."),
        (
            {"task": {"name": "arithmetic"}, "policy": {"name": "stacked", "warmstart": {"stepz": 1}}},
            "unknown key 'policy.warmstart.stepz'; did you mean 'steps'?",
        ),
    ],
)
def test_a_fault_in_a_section_that_is_one_of_several_is_named_by_the_users_keys(
    stated: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as raised:
        checked(Spec, {**stated, "budget": {"rollouts": 8}}, "file")
    assert str(raised.value) == f"file: {sentence}"
