"""Verifiers against answers graded by hand, and against the libraries that they call."""

from __future__ import annotations

import math
import random

import pytest
import sacrebleu
from graded_answers import LAST_NUMBER, NUMERIC

from grpo_ablate.spec.text_tasks import VERIFIERS as NAMES
from grpo_ablate.tasks.text.protocol import Verdict
from grpo_ablate.tasks.text.quantities import quantity, same
from grpo_ablate.tasks.text.verifiers import VERIFIERS, Named, NoVerdictError, Options, as_number


def verdict(name: str, response: str, answer: str, **options: object) -> Verdict:
    return Named(name, Options(**options))(response, answer, {})  # type: ignore[arg-type]


def right(name: str, response: str, answer: str, **options: object) -> bool:
    found = verdict(name, response, answer, **options).values["accuracy"]
    assert found in (0.0, 1.0)
    return found == 1.0


def test_every_verifier_of_the_schema_is_there() -> None:
    assert tuple(VERIFIERS) == NAMES


@pytest.mark.parametrize(("response", "answer", "is_right"), NUMERIC, ids=range(len(NUMERIC)))
def test_numeric_grades_as_a_person_does(response: str, answer: str, is_right: bool) -> None:
    if len(answer) > 300:
        with pytest.raises(NoVerdictError):
            verdict("numeric", response, answer)
    else:
        assert right("numeric", response, answer) == is_right


@pytest.mark.parametrize(("response", "answer", "is_right"), LAST_NUMBER, ids=range(len(LAST_NUMBER)))
def test_last_number_grades_as_a_person_does(response: str, answer: str, is_right: bool) -> None:
    assert right("last-number", response, answer) == is_right


def test_a_tolerance_is_relative_to_the_right_answer() -> None:
    assert right("numeric", "3.14", "3.14159", tolerance=1e-3)
    assert not right("numeric", "3.14", "3.14159", tolerance=1e-4)
    assert right("last-number", "about -99", "-100", tolerance=0.01)
    assert not right("last-number", "about -98", "-100", tolerance=0.01)
    assert right("numeric", "0.001", "0", tolerance=1e-3)


def test_any_whole_number_written_in_any_way_is_itself_and_no_neighbour() -> None:
    draw = random.Random(0)
    for _ in range(300):
        value = draw.randrange(-(10**9), 10**9)
        for written in (
            str(value),
            f"{value:,}",
            f"{value}.00",
            f"{value:+,}",
            f"{2 * value}/2",
            f"{value} apples",
        ):
            assert right("numeric", written, str(value))
            assert right("last-number", f"so it is {written}.", str(value))
            assert not right("numeric", written, str(value + 1))
            assert not right("last-number", f"so it is {written}.", str(value - 1))


def test_decimals_are_compared_exactly_where_floats_are_not() -> None:
    a, b, total = quantity("0.1"), quantity("0.2"), quantity("0.3")
    assert a and b and total
    assert a.value + b.value == total.value and 0.1 + 0.2 != 0.3
    assert same(total, total) and not same(total, a)


@pytest.mark.parametrize("name", ["numeric", "last-number"])
def test_a_right_answer_that_is_no_number_gives_no_verdict(name: str) -> None:
    with pytest.raises(NoVerdictError, match="the right answer 'blue' is no number"):
        verdict(name, "7", "blue")


def test_equal_numbers_are_one_answer() -> None:
    assert verdict("numeric", "0.50", "1").answer == verdict("last-number", "so 1/2", "1").answer
    assert verdict("numeric", "0.5", "1").answer != verdict("numeric", "5", "1").answer
    assert verdict("numeric", "no", "1").answer is None


@pytest.mark.parametrize(
    ("response", "answer", "is_right"),
    [
        ("Paris", "Paris", True),
        ("  Paris\n", "Paris", True),
        ("the  red\nhouse", "the red house", True),
        ("paris", "Paris", False),
        ("Paris.", "Paris", False),
        ("", "Paris", False),
    ],
)
def test_exact_is_equality_up_to_white_space(response: str, answer: str, is_right: bool) -> None:
    assert right("exact", response, answer) == is_right


@pytest.mark.parametrize(
    ("pattern", "response", "answer", "is_right"),
    [
        (r"answer is (\w+)", "My answer is blue. No, the answer is red.", "red", True),
        (r"answer is (\w+)", "My answer is blue. No, the answer is red.", "blue", False),
        (r"[A-E]", "I choose B", "B", True),
        (r"<a>(.*?)</a>|<b>(.*?)</b>", "<b>x y</b>", "x y", True),
        (r"answer is (\w+)", "red", "red", False),
        (r"(?i)ANSWER: *(.*)", "answer:  two  words ", "two words", True),
    ],
)
def test_a_regular_expression_captures_the_answer(
    pattern: str, response: str, answer: str, is_right: bool
) -> None:
    assert right("regular-expression", response, answer, pattern=pattern) == is_right


def test_chrf_is_sacrebleus() -> None:
    pairs = [
        ("le chat dort", "le chat dort"),
        ("la chatte dort", "le chat dort"),
        ("", "le chat dort"),
        (
            "The quick brown fox jumps over the lazy dog near the river bank.",
            "A quick brown fox jumped over lazy dogs.",
        ),
        ("日本語", "日本"),
    ]
    metric = sacrebleu.CHRF()
    for response, answer in pairs:
        found = verdict("chrf", response, answer).values
        assert found["chrf"] == metric.sentence_score(response, [answer]).score / 100
        assert found["accuracy"] == float(response == answer)
    assert verdict("chrf", *pairs[0]).values["chrf"] == 1.0


FORMULAS = [  # response, right answer; what math-verify says of them is taken from math-verify itself
    ("The answer is $\\frac{1}{2}$", "0.5"),
    ("so \\boxed{\\frac{2}{4}}", "\\frac{1}{2}"),
    ("so \\boxed{\\sqrt{8}}", "2\\sqrt{2}"),
    ("so \\boxed{\\sqrt{8}}", "3\\sqrt{2}"),
    ("$x^2 + 2x + 1$", "(x+1)^2"),
    ("$x^2 + 2x$", "(x+1)^2"),
    ("\\boxed{(1, 2)}", "(1,2)"),
    ("\\boxed{(2, 1)}", "(1,2)"),
    ("\\boxed{\\{1, 2\\}}", "\\{2,1\\}"),
    ("\\boxed{[0, 1)}", "[0,1)"),
    ("\\boxed{[0, 1]}", "[0,1)"),
    ("\\boxed{50\\%}", "0.5"),
    ("the final answer is 17", "17"),
    ("I cannot say", "17"),
    ("\\boxed{\\pi/4}", "\\frac{\\pi}{4}"),
    ("\\boxed{\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
]


@pytest.mark.parametrize(("response", "answer"), FORMULAS, ids=range(len(FORMULAS)))
def test_formulas_are_judged_as_math_verify_called_directly_does(response: str, answer: str) -> None:
    from math_verify import parse, verify

    assert right("math-verify", response, answer) == verify(parse(f"${answer}$"), parse(response))


def test_an_answer_alone_is_read_as_a_formula() -> None:
    """As it stands between answer tags, without dollars or a box; by hand."""
    assert right("math-verify", "\\frac{1}{2}", "0.5")
    assert right("math-verify", "2\\sqrt{2}", "\\sqrt{8}")
    assert not right("math-verify", "2\\sqrt{3}", "\\sqrt{8}")


def test_what_verifiers_return_becomes_a_number_or_a_reason() -> None:
    assert [as_number(value) for value in (True, False, 0, 0.25, math.pi)] == [1.0, 0.0, 0.0, 0.25, math.pi]
    reasons = {
        None: "returned None",
        math.nan: "returned nan, expected a finite number",
        math.inf: "returned inf, expected a finite number",
        "0.5": "returned '0.5', expected a finite number",
        (1,): "returned a tuple, expected a number",
    }
    for value, reason in reasons.items():
        with pytest.raises(NoVerdictError) as caught:
            as_number(value)
        assert str(caught.value) == reason
