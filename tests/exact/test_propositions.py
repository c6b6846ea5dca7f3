"""The propositions: every finding holds, and the numbers found are those of closed forms, hand and plain loops."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
from ordered_groups import Response, Token, expectation

from grpo_ablate.exact.propositions import PROPOSITIONS, Proposition, examine
from grpo_ablate.exact.propositions import findings as kinds
from grpo_ablate.exact.propositions.findings import Finding
from grpo_ablate.exact.propositions.table import COLUMNS, as_csv, as_table, verdict
from grpo_ablate.spec.exact_files import PropositionName


@cache
def examined(name: str) -> Proposition:
    return examine(name)


def found(name: str, case: str, quantity: str) -> list[float]:
    """The enumerated value of the one finding whose case and quantity start so (after a tilde: contain it)."""

    def matches(text: str, wanted: str) -> bool:
        return wanted[1:] in text if wanted.startswith("~") else text.startswith(wanted)

    every = examined(name).findings
    chosen = [f for f in every if matches(f.case, case) and matches(f.quantity, quantity)]
    chosen = [f for f in chosen if f.case == case] or chosen
    assert len(chosen) == 1, [(f.case, f.quantity) for f in chosen]
    return list(chosen[0].value)


def number(name: str, case: str, quantity: str) -> float:
    (value,) = found(name, case, quantity)
    return value


def binomial(size: int, p: float, value) -> float:
    return sum(math.comb(size, c) * p**c * (1 - p) ** (size - c) * value(c / size) for c in range(size + 1))


def spread(share: float) -> float:
    return math.sqrt(share * (1 - share))


@pytest.mark.parametrize("name", PROPOSITIONS)
def test_every_finding_of_the_proposition_holds(name):
    proposition = examined(name)
    assert proposition.findings
    assert [
        f"{f.case}: {f.quantity}: {f.value} {f.relation} {f.expected}" for f in proposition.findings if not f.holds
    ] == []


def test_there_are_fourteen_propositions_and_files_may_name_each():
    assert tuple(PROPOSITIONS) == get_args(PropositionName)
    assert len(PROPOSITIONS) == 14


# 1
@pytest.mark.parametrize("size", range(2, 9))
def test_group_mean_and_leave_one_out_agree_with_their_factors_for_each_size(size):
    for row, factor in (("mean only", 1 - 1 / size), ("leave-one-out", 1.0)):
        case, quantity = f"{row}, G = {size};", f"largest |E update - {factor:.6g} gradient|"
        assert number("group-mean", case, quantity) < 1e-12


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_fixed_point_of_mean_only_is_the_tilt_shrunk_by_the_group(size):
    weights = [
        q * math.exp(r * (1 - 1 / size) / 0.4)
        for q, r in zip((0.1, 0.4, 0.3, 0.2), (0, 0.35, 0.7, 1), strict=True)
    ]
    law = found("group-mean", f"mean only with exact KL, beta = 0.4, G = {size}", "law reached")
    assert law == pytest.approx([w / sum(weights) for w in weights], abs=1e-9)


# 2
@pytest.mark.parametrize(
    ("size", "ninths", "cosine"),
    [(2, (-2, 0, 2), 0.9078), (3, (-2.4292, -0.3953, 2.8245), 0.9544), (4, (-2.4860, -0.7644, 3.2503), 0.9789)],
)
def test_the_counterexample_has_the_published_updates(size, ninths, cosine):
    assert found("counterexample", f"group-std, G = {size}", "9 x E update") == pytest.approx(ninths, abs=5.1e-5)
    values = [
        f.value[0]
        for f in examined("counterexample").findings
        if f.case == f"group-std, G = {size}" and "cosine" in f.quantity
    ]
    assert values == pytest.approx([cosine] * 2, abs=5.1e-5)


def test_the_counterexample_at_eight_agrees_with_plain_loops_over_ordered_groups():
    score = np.eye(3) - 1 / 3
    responses = [
        Response(r, [Token(math.log(1 / 3), math.log(1 / 3), 0.0, score[k])])
        for k, r in enumerate((0.0, 1.0, 10.0))
    ]
    mean = expectation([(1.0, responses)], 8, {})["expected_update"]
    gradient = np.array([-11, -8, 19]) / 9
    cosine = float(mean @ gradient / np.linalg.norm(mean) / np.linalg.norm(gradient))
    assert cosine == pytest.approx(0.9991, abs=5e-5)
    values = {f.value[0] for f in examined("counterexample").findings if f.case == "group-std, G = 8"}
    assert max(values) == pytest.approx(cosine, abs=1e-12)


# 3
def test_the_binary_factor_has_the_published_values_and_limit():
    assert number("binary-factor", "group-std, G = 8, p = 0.1", "c_8") == pytest.approx(2.3277, abs=5e-5)
    assert number("binary-factor", "group-std, G = 16, p = 0.3", "c_16") == pytest.approx(2.0925, abs=5e-5)
    assert number("binary-factor", "group-std, G = 2, p = 0.01", "largest |c_2") < 1e-12
    assert found("binary-factor", "p = 0.3", "grad mu / sigma") == pytest.approx(
        [math.sqrt(0.21), -math.sqrt(0.21)]
    )


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64])
def test_the_binary_factor_is_compared_over_the_whole_range_for_each_size(size):
    (case,) = [
        f
        for f in examined("binary-factor").findings
        if f.case == f"group-std, G = {size}, p = 0.01 to 0.99" and "c_G" in f.quantity
    ]
    assert case.value[0] < case.tolerance == 1e-12


def test_the_variants_of_the_binary_factor():
    base = binomial(8, 0.1, spread) / 0.09
    assert number("binary-factor", "divisor G - 1, p = 0.1, G = 8", "factor") == pytest.approx(
        base * math.sqrt(7 / 8)
    )
    outside = binomial(8, 0.1, lambda s: s * (1 - s) / (spread(s) + 0.1)) / 0.09
    assert number("binary-factor", "s + 0.1, p = 0.1, G = 8", "factor") == pytest.approx(outside)
    inside = binomial(8, 0.1, lambda s: s * (1 - s) / math.sqrt(s * (1 - s) + 0.1)) / 0.09
    assert number("binary-factor", "sqrt(s^2 + 0.1), p = 0.1, G = 8", "factor") == pytest.approx(inside)


# 4
def test_the_chance_of_a_mixed_group_has_the_published_values():
    chance = "chance of a mixed group"
    assert number("mixed-groups", "p = 0.01, G = 2", chance) == pytest.approx(0.0198, abs=5e-5)
    assert number("mixed-groups", "p = 0.01, G = 16", chance) == pytest.approx(0.1485, abs=5e-5)


def test_filtering_multiplies_by_the_inverse_acceptance_and_nothing_per_rollout():
    shares, successes, size = (0.5, 0.3, 0.2), (0.5, 0.05, 0.9), 4
    chances = [s * (1 - p**size - (1 - p) ** size) for s, p in zip(shares, successes, strict=True)]
    case = "three prompts, p = 0.5, 0.05, 0.9, G = 4"
    assert found("mixed-groups", case, "accepted law") == pytest.approx([c / sum(chances) for c in chances])
    ratio = number("mixed-groups", f"mean only, {case}", "|filtered update|")
    assert ratio == pytest.approx(1 / sum(chances))
    assert number("mixed-groups", f"group-std, {case}", "per response generated") < 1e-12


# 5
def test_the_population_limit_and_the_gradient_of_the_ratio_are_the_two_closed_forms():
    p, q = 1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(0.5))
    a, b = math.sqrt(p * (1 - p)), math.sqrt(q * (1 - q))
    assert found("population-limit", "two", "E_x[grad mu") == pytest.approx([(a + b) / 2, b / 2], abs=1e-12)
    c, d = math.sqrt(p / (1 - p)) / 2, math.sqrt(q / (1 - q)) / 2
    assert found("population-limit", "two", "grad E_x") == pytest.approx([(c + d) / 2, d / 2], abs=1e-12)
    assert (a + b) / b != pytest.approx((c + d) / d, rel=1e-2)


# 6
def test_four_reductions_as_worked_by_hand_for_a_tree_of_two_responses():
    """The loops of the proposition, on a case small enough for paper: p = 1/2, lengths 1 and 2."""
    from grpo_ablate.exact import parse
    from grpo_ablate.exact.propositions.length import by_loops

    policy = parse(
        {
            "prompts": [
                {
                    "responses": [
                        {"probability": 0.5, "reward": 1, "length": 1},
                        {"probability": 0.5, "reward": 0, "length": 2},
                    ]
                }
            ]
        }
    )
    # A mixed pair (chance 1/2): first weight x (1/2, -1/2) - second weight x (-1/2, 1/2).
    for reduction, weights in {
        "sequence-sum": 1.0,
        "constant": 1 / 3,
        "sequence-mean": 0.75,
        "token-mean": 2 / 3,
    }.items():
        mean, variance = by_loops(policy, reduction)
        assert mean.tolist() == pytest.approx([weights / 4, -weights / 4]), reduction
        assert variance == pytest.approx(2 * (weights / 2) ** 2 * 0.25), reduction


def test_the_same_reward_for_all_answers_still_moves_under_sequence_mean():
    moved = found("length", "reward 1 for every response, no baseline, sequence-mean", "E update")
    assert max(map(abs, moved)) > 0.05
    assert number("length", "reward 1 for every response, no baseline, sequence-sum", "|E update|") < 1e-12


@pytest.mark.parametrize("reduction", ["sequence-mean", "token-mean", "constant", "sequence-sum"])
def test_right_answers_are_pushed_up_and_wrong_ones_down(reduction):
    for name, sign in (("short-right", 1), ("long-right", 1), ("short-wrong", -1), ("long-wrong", -1)):
        assert sign * number("length", f"group-std, {reduction}, G = 4", f"d log P({name})") > 0


# 7
TWO_ACTIONS = {
    "exact, pathwise": -0.5493, "k1, pathwise": 0.0, "k2, pathwise": -0.5493, "k3, pathwise": -0.4000,
    "k1, ratio": -0.5493, "k2, ratio": -0.8299, "k3, ratio": -0.5493,
    "k1, score-function": -0.5493, "k2, score-function": -0.2806, "k3, score-function": -0.1493,
}  # fmt: skip


@pytest.mark.parametrize("kind", TWO_ACTIONS)
def test_two_actions_have_the_tabulated_kl_gradients(kind):
    assert number("kl", "pi = (.5, .5)", f"{kind}:") == pytest.approx(TWO_ACTIONS[kind], abs=5e-5)


def test_two_actions_have_the_tabulated_kl_values():
    z = [math.log(0.9 / 0.5), math.log(0.1 / 0.5)]
    values = {
        "E k1": -sum(z) / 2,
        "E k2": sum(x * x for x in z) / 4,
        "E k3": sum(math.exp(x) - x - 1 for x in z) / 2,
    }
    assert list(values.values()) == pytest.approx([0.5108, 0.7339, 0.5108], abs=5e-5)
    for quantity, value in values.items():
        assert number("kl", "pi = (.5, .5)", quantity) == pytest.approx(value, abs=1e-12)


# 8
def test_the_variance_minimising_baseline_leaves_no_variance_and_leave_one_out_adds_some():
    for p in (0.05, 0.3, 0.5, 0.8, 0.95):
        case = f"p = {p}, G = 2"
        assert number("variance", f"variance-minimising, {case}", "variance") < 1e-12
        assert number("variance", f"none, {case}", "variance") == pytest.approx(p * (1 - p) ** 3)
        # A pair is mixed with chance 2 p q, and then leave-one-out moves by (1, -1) / 2.
        mixed = 2 * p * (1 - p)
        assert number("variance", f"leave-one-out, {case}", "variance") == pytest.approx(mixed * (1 - mixed) / 2)


def test_the_threshold_of_leave_one_out_is_two_thirds_for_large_groups():
    thresholds = [(2 * size - 4) / (3 * size - 5) for size in (3, 8, 32, 10**6)]
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == pytest.approx(2 / 3, abs=1e-6)
    for size, p in zip((3, 8, 32), thresholds, strict=False):
        (f,) = [f for f in examined("variance").findings if f.case.startswith(f"G = {size}, p = (2G")]
        q = 1 - p
        assert f.value[0] == pytest.approx(2 * p * q**3 / size, abs=1e-12)


# 9
def test_bias_and_variance_per_rollout_at_two():
    successes = (0.02, 0.2, 0.5, 0.9)
    assert number("rollout-budget", "leave-one-out, G = 2", "bias") < 1e-12
    first = sum(2 * 0.25 * 2 * p * (1 - p) * 0.25 for p in successes)  # E |update|^2: (1, -1)/2 where mixed
    second = sum(2 * (0.25 * p * (1 - p)) ** 2 for p in successes)
    found_here = number("rollout-budget", "leave-one-out, G = 2", "variance per rollout")
    assert found_here == pytest.approx(2 * (first - second))
    gradient = math.sqrt(sum(2 * (0.25 * p * (1 - p)) ** 2 for p in successes))
    assert number("rollout-budget", "mean only, G = 2", "bias |E") == pytest.approx(gradient / 2)


def test_the_variance_of_leave_one_out_per_rollout_is_least_in_groups_of_three():
    """A group moves the logits of its prompt by phat (1 - phat) G / (G - 1) (1, -1): a binomial sum."""
    successes = (0.02, 0.2, 0.5, 0.9)

    def per_rollout(size):
        squares = sum(
            2 * 0.25 * binomial(size, p, lambda s: (s * (1 - s) * size / (size - 1)) ** 2) for p in successes
        )
        return size * (squares - sum(2 * (0.25 * p * (1 - p)) ** 2 for p in successes))

    values = {size: per_rollout(size) for size in (2, 3, 4, 8)}
    assert values[2] == pytest.approx(0.235654, abs=1e-6) and values[3] == pytest.approx(0.223581, abs=1e-6)
    assert values[3] < values[2] < values[4] < values[8]
    for size, value in values.items():
        case = f"leave-one-out, G = {size}"
        assert number("rollout-budget", case, "variance per rollout, G x") == pytest.approx(value)
    finding = next(f for f in examined("rollout-budget").findings if f.case.endswith("G = 3 beside G = 2"))
    assert finding.relation == "falls-below"


# 10
def test_reward_units_cancel_under_group_std_only():
    assert number("kl-optimum", "group-std, 10 r + 3, two random prompts, G = 4", "largest change") < 1e-12
    assert number("kl-optimum", "mean only, 10 r + 3, two random prompts, G = 4", "largest change") > 0.1


# 11
def test_process_supervision_gives_the_worked_weights():
    values = [f.value for f in examined("process").findings if f.quantity == "advantages of response 1"]
    for value in values:
        assert list(value) == pytest.approx([-0.7071, -0.7071, -1.4142, -1.4142], abs=5e-5)
    values = [f.value for f in examined("process").findings if f.quantity == "advantages of response 2"]
    for value in values:
        assert list(value) == pytest.approx([0.7071] * 3, abs=5e-5)


# 12
def test_slopes_of_the_surrogates_beyond_their_bounds():
    ratios = [0.05, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 1.45, 1.55, 2.9, 3.1, 4.9, 5.1]
    up = dict(zip(ratios, found("clip", "clip .2/.28, A = +1", "slope"), strict=True))
    assert (up[1.27], up[1.29]) == (pytest.approx(1.27), 0.0)
    down = dict(zip(ratios, found("clip", "dual clip, c = 3, A = -1", "slope"), strict=True))
    assert (down[0.79], down[0.81], down[2.9], down[3.1]) == (0.0, pytest.approx(-0.81), pytest.approx(-2.9), 0.0)
    weights = dict(zip(ratios, found("clip", "cispo, at most 5, A = +1", "slope"), strict=True))
    assert (weights[4.9], weights[5.1]) == (pytest.approx(4.9), pytest.approx(5.0))


def test_the_upper_plateau_is_out_of_reach_where_1_2_p_exceeds_1():
    assert found("clip", "~p = 0.8 moved", "E update") == [0.0, 0.0]
    right = found("clip", "~p = 0.9 moved to 0.999", "E update of the right")[0]
    assert right == pytest.approx(0.9 * 0.1 * (0.999 / 0.9) * 0.001, rel=1e-9)


def test_a_clipped_row_with_one_step_per_round_is_its_twin_to_the_bit():
    assert number("clip", "clip .2/.2, three random", "largest") == 0.0
    assert number("clip", "clip .2/.28, three random", "largest") == 0.0


# 13
def test_iterated_updates_reach_the_target_when_a_scalar_recursion_does():
    for name, size, force in (
        ("group-std", 8, lambda p: binomial(8, p, spread)),
        ("leave-one-out", 8, lambda p: p * (1 - p)),
        ("mean only", 2, lambda p: p * (1 - p) / 2),
    ):
        p, updates = 0.01, 0
        while p < 0.9:
            logit = math.log(p / (1 - p)) + 2 * force(p)
            p, updates = 1 / (1 + math.exp(-logit)), updates + 1
        case = f"{name}, G = {size}, from p = 0.01, learning rate 1"
        assert number("dynamics", case, "updates to p") == updates


@pytest.mark.parametrize(
    ("name", "start", "rollouts"),
    [
        ("group-std", 0.01, 296),
        ("group-std", 0.1, 176),
        ("group-std", 0.5, 448),
        ("mean only", 0.01, 608),
        ("mean only", 0.1, 192),
        ("mean only", 0.5, 608),
    ],
)
def test_with_a_kl_larger_groups_overtake_per_rollout_when_a_scalar_recursion_says(name, start, rollouts):
    force = {
        "group-std": lambda p, size: binomial(size, p, spread),
        "mean only": lambda p, size: (1 - 1 / size) * p * (1 - p),
    }[name]
    gained, crossing = {2: 0.0, 8: 0.0}, None
    for step in range(1, 501):
        for size in (2, 8):
            if 2 * step % size == 0:
                p = 1 / (1 + math.exp(-gained[size]) * (1 - start) / start)
                gained[size] += 2 * (force(p, size) - 0.1 * p * (1 - p) * gained[size])
        if 2 * step % 8 == 0 and crossing is None and gained[8] > gained[2]:
            crossing = 2 * step
    assert crossing == rollouts
    case = f"{name}, G = 8 beside G = 2, from exact KL with beta = 0.1, p = pi_ref = {start},"
    assert number("dynamics", case, "G = 8 overtakes") == rollouts


def test_without_a_kl_and_under_leave_one_out_pairs_stay_ahead_per_rollout():
    for start in (0.01, 0.1, 0.5):
        for name in ("group-std", "leave-one-out", "mean only"):
            case = f"{name}, G = 8 beside G = 2, from no KL, p = {start},"
            assert number("dynamics", case, "largest lead of G = 8") < 0
        case = f"leave-one-out, G = 8 beside G = 2, from exact KL with beta = 0.1, p = pi_ref = {start},"
        assert number("dynamics", case, "largest lead of G = 8") < 0


# 14
def test_a_pair_moves_by_half_whatever_the_gap_and_dpo_by_its_margin():
    for gap in ("0.001", "1", "10"):
        # p = 0.1: the scores are (.9, -.9) and (-.1, .1), their difference (1, -1)
        assert found("pairs", f"group-std, G = 2, p = 0.1, reward gap {gap}", "update") == pytest.approx(
            [0.5, -0.5]
        )
    dpo = found("pairs", "DPO, p = 0.9", "gradient")
    weight = 0.5 / (1 + math.exp(0.5 * math.log(9)))
    assert dpo == pytest.approx([weight, -weight])
    for p in (0.1, 0.5, 0.9):
        assert number("pairs", f"group-std, G = 2, binary rewards, p = {p}", "E[A | success]") == pytest.approx(
            1 - p
        )
        assert number("pairs", f"group-std, G = 2, binary rewards, p = {p}", "E[A | failure]") == pytest.approx(-p)


# The records themselves
def test_a_finding_fails_where_its_relation_does_not_hold():
    assert kinds.equals("c", "q", 1.0, 1.0 + 1e-13, "s").holds
    assert not kinds.equals("c", "q", [1.0, 2.0], [1.0, 2.1], "s").holds
    assert kinds.exceeds("c", "q", 2.0, 1.0, "s", by=0.5).holds
    assert not kinds.exceeds("c", "q", 1.4, 1.0, "s", by=0.5).holds
    assert not kinds.falls_below("c", "q", 2.0, 1.0, "s").holds
    assert kinds.differs("c", "q", [1.0, 2.0], [1.0, 2.1], "s").holds
    assert not kinds.differs("c", "q", 1.0, 1.0, "s").holds
    for make in (kinds.equals, kinds.exceeds, kinds.falls_below, kinds.differs):
        assert not make("c", "q", math.nan, 1.0, "s").holds


def test_a_library_that_is_wrong_by_a_millionth_fails(monkeypatch):
    from grpo_ablate.exact.propositions import group_mean

    right = group_mean.expected_update

    def wrong(*arguments, **more):
        update = right(*arguments, **more)
        return replace(update, expected_update=update.expected_update * (1 + 1e-6))

    monkeypatch.setattr(group_mean, "expected_update", wrong)
    held = [f.holds for f in group_mean.findings() if f.quantity.startswith("largest")]
    assert held and not any(held)


def test_the_table_has_a_line_per_finding_with_every_digit_and_a_verdict():
    wrong = Finding("case", "quantity", (0.1, 2.0), (0.1, 2.5), "equals", 1e-12, "hand")
    right = Finding("case", "quantity", (1 / 3,), (1 / 3,), "equals", 1e-12, "hand")
    proposition = Proposition("group-mean", "Title", "Statement.", (wrong, right))
    lines = list(csv.DictReader(io.StringIO(as_csv([proposition]))))
    assert list(lines[0]) == list(COLUMNS)
    assert [line["verdict"] for line in lines] == ["fails", "holds"] == [verdict(wrong), verdict(right)]
    assert lines[0]["value"] == "0.1 2.0"
    assert float(lines[0]["difference"]) == 0.5
    assert float(lines[1]["value"]) == 1 / 3


def test_the_printed_table_has_a_line_per_proposition_and_one_per_failure():
    wrong = Finding("case", "quantity", (0.1, -2.0), (0.1, 2.5), "equals", 1e-12, "hand")
    right = Finding("case", "quantity", (0.5,), (0.5 + 2e-13,), "equals", 1e-12, "hand")
    larger = Finding("case", "quantity", (2.0,), (1.0,), "exceeds", 0.5, "hand")
    whole, broken = (Proposition("kl", "Title", "", f) for f in ((right, larger), (right, wrong)))
    table = as_table([whole, broken])
    assert table.rows[0] == ("Title", "1", "1", "2.0e−13", "holds")  # noqa: RUF001, the minus sign is meant
    assert table.rows[1] == ("Title", "2", "0", "4.5e+00", "1 fails")
    assert table.rows[2][0] == "case: quantity: (0.1, −2) = (0.1, 2.5)"  # noqa: RUF001
    assert len(table.rows) == 3
