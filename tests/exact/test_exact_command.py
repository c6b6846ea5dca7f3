"""Policy files and the `exact` command: forms, refusals, precedence of the group size, the answer's keys."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.exact import expected_update, load, monte_carlo, parse
from grpo_ablate.spec.resolve import switches

GOOD = {
    "group_size": 2,
    "prompts": [
        {
            "probability": 1,
            "responses": [
                {"logit": 0, "reward": 0, "length": 2},
                {"logit": 0.5, "reward": 1},
                {"logit": 0, "reward": 10},
            ],
        }
    ],
}
TREE = {
    "prompts": [
        {"tree": {"vocabulary": ["a", "end"], "horizon": 2, "rewards": {"end": 0, "a a": 1, "a end": 2}}},
    ]
}


def command(tmp_path, capsys, document, *arguments: str) -> tuple[int, str, str]:
    path = tmp_path / "policy.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["exact", str(path), *arguments])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def test_the_answer_has_the_documented_keys_and_agrees_with_the_library(tmp_path, capsys):
    code, out, _ = command(tmp_path, capsys, GOOD, "--json", "--set", "advantage.scale=none")
    assert code == 0
    answer = json.loads(out)
    found = expected_update(parse(GOOD), switches(None, None, ["advantage.scale=none", "sampling.group_size=2"]))
    assert answer["gradient"] == found.gradient.tolist()
    assert answer["expected_update"] == found.expected_update.tolist()
    for key in ("cosine", "norm_ratio", "variance", "p_mixed"):
        assert answer[key] == getattr(found, key)
    assert "standard_error" not in answer


def test_an_explicit_group_size_wins_over_the_files(tmp_path, capsys):
    sizes = []
    for arguments in ([], ["--set", "sampling.group_size=3"]):
        sizes.append(json.loads(command(tmp_path, capsys, GOOD, "--json", *arguments)[1])["group_size"])
    without = {key: value for key, value in GOOD.items() if key != "group_size"}
    sizes.append(json.loads(command(tmp_path, capsys, without, "--json")[1])["group_size"])
    assert sizes == [2, 3, 8]


def test_the_text_names_parameters_responses_and_numbers_within_100_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(tmp_path, capsys, GOOD, "--set", "update.reduction=constant", "--set", "kl.beta=0")
    assert code == 0
    for word in ("multisets enumerated", "expected update", "cosine", "norm ratio", "variance", "mixed", "push"):
        assert word in out
    assert "sampling.max_tokens is 1, but a response has 2 tokens" in out
    assert all(len(line) <= 100 for line in out.splitlines()[1:])


def test_a_zero_gradient_has_no_cosine(tmp_path, capsys):
    same = {"prompts": [{"responses": [{"logit": 0, "reward": 1}, {"logit": 1, "reward": 1}]}]}
    answer = json.loads(command(tmp_path, capsys, same, "--json")[1])
    assert answer["cosine"] is None
    assert answer["norm_ratio"] is None
    assert answer["p_mixed"] == 0


def test_monte_carlo_says_so_and_has_standard_errors(tmp_path, capsys):
    _, out, _ = command(tmp_path, capsys, GOOD, "--json", "--monte-carlo", "500", "--seed", "3")
    answer = json.loads(out)
    expected = monte_carlo(parse(GOOD), switches(None, None, ["sampling.group_size=2"]), 500, seed=3)
    assert answer["expected_update"] == expected.expected_update.tolist()
    assert len(answer["standard_error"]) == 3
    assert answer["groups"] == 500
    assert "Monte Carlo" in command(tmp_path, capsys, GOOD, "--monte-carlo", "500")[1]


def test_too_many_multisets_are_refused_with_their_number_and_estimated_when_asked(tmp_path, capsys):
    many = {"group_size": 16, "prompts": [{"responses": [{"logit": 0, "reward": k} for k in range(12)]}]}
    code, out, err = command(tmp_path, capsys, many)
    assert code == 2
    assert out == ""
    for part in ("groups of 16 out of 12", "13,037,895 multisets", "2,000,000", "--monte-carlo"):
        assert part in err
    assert command(tmp_path, capsys, many, "--monte-carlo", "100")[0] == 0


def test_numbers_beyond_double_precision_are_refused_not_printed(tmp_path, capsys):
    huge = changed(GOOD, (*RESPONSE, "reward"), 1e300)
    code, _, err = command(tmp_path, capsys, huge, "--json", "--set", "advantage.scale=none")
    assert code == 2
    assert "double precision" in err


def test_a_response_whose_probability_underflows_changes_nothing(tmp_path, capsys):
    two = {"group_size": 3, "prompts": [{"responses": [{"logit": 0, "reward": 0}, {"logit": 1, "reward": 1}]}]}
    three = copy.deepcopy(two)
    three["prompts"][0]["responses"].insert(0, {"logit": -2000, "reward": 5})
    answers = [json.loads(command(tmp_path, capsys, document, "--json")[1]) for document in (two, three)]
    assert answers[1]["expected_update"] == [0, *answers[0]["expected_update"]]
    assert answers[1]["p_mixed"] == pytest.approx(answers[0]["p_mixed"], abs=1e-14)


def test_a_group_too_large_for_its_table_is_refused(tmp_path, capsys):
    code, _, err = command(tmp_path, capsys, GOOD | {"group_size": 100_000})
    assert code == 2
    assert "multisets" in err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["advantage.baseline=batch"], ["advantage.baseline batch", "one group"]),
        (["advantage.scale=batch-std"], ["advantage.scale batch-std", "one group"]),
        (["advantage.baseline=ema"], ["advantage.baseline ema", "constant"]),
        (["reward.transform=noise"], ["reward.transform noise", "--monte-carlo"]),
        (["reward.transform=random"], ["reward.transform random", "--monte-carlo"]),
        (["reward.transform=per-prompt-affine"], ["per-prompt-affine", "--monte-carlo"]),
        (["kl.beta=0.1"], ["prompt 0", "kl.beta", "'reference'"]),
        (["advantage.supervision=process"], ["prompt 0", "process", "'steps'"]),
        (["sampling.group_size=1"], ["sampling.group_size is 1"]),
        (["update.surrogate=sequence", "update.reduction=token-mean"], ["update.force"]),
    ],
)
def test_switches_without_an_exact_value_are_refused_in_a_sentence(tmp_path, capsys, settings, words):
    code, _, err = command(tmp_path, capsys, GOOD, *(a for s in settings for a in ("--set", s)))
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


def changed(document, path, value):
    """The document with one value replaced, or removed where it is None."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


RESPONSE = ("prompts", 0, "responses", 1)
IN_TREE = ("prompts", 0, "tree")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], ["expected an object", "a list"]),
        ({"prompts": []}, ["'prompts'", "an empty list"]),
        (changed(GOOD, ("groupsize",), 2), ["unknown key 'groupsize'", "'group_size'"]),
        (changed(GOOD, ("group_size",), 0), ["'group_size'", "whole number"]),
        (changed(GOOD, ("group_size",), True), ["'group_size'", "true"]),
        (changed(GOOD, (*RESPONSE, "reward"), "x"), ["prompt 0: response 1", "'reward'", "'x'"]),
        (changed(GOOD, (*RESPONSE, "reward"), None), ["response 1", "'reward' is not there"]),
        (changed(GOOD, (*RESPONSE, "rewrad"), 1), ["unknown key 'rewrad'", "'reward'"]),
        (changed(GOOD, (*RESPONSE, "probability"), 0.5), ["response 1", "both"]),
        (changed(GOOD, (*RESPONSE, "logit"), None), ["response 1", "neither 'logit' nor 'probability'"]),
        (changed(GOOD, (*RESPONSE, "logit"), 10**400), ["response 1", "'logit'", "finite"]),
        (changed(GOOD, (*RESPONSE, "length"), 1.5), ["response 1", "'length'", "1.5"]),
        (changed(GOOD, (*RESPONSE, "length"), 0), ["response 1", "'length'"]),
        (changed(GOOD, (*RESPONSE, "reference"), 0.5), ["response 0", "'reference'", "response 1 has one"]),
        (changed(GOOD, (*RESPONSE, "truncated"), 1), ["response 1", "'truncated'", "true or false"]),
        (changed(GOOD, ("prompts", 0, "probability"), 0.5), ["'probability'", "sum to 0.5", "expected 1"]),
        (changed(GOOD, ("prompts", 0, "responses"), None), ["prompt 0", "'responses' or a 'tree'"]),
        (changed(GOOD, ("prompts", 0, "responses"), [1]), ["prompt 0: response 0", "expected an object"]),
        (changed(GOOD, ("weights",), [1]), ["'weights'", "no response has 'features'"]),
        (changed(GOOD, ("features",), [[1], [2]]), ["'features'", "2 vectors", "3 in all"]),
        (changed(GOOD, ("features",), [[1], [2], [3]]), ["response 0", "'logit'", "features . weights"]),
        (
            {"prompts": [{"responses": [{"probability": 0.5, "reward": 1}, {"probability": 0.4, "reward": 0}]}]},
            ["prompt 0", "sum to 0.9"],
        ),
        (
            {"prompts": [{"responses": [{"probability": 1, "reward": 1}, {"probability": 0, "reward": 0}]}]},
            ["response 1", "above 0"],
        ),
        (
            {"prompts": [{"responses": [{"features": [1], "reward": 1}, {"features": [1, 2], "reward": 0}]}]},
            ["response 1", "2 numbers, expected 1"],
        ),
        (changed(TREE, (*IN_TREE, "end"), "eos"), ["tree", "'eos'", "vocabulary"]),
        (changed(TREE, (*IN_TREE, "horizon"), 100), ["'horizon'", "from 1 to 64"]),
        (
            changed(changed(TREE, (*IN_TREE, "horizon"), 30), (*IN_TREE, "vocabulary"), ["a", "b", "end"]),
            ["3 tokens and horizon 30", "2,147,483,647 responses", "100,000"],
        ),
        (changed(TREE, (*IN_TREE, "rewards", "a end"), None), ["'a end' is not there"]),
        (changed(TREE, (*IN_TREE, "rewards", "a ned"), 1), ["'a ned'", "'a end'"]),
        (changed(TREE, (*IN_TREE, "logits"), {"b": [0, 0]}), ["logits", "prefix 'b'"]),
        (changed(TREE, (*IN_TREE, "logits"), {"a": [0]}), ["prefix 'a'", "1 numbers, expected 2"]),
        (changed(TREE, (*IN_TREE, "logits"), [0]), ["'logits'", "a list"]),
        (changed(TREE, (*IN_TREE, "steps"), {"end": [[1, 1]]}), ["steps", "'end'", "from 0 to 0"]),
        (changed(TREE, (*IN_TREE, "steps"), {"end": [1]}), ["steps", "[end, score]"]),
        (changed(TREE, (*IN_TREE, "features"), {"": [[1], [0]]}), ["prefix 'a'", "not there"]),
        (changed(TREE, (*IN_TREE, "vocabulary"), ["a b", "end"]), ["'vocabulary'", "'a b'"]),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence_that_says_where(document, words):
    with pytest.raises(UserError) as refused:
        parse(document, "policy.json")
    sentence = str(refused.value)
    assert sentence.startswith("policy.json: ")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("content", ["{", "", "[" * 100_000, '"\udc80"'])
def test_what_is_not_json_or_not_there_is_refused(tmp_path, content):
    path = tmp_path / "policy.json"
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match="is not JSON"):
        load(path)


def test_features_in_the_responses_and_at_the_top_are_one_policy():
    rewards, vectors = [[1, 0], [0, 3]], [[[1, 0], [0, 1]], [[1, 1], [0, 0]]]
    bare = {"prompts": [{"responses": [{"reward": r} for r in row]} for row in rewards], "weights": [0.3, -1]}
    nested, flat = bare | {"features": vectors}, bare | {"features": vectors[0] + vectors[1]}
    inside = copy.deepcopy(bare)
    for prompt, rows in zip(inside["prompts"], vectors, strict=True):
        for response, row in zip(prompt["responses"], rows, strict=True):
            response["features"] = row
    row = switches(None, None, [])
    found = [expected_update(parse(document), row).expected_update for document in (nested, flat, inside)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert "features" not in bare["prompts"][0]["responses"][0]  # the argument is left as it was


def test_features_that_are_unit_vectors_are_logits_of_their_own():
    row = switches(None, None, ["sampling.group_size=3"])
    logits = [0.2, -0.4, 1.0]
    own = {"prompts": [{"responses": [{"logit": x, "reward": k} for k, x in enumerate(logits)]}]}
    units = {
        "prompts": [{"responses": [{"reward": k} for k in range(3)]}],
        "features": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "weights": logits,
    }
    a, b = (expected_update(parse(document), row) for document in (own, units))
    assert a.expected_update.tolist() == pytest.approx(b.expected_update.tolist(), abs=1e-14)
    assert a.variance == pytest.approx(b.variance, abs=1e-14)


def test_a_tree_whose_prefixes_share_features_moves_them_together():
    tree = {**TREE["prompts"][0]["tree"], "features": {"": [[1], [0]], "a": [[1], [0]]}}
    policy = parse({"prompts": [{"tree": tree}], "weights": [0.4]})
    p = 1 / (1 + 2.718281828459045**-0.4)
    # J = p^2 + 2 p (1 - p) in the chance p of the token a, whose derivative in the weight is p (1 - p)
    row = switches(None, None, ["advantage.baseline=leave-one-out", "advantage.scale=none"])
    row = row.model_copy(update={"update": row.update.model_copy(update={"reduction": "sequence-sum"})})
    found = expected_update(policy, row)
    assert found.gradient.tolist() == pytest.approx([(2 - 2 * p) * p * (1 - p)], abs=1e-14)
    assert found.expected_update.tolist() == pytest.approx(found.gradient.tolist(), abs=1e-12)


def test_a_tree_of_one_token_responses_is_a_categorical():
    tree = {"vocabulary": ["a", "b", "end"], "horizon": 1, "logits": {"": [0.1, -0.3, 0.7]},
            "rewards": {"a": 0, "b": 1, "end": 10}}  # fmt: skip
    flat = [{"logit": x, "reward": r} for x, r in ((0.1, 0), (-0.3, 1), (0.7, 10))]
    row = switches(None, None, ["sampling.group_size=4"])
    a, b = (expected_update(parse({"prompts": [p]}), row) for p in ({"tree": tree}, {"responses": flat}))
    assert torch.equal(a.expected_update, b.expected_update)


def test_a_key_written_twice_is_refused(tmp_path, capsys):
    text = json.dumps(GOOD).replace('"reward": 10', '"reward": 10, "reward": 1')
    code, _, error = command(tmp_path, capsys, text)
    assert code == 2 and "policy.json: the key 'reward' is written twice in one object." in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--monte-carlo", "100", "--seed", str(2**70)), "expected a whole number from 0 to 2^63 - 1."),
        (("--monte-carlo", "100", "--seed", "-1"), "expected a whole number from 0 to 2^63 - 1."),
        (("--monte-carlo", str(10**12)), "expected at most 100,000,000 groups."),
    ],
)
def test_estimates_out_of_bounds_are_one_sentence(tmp_path, capsys, arguments, expected):
    code, _, error = command(tmp_path, capsys, GOOD, *arguments)
    assert code == 2 and expected in error and error.count("\n") == 1


def test_logits_beyond_double_precision_are_refused(tmp_path, capsys):
    responses = [{"features": [1e200], "reward": 1}, {"features": [0], "reward": 0}]
    code, _, error = command(tmp_path, capsys, {"prompts": [{"responses": responses}], "weights": [1e200]})
    assert code == 2 and "prompt 0: the logits, features . weights, do not fit into double precision" in error


def test_angles_and_norms_hold_for_rewards_of_any_size():
    def found(scale, **changes):
        rewards = [0, 1, 10]
        law = [{"probability": 1 / 3, "reward": r * scale} for r in rewards]
        return expected_update(
            parse({"prompts": [{"responses": law}]}), switches(None, "documents", ["sampling.group_size=3"])
        )

    small, large, tiny = found(1.0), found(1e200), found(1e-200)
    assert small.cosine == pytest.approx(0.9544, abs=5e-5)
    for other, scale in ((large, 1e200), (tiny, 1e-200)):
        assert other.cosine == pytest.approx(small.cosine, rel=1e-12)
        assert other.norm_ratio == pytest.approx(small.norm_ratio / scale, rel=1e-12)


def test_the_empty_prefix_is_quoted_among_the_names(tmp_path, capsys):
    document = copy.deepcopy(TREE)
    document["prompts"][0]["tree"]["logits"] = {"zzz": [0, 0]}
    code, _, error = command(tmp_path, capsys, document)
    assert code == 2 and "expected one of '', a." in error
