"""Where answers stand and which forms count, by hand-written texts."""

from __future__ import annotations

import random
import time

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
        (r"\\boxed{4}", "4"),  # a break of the line before it, or an escape too many
        (r"} \boxed{4}", "4"),
        (r"\boxed{\boxed{4} 5}", "4"),
        (r"\boxed{3} \boxed{\boxed{4}", "4"),
        ("boxed{4}", None),
        ("", None),
    ],
)
def test_a_box_holds_what_its_braces_hold(text: str, answer: str | None) -> None:
    assert FORMATS["boxed"].answer(text) == answer
    assert FORMATS["boxed"].kept(text) == (answer is not None)


def test_boxes_are_those_that_counting_braces_finds() -> None:
    """Each place where a box opens, and the first place at which as many braces have closed as opened."""
    draws, pieces = random.Random(0), ["\\boxed{", "{", "}", "\\{", "\\}", "a"]
    for _ in range(2000):
        parts = draws.choices(pieces, k=draws.randint(1, 12))
        found = None
        for opening in (place for place, part in enumerate(parts) if part == "\\boxed{"):
            for closing in range(opening + 1, len(parts)):
                inside = parts[opening + 1 : closing]
                if parts[closing] == "}" and inside.count("}") == inside.count("{") + inside.count("\\boxed{"):
                    found = "".join(inside)
                    break
        assert LAYOUTS["math"]("".join(parts)) == found, parts


def test_a_response_of_nothing_but_openings_takes_no_time() -> None:
    """What a degenerate policy writes is read outside the verifier's time limit."""
    began = time.process_time()
    for text in (r"\boxed{" * 20_000, r"\boxed{1" * 20_000 + "}", "{" * 100_000, "\\" * 100_000):
        FORMATS["boxed"].answer(text)
    for text in (
        "<think>" * 20_000,
        "<think></think><answer>" * 10_000,
        "<think></think><answer>" + " " * 99_999,
    ):
        FORMATS["think-answer"].kept(text)
    assert time.process_time() - began < 5


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
