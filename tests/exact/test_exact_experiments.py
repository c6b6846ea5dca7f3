"""Exact experiments: what a file may say, what its table holds, and that both are as stated."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from ordered_groups import Response, Token, expectation

from grpo_ablate.errors import UserError
from grpo_ablate.exact.columns import QUANTITIES
from grpo_ablate.exact.points import points
from grpo_ablate.exact.propositions.cases import SHORT_AND_LONG
from grpo_ablate.exact.tabulate import as_csv, lines, write_table
from grpo_ablate.spec.exact_files import (
    OF_A_TOKEN_QUANTITIES,
    PropositionName,
    Quantity,
    Span,
    load_exact_experiment,
    load_exact_experiments,
)
from grpo_ablate.spec.resolve import load_experiments

FOLDER = Path(__file__).parents[2] / "experiments"
COIN = {
    "prompts": [
        {
            "responses": [
                {"name": "right", "probability": 0.5, "reward": 1},
                {"name": "wrong", "probability": 0.5, "reward": 0},
            ]
        }
    ]
}
FILE: dict[str, Any] = {
    "question": "Why?",
    "exact": "All of it.",
    "assumed": "Nothing.",
    "policy": COIN,
    "rows": {"group-std": {}},
    "vary": {"sampling.group_size": [2, 8], "success": [0.1, 0.3]},
    "quantities": ["norm_ratio", "p_mixed"],
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "exact-case.yaml"
    path.write_text(yaml.safe_dump(FILE | changes, sort_keys=False))
    return path


def table(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    return lines(load_exact_experiment(written(folder, **changes)))


def test_the_names_in_the_files_are_those_of_the_functions():
    assert set(get_args(Quantity)) == {*QUANTITIES, *OF_A_TOKEN_QUANTITIES}


def test_every_exact_experiment_of_the_project_is_read_and_its_first_points_enumerated():
    experiments = load_exact_experiments(FOLDER)
    assert len(experiments) >= 4
    for experiment in experiments:
        assert experiment.question.endswith("?")
        assert experiment.exact and experiment.assumed
        if experiment.policy is not None:
            assert next(points(experiment)).row == experiment.rows[0]
    covered = {name for experiment in experiments for name in experiment.propositions}
    # These state an identity or a pair of vectors, with nothing to vary.
    assert set(get_args(PropositionName)) - covered <= {"population-limit", "kl-optimum", "process"}


def test_experiments_that_train_are_read_without_the_exact_ones(tmp_path):
    assert not any(e.name.startswith("exact-") for e in load_experiments(FOLDER))


def test_the_tree_of_the_length_experiment_is_that_of_its_proposition():
    document = json.loads((FOLDER / "policies" / "short-and-long.json").read_text())
    assert document["prompts"][0]["tree"] == SHORT_AND_LONG


def test_a_line_per_row_and_combination_the_last_key_fastest(tmp_path):
    found = table(tmp_path, rows={"a": {}, "b": {"advantage": {"scale": "none"}}})
    keys = [(line["row"], line["sampling.group_size"], line["success"]) for line in found]
    assert keys == [(r, g, p) for r in "ab" for g in (2, 8) for p in (0.1, 0.3)]


def test_the_factor_in_the_table_is_the_binomial_sum(tmp_path):
    for line in table(tmp_path):
        size, p = line["sampling.group_size"], line["success"]
        spread = sum(
            math.comb(size, c) * p**c * (1 - p) ** (size - c) * math.sqrt(c / size * (1 - c / size))
            for c in range(size + 1)
        )
        assert line["norm_ratio"] == pytest.approx(spread / (p * (1 - p)), rel=1e-12)
        assert line["p_mixed"] == pytest.approx(1 - p**size - (1 - p) ** size, rel=1e-12)


def test_variances_biases_and_gains_agree_with_plain_loops(tmp_path):
    quantities = [
        "variance",
        "variance_per_rollout",
        "noise_per_rollout",
        "bias",
        "gain",
        "gain_per_rollout",
        "accepted",
    ]
    rows = {"every": {}, "mixed": {"sampling": {"dynamic": "drop"}}}
    for line in table(
        tmp_path, quantities=quantities, rows=rows, vary={"sampling.group_size": [3], "success": [0.2]}
    ):
        responses = []
        for reward, p, score in ((1.0, 0.2, [0.8, -0.8]), (0.0, 0.8, [-0.2, 0.2])):
            responses.append(
                Response(reward, [Token(math.log(p), math.log(p), 0.0, torch.tensor(score).double().numpy())])
            )
        wanted = expectation([(1.0, responses)], 3, {"dynamic": line["row"] == "mixed"})
        mean, gradient, accepted = wanted["expected_update"], wanted["gradient"], wanted["accepted"]
        assert line["accepted"] == pytest.approx(accepted)
        assert line["variance"] == pytest.approx(wanted["variance"])
        assert line["variance_per_rollout"] == pytest.approx(3 * wanted["variance"])
        assert line["noise_per_rollout"] == pytest.approx(3 * wanted["variance"] / float(mean @ mean))
        assert line["bias"] == pytest.approx(float(((mean - gradient) ** 2).sum()) ** 0.5)
        assert line["gain"] == pytest.approx(float(mean @ gradient))
        assert line["gain_per_rollout"] == pytest.approx(float(mean @ gradient) * accepted / 3)


def test_a_constant_may_follow_the_policy(tmp_path):
    row = {"advantage": {"baseline": "constant", "scale": "none"}}
    rows = {"mean": row | {"constant_at": "expected-reward"}, "best": row | {"constant_at": "variance-minimising"}}
    found = table(tmp_path, rows=rows, quantities=["baseline", "variance"])
    for line in found:
        p = line["success"]
        assert line["baseline"] == pytest.approx(p if line["row"] == "mean" else 1 - p)
        assert line["row"] == "mean" or line["variance"] == pytest.approx(0, abs=1e-15)


def test_iterated_lines_follow_the_logit_and_charge_every_rollout(tmp_path):
    found = table(
        tmp_path, kind="iterate", iterate={"learning_rate": 0.5, "steps": 10, "every": 5, "reference": "start"},
        rows={"leave-one-out": {"advantage": {"baseline": "leave-one-out", "scale": "none"},
                                "kl": {"beta": 0.1, "estimator": "exact"}}},
        vary={"sampling.group_size": [4], "success": [0.1]}, quantities=["expected_reward", "kl"],
    )  # fmt: skip
    assert [(line["updates"], line["rollouts"]) for line in found] == [(0, 0), (5, 20), (10, 40)]
    start = z = math.log(1 / 9)
    for _ in range(10):
        p = 1 / (1 + math.exp(-z))
        z += 2 * 0.5 * p * (1 - p) * (1 - 0.1 * (z - start))
    p = 1 / (1 + math.exp(-z))
    assert found[-1]["expected_reward"] == pytest.approx(p, abs=1e-13)
    assert found[-1]["kl"] == pytest.approx(p * math.log(p / 0.1) + (1 - p) * math.log((1 - p) / 0.9), abs=1e-13)
    assert found[0]["kl"] == pytest.approx(0, abs=1e-15)


def test_iterated_filtering_charges_rejected_groups(tmp_path):
    found = table(
        tmp_path, kind="iterate", iterate={"learning_rate": 1e-9, "steps": 1},
        rows={"mixed": {"sampling": {"dynamic": "drop"}}}, vary={"sampling.group_size": [2], "success": [0.1]},
        quantities=["expected_reward"],
    )  # fmt: skip
    assert found[1]["rollouts"] == pytest.approx(2 / 0.18)


def test_a_token_table_holds_the_slopes_of_the_surrogate(tmp_path):
    found = table(
        tmp_path, kind="token", policy=None, rows={"clip": {"update": {"clip_high": 0.28}}},
        vary={"advantage": [1, -1], "ratio": [0.7, 1.25, 1.3]}, quantities=["slope", "objective"],
    )  # fmt: skip
    assert [line["slope"] for line in found] == pytest.approx([0.7, 1.25, 0, 0, -1.25, -1.3])
    assert [line["objective"] for line in found] == pytest.approx([0.7, 1.25, 1.28, -0.8, -1.25, -1.3])


def test_kl_columns_agree_with_two_actions_by_hand(tmp_path):
    policy = {
        "prompts": [
            {
                "responses": [
                    {"probability": 0.5, "reward": 0, "reference": 0.9},
                    {"probability": 0.5, "reward": 0, "reference": 0.1},
                ]
            }
        ]
    }
    rows = {
        "k2": {"kl": {"beta": 2, "estimator": "k2"}},
        "k3": {"kl": {"beta": 2}},
        "k1": {"kl": {"beta": 2, "estimator": "k1"}},
    }
    found = table(tmp_path, policy=policy, rows=rows, vary={"sampling.group_size": [2]},
                  quantities=["kl", "kl_estimate", "kl_agreement"])  # fmt: skip
    exact = [line["kl"] for line in found]
    assert exact == pytest.approx([0.5108] * 3, abs=5e-5)
    k2, k3, k1 = found
    assert (k2["kl_estimate/k1"], k2["kl_estimate/k2"]) == pytest.approx((0.5108, 0.7339), abs=5e-5)
    assert (k2["kl_cosine"], k2["kl_error"]) == pytest.approx((1, 0), abs=1e-12)
    assert k3["kl_norm_ratio"] == pytest.approx(0.4 / (math.log(9) / 4), abs=1e-12)
    assert math.isnan(k1["kl_cosine"])  # the zero vector has no direction, whatever rounding leaves of it


def test_a_step_moves_the_gradient_and_a_distance_the_draws(tmp_path):
    def ratios(key: str) -> dict[str, Any]:
        (line,) = table(tmp_path, direction=[1, 0], vary={"sampling.group_size": [2], key: [1.0]},
                        quantities=["ratios", "expected_reward"])  # fmt: skip
        return line

    moved = math.e / (math.e + 1)
    step, distance = ratios("step"), ratios("distance")
    assert step["ratios/right"] == pytest.approx(moved / 0.5)
    assert step["expected_reward"] == pytest.approx(0.5)
    assert distance["ratios/right"] == 1.0
    assert distance["expected_reward"] == pytest.approx(moved)


def test_classes_are_pushed_as_their_probabilities_change(tmp_path):
    rows = {"mean": {"update": {"reduction": "token-mean"}}}
    (line,) = table(tmp_path, policy={"prompts": [{"tree": SHORT_AND_LONG}]}, rows=rows,
                    vary={"sampling.group_size": [2]}, quantities=["push_classes", "update"])  # fmt: skip
    from grpo_ablate.exact import parse, response_laws

    policy = parse({"prompts": [{"tree": SHORT_AND_LONG}]})
    direction = torch.tensor([value for name, value in line.items() if name.startswith("update/")])
    prompt = policy.prompts[0]
    words = [name.split() for name in prompt.names]

    def log_probability(step: float, short: bool, right: bool) -> float:
        law = response_laws(policy.at(policy.parameters + step * direction.double()))[0]
        member = [
            (len(w) <= 2) == short and bool(r > 0) == right for w, r in zip(words, prompt.reward, strict=True)
        ]
        return math.log(float(law[torch.tensor(member)].sum()))

    for size in ("short", "long"):
        for answer in ("right", "wrong"):
            chosen = (size == "short", answer == "right")
            slope = (log_probability(1e-5, *chosen) - log_probability(-1e-5, *chosen)) / 2e-5
            assert line[f"push_classes/{size}-{answer}"] == pytest.approx(slope, abs=1e-9)


def test_a_pair_is_weighted_by_a_half_and_dpo_by_its_margin(tmp_path):
    policy = {
        "prompts": [
            {
                "responses": [
                    {"probability": 0.5, "reward": 5, "reference": 0.5},
                    {"probability": 0.5, "reward": 0, "reference": 0.5},
                ]
            }
        ]
    }
    for line in table(
        tmp_path, policy=policy, vary={"sampling.group_size": [2], "success": [0.2, 0.8]}, quantities=["pair"]
    ):
        p = line["success"]
        assert line["pair_weight"] == pytest.approx(0.5)
        assert line["margin"] == pytest.approx(math.log(p / (1 - p)))
        assert line["dpo_weight/1"] == pytest.approx(1 - p)  # sigmoid(-margin)


def test_spans_are_even_and_printed_as_written():
    values = Span(start=0.01, stop=0.99, count=99).values()
    assert values == [i / 100 for i in range(1, 100)]
    assert Span(start=0.01, stop=1, count=3, spacing="log").values() == [0.01, 0.1, 1.0]


def test_the_csv_has_every_digit_no_nan_and_equal_bytes(tmp_path):
    experiment = load_exact_experiment(written(tmp_path, quantities=["cosine", "norm_ratio"]))
    first = write_table(experiment, tmp_path).read_bytes()
    assert first == write_table(experiment, tmp_path).read_bytes()
    parsed = list(csv.DictReader(io.StringIO(first.decode())))
    assert [float(line["norm_ratio"]) for line in parsed] == [line["norm_ratio"] for line in lines(experiment)]
    assert as_csv([{"a": 1.0}, {"a": math.nan, "b": -0.0}]) == "a,b\n1.0,\n,0.0\n"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"quantites": ["cosine"]}, "unknown key 'quantites'; did you mean 'quantities'?"),
    "an unknown switch": ({"rows": {"a": {"advantage": {"scal": "none"}}}}, "did you mean 'scale'?"),
    "an unknown quantity": ({"quantities": ["cosin"]}, "quantities"),
    "no rows": ({"rows": {}}, "rows"),
    "an unknown range": ({"vary": {"sucess": [0.1]}}, "vary: no 'sucess'; did you mean 'success'?"),
    "a bare switch": ({"vary": {"group_size": [2]}}, "did you mean 'sampling.group_size'?"),
    "an unknown varied switch": ({"vary": {"advantage.epz": [0]}}, "did you mean 'eps'?"),
    "a bad varied value": ({"vary": {"advantage.eps": [0, -1]}}, "advantage.eps is -1"),
    "no group": ({"vary": {"sampling.group_size": [1]}}, "use a group_size of at least 2"),
    "an impossible probability": ({"vary": {"success": [1.0]}}, "expected a probability between 0 and 1"),
    "a word for a number": ({"vary": {"success": ["high"]}}, "success is 'high'"),
    "set and varied": (
        {"rows": {"a": {"sampling": {"group_size": 4}}}}, "sampling.group_size is set here and varied",
    ),
    "a token with a policy": ({"kind": "token"}, "does not go with kind token"),
    "iterating without a plan": ({"kind": "iterate"}, "the section iterate go together"),
    "a distance without direction": ({"vary": {"distance": [1]}}, "a direction go together"),
    "a policy that is not there": ({"policy": "policies/none.json"}, "cannot be read"),
    "not a number": ({"vary": {"success": [math.nan]}}, "nan is among the values"),
    "too many points": (
        {"vary": {"success": {"start": 0.1, "stop": 0.9, "count": 20000}, "sampling.group_size": [2, 4]}},
        "40,000 points",
    ),
    "one value": ({"vary": {"success": 0.5}}, "vary.success is 0.5, expected a list or a mapping"),
    "no values": ({"vary": {"success": []}}, "expected at least one value"),
    "half a span": ({"vary": {"success": {"start": 0.1, "stop": 0.2}}}, "the key 'count' is missing"),
    "a truth for a number": ({"vary": {"success": [True]}}, "True is among the values"),
    "an empty figure": ({"figures": [{}]}, "figures"),
    "log of zero": ({"vary": {"advantage.eps": {"start": 0, "stop": 1, "count": 3, "spacing": "log"}}}, "above 0"),
    "a constant that is none": ({"rows": {"a": {"constant_at": "expected-reward"}}}, "baseline constant"),
    "an unknown preset": ({"rows": {"a": {"preset": "documnts"}}}, "did you mean 'documents'?"),
    "a value twice": ({"vary": {"sampling.group_size": [2, 2]}}, "sampling.group_size: 2 is there twice"),
    "a value beyond numbers": ({"vary": {"sampling.group_size": [10**400]}}, "a whole number beyond 1e300"),
    "a size in the policy": (
        {"policy": {"group_size": 4, "prompts": [{"responses": [{"logit": 0, "reward": 1}]}]}},
        "group_size is no part of an experiment's policy",
    ),
    "an unknown figure": ({"figures": ["factr"]}, "figures: no kind 'factr'; did you mean 'factor'?"),
    "an unknown proposition": ({"propositions": ["clips"]}, "propositions"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path, name):
    changes, expected = REFUSED[name]
    with pytest.raises(UserError) as caught:
        load_exact_experiment(written(tmp_path, **changes))
    sentence = str(caught.value)
    assert "exact-case.yaml" in sentence
    assert expected in sentence
    assert "\n" not in sentence


LATE: dict[str, tuple[dict[str, Any], str]] = {
    "success of three": (
        {"policy": {"prompts": [{"responses": [{"logit": 0, "reward": r} for r in (0, 1, 2)]}]}},
        "two responses",
    ),
    "a short direction": ({"direction": [1], "vary": {"step": [1]}}, "direction has 1 numbers, the policy 2"),
    "a policy without rewards": (
        {"policy": {"prompts": [{"responses": [{"logit": 0}]}]}},
        "'reward' is not there",
    ),
    "a KL without reference": ({"quantities": ["kl"]}, "the KL needs a reference"),
    "a pair of nothing": ({"quantities": ["pair"]}, "two responses and a reference"),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_a_policy_that_does_not_fit_is_one_sentence(tmp_path, name):
    changes, expected = LATE[name]
    with pytest.raises(UserError, match=expected):
        table(tmp_path, **changes)
