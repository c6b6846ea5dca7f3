"""Where answers stand and which forms count, by hand-written texts."""

from __future__ import annotations

import pytest

from grpo_ablate.tasks.text.places import FORMATS, LAYOUTS

THINK = "<think>2 and 2</think> <answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "kept", "answer"),
    [
        (THINK, 1, "4"),
        ("<think>\n2 and 2\n</think>\n\n<answer>\n4\n</answer>\n", 1, "4"),
        ("<think></think><answer></answer>", 1, ""),
        (f"Well. {THINK}", 0, "4"),
        (f"{THINK} Done.", 0, "4"),
        ("<think>2 and 2</think> 4", 0, None),
        ("<answer>4</answer><think>2 and 2</think>", 0, "4"),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0, "5"),
        ("<think>a<think>b</think><answer>4</answer>", 0, "4"),
        ("<think>is it <answer>3</answer>?</think><answer>4</answer>", 0, "4"),
        ("<THINK>a</THINK><ANSWER>4</ANSWER>", 0, None),
        ("<think>a</think><answer>4", 0, None),
        ("<think>a</think>and then<answer>4</answer>", 0, "4"),
        ("4", 0, None),
        ("", 0, None),
    ],
)
def test_the_format_of_r1_zero_is_a_thought_then_an_answer_and_nothing_else(
    text: str, kept: bool, answer: str | None
) -> None:
    form = FORMATS["think-answer"]
    assert form.kept(text) == bool(kept)
    assert form.answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{3}, no, \boxed{ 4 }.", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{3} \boxed{4}", "4"),
        (r"\boxed {4}", "4"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{a\\}", r"a\\"),
        ("boxed{4}", None),
        ("", None),
    ],
)
def test_a_box_holds_what_its_braces_hold(text: str, answer: str | None) -> None:
    assert FORMATS["boxed"].answer(text) == answer
    assert FORMATS["boxed"].kept(text) == (answer is not None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "72"),
        ("#### 1,234\n", "1,234"),
        ("#### 3\n#### 4\nand more", "4"),
        ("####5", "5"),
        ("72", None),
        ("####", None),
        ("#### \nmore", None),
    ],
)
def test_hashes_lead_to_the_rest_of_their_line(text: str, answer: str | None) -> None:
    assert FORMATS["hashes"].answer(text) == answer == LAYOUTS["gsm8k"](text)
    assert FORMATS["hashes"].kept(text) == (answer is not None)


def test_layouts_find_the_final_answer_of_a_row() -> None:
    assert LAYOUTS["plain"]("  Paris \n") == "Paris"
    assert LAYOUTS["plain"]("  ") is None
    assert LAYOUTS["math"](r"We get $x=\boxed{\frac{3}{4}}$.") == r"\frac{3}{4}"
    assert LAYOUTS["math"]("x = 3") is None


def test_every_format_asks_for_itself() -> None:
    assert "<think> </think> and <answer> </answer>" in FORMATS["think-answer"].instruction
    assert "\\boxed{}" in FORMATS["boxed"].instruction
    assert "####" in FORMATS["hashes"].instruction
