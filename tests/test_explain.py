"""`explain`: what it prints, what it refuses, and that its numbers are those of the formulas."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.explain import explain, format_text, run
from grpo_ablate.spec.resolve import switches

BATCH = [
    {"group": "p1", "reward": 1, "logp": [-0.5, -1.2, -0.3], "old_logp": [-0.9, -1.2, -0.4]},
    {"group": 2, "reward": 0.5, "logp": [-0.5]},
    {"group": "p1", "reward": 0, "logp": [-2.5, -1.2], "old_logp": [-0.9, -1.3]},
    {"group": 2, "reward": None, "logp": [-0.5, -0.1]},
    {"group": True, "reward": 0.0, "logp": [-0.1], "truncated": True},
    {"group": 1, "reward": 1.0, "logp": [-0.1]},
    {"group": "p1", "reward": 1, "logp": [-0.7, -1.2, -0.3, -0.01]},
    {"group": 2, "reward": 0.1, "logp": []},
]
RAGGED = ("advantages", "weights", "ratios", "mismatch", "objective", "clipped", "kl", "grad")


def chosen(*settings, preset=None):
    return switches(None, preset, list(settings))


@pytest.fixture
def written(tmp_path):
    def write(content) -> Path:
        path = tmp_path / "batch.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_the_json_has_the_documented_keys_ragged_in_input_order(written):
    found = json.loads(run(written(BATCH), chosen(), True))
    assert {"advantages", "weights", "ratios", "grad", "loss", "policy_loss", "kl_loss", "metrics"} <= set(found)
    for key in RAGGED:
        assert [len(row) for row in found[key]] == [len(r["logp"]) for r in BATCH], key
    assert found["groups"] == [r["group"] for r in BATCH]
    assert found["rewards"] == [r["reward"] for r in BATCH]


def test_the_default_is_the_documents_setting_by_hand():
    """Mean, std with divisor G, no stabiliser, clip .2, sequence mean, no KL."""
    found = explain(BATCH, chosen())
    std = math.sqrt(2) / 3
    upper, lower = (1 / 3) / std, (-2 / 3) / std
    assert found.advantages[0] == pytest.approx([upper] * 3)
    assert found.advantages[2] == pytest.approx([lower] * 2)
    assert found.advantages[1] == pytest.approx([1.0]) and found.advantages[3] == [0.0, 0.0]
    # Seven rewards are present; the missing one has no weight and the empty response still counts.
    assert found.weights[0] == pytest.approx([1 / 21] * 3) and found.weights[3] == [0.0, 0.0]
    ratios = [math.exp(0.4), 1.0, math.exp(0.1)]
    assert found.ratios[0] == pytest.approx(ratios)
    assert found.clipped[0] == ["high", None, None] and found.clipped[2] == ["low", None]
    assert found.objective[0] == pytest.approx([1.2 * upper, upper, ratios[2] * upper])
    assert found.grad[0] == pytest.approx([0, -upper / 21, -ratios[2] * upper / 21])
    policy = sum(
        w * f
        for weights, objective in zip(found.weights, found.objective, strict=True)
        for w, f in zip(weights, objective, strict=True)
    )
    assert found.policy_loss == pytest.approx(-policy) and found.loss == found.policy_loss


def test_true_is_no_one_and_groups_may_have_any_scalar_id():
    found = explain(BATCH, chosen())
    assert found.advantages[4] == [0.0] and found.advantages[5] == [0.0]
    same = explain([{"group": g, "reward": r, "logp": [-1.0]} for g, r in ((1, 1), (1.0, 0))], chosen())
    assert same.advantages == [[1.0], [-1.0]]


def test_a_step_against_the_gradient_lowers_the_loss():
    before = explain(BATCH, chosen("kl.beta=0"))
    moved = [
        dict(
            r,
            old_logp=r.get("old_logp", r["logp"]),
            logp=[x - 1e-6 * g for x, g in zip(r["logp"], grad, strict=True)],
        )
        for r, grad in zip(BATCH, before.grad, strict=True)
    ]
    after = explain(moved, chosen("kl.beta=0"))
    slope = sum(g * g for row in before.grad for g in row)
    assert (before.loss - after.loss) / 1e-6 == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(
    ("transform", "settings"),
    [
        ("noise", ["reward.noise_std=0.3"]),
        ("random", []),
        ("per-prompt-affine", []),
    ],
)
def test_drawn_transforms_repeat_and_say_that_they_are_not_a_runs(transform, settings):
    found = [explain(BATCH, chosen(f"reward.transform={transform}", *settings)) for _ in range(2)]
    assert found[0].as_json() == found[1].as_json() and "random_key 0" in found[0].notes[-1]
    other = explain(BATCH, chosen(f"reward.transform={transform}", *settings, "sampling.random_key=7"))
    assert other.shaped != found[0].shaped


def test_notes_say_what_to_know_before_believing_a_number():
    assert "sampling.max_tokens is 1" in explain(BATCH, chosen(preset="dr-grpo")).notes[0]
    assert not any(
        "max_tokens" in n for n in explain(BATCH, chosen("sampling.max_tokens=4", preset="dr-grpo")).notes
    )
    assert "one reward alone" in explain([BATCH[5]], chosen()).notes[0]
    assert "nothing is drawn anew: group True, 1" in explain(BATCH, chosen("sampling.dynamic=drop")).notes[-1]
    assert "ema_initial" in explain(BATCH, chosen("advantage.baseline=ema")).notes[-1]


def test_exact_kl_adds_its_value_and_no_gradient_in_the_sampled_token():
    entries = [dict(r, kl_exact=[0.2] * len(r["logp"])) for r in BATCH]
    found, without = (explain(entries, chosen(f"kl.beta={b}", "kl.estimator=exact")) for b in (0.5, 0))
    # Six responses with tokens of the seven that count.
    assert found.kl_loss == pytest.approx(0.5 * 0.2 * 6 / 7)
    assert found.grad == without.grad


GOOD = {"group": 0, "reward": 1.0, "logp": [-1.0, -2.0]}


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        ([], [], "the list has no responses"),
        ([3], [], "response 0: expected an object"),
        ([GOOD, {**GOOD, "rewrd": 1}], [], "response 1: unknown key 'rewrd'; did you mean 'reward'?"),
        ([{"reward": 1, "logp": [1]}], [], "response 0: 'group' is not there"),
        ([{"group": 1, "reward": 1}], [], "response 0: 'logp' is not there"),
        ([{"group": 1, "logp": [-1.0]}], [], "neither 'reward' (null when missing) nor 'steps'"),
        ([{**GOOD, "group": [1]}], [], "'group' may be any string, number or boolean, found a list"),
        (
            [{**GOOD, "reward": "1"}],
            [],
            "'reward' must be a finite number, or null when missing, found the string '1'",
        ),
        ([{**GOOD, "reward": True}], [], "'reward' must be a finite number, or null when missing, found true"),
        ([{**GOOD, "reward": math.inf}], [], "'reward' must be a finite number"),
        ([{**GOOD, "reward": 10**400}], [], "'reward' must be a finite number"),
        ([{**GOOD, "logp": -1.0}], [], "'logp' must be a list of numbers, one per token, found -1.0"),
        ([{**GOOD, "logp": [-1.0, None]}], [], "'logp' at token 1 must be a finite number, found null"),
        ([{**GOOD, "old_logp": [-1.0]}], [], "'old_logp' has 1 values, but 'logp' has 2"),
        ([{**GOOD, "truncated": 1}], [], "'truncated' must be true or false, found 1"),
        ([{**GOOD, "steps": [[2, 1.0]]}], [], "'steps' has the end 2; expected the 0-based position"),
        ([{**GOOD, "steps": [[0]]}], [], "'steps' must be a list of [end, score], found [0] in it"),
        ([{"group": 0, "steps": [[0, 1.0]], "logp": [-1.0]}], [], "has 'steps' and no 'reward'"),
        ([GOOD], ["advantage.supervision=process"], "process needs 'steps' ([] for none)"),
        ([GOOD], ["kl.beta=0.1"], "response 0: kl.beta 0.1 with estimator k3 needs 'ref_logp'"),
        ([GOOD], ["kl.beta=0.1", "kl.estimator=exact"], "needs 'kl_exact'"),
        ([GOOD], ["update.entropy_coefficient=0.1"], "a batch file has no entropies"),
        (
            [{**GOOD, "reward": -1.0}],
            ["reward.transform=power", "reward.power=0.5"],
            "reward.power: a negative reward",
        ),
        (
            [{**GOOD, "reward": 1e10}],
            ["reward.transform=affine", "reward.scale=1e300"],
            "response 0: its reward 1e+10 is inf after reward.* and kl.beta; expected a number that float64 holds",
        ),
        (
            [{**GOOD, "reward": -1.7e308}, {**GOOD, "reward": 1.7e308}],
            [],
            "response 0: its advantage is not finite",
        ),
        (
            [{"group": 0, "steps": [[0, -1.7e308], [1, 1.7e308]], "logp": [-1.0, -2.0]}],
            ["advantage.supervision=process"],
            "response 0: its advantage is not finite",
        ),
        (
            [{**GOOD, "ref_logp": [800.0, 0.0]}],
            ["kl.beta=0.1", "kl.place=reward-before"],
            "response 0: its reward 1 is -inf after",
        ),
        (
            [{**GOOD, "ref_logp": [800.0, 0.0]}],
            ["kl.beta=0.1", "kl.place=reward-after"],
            "response 0: its advantage is not finite",
        ),
        ([{**GOOD, "a\nb\ud800\x1b": 1}], [], "unknown key ''a\\nb\\ud800\\x1b''"),
    ],
)
def test_bad_input_is_one_sentence_that_names_file_response_and_key(entries, settings, message):
    with pytest.raises(UserError) as caught:
        explain(entries, chosen(*settings), "batch.json")
    text = str(caught.value)
    assert message in text and "\n" not in text
    if "reward.power" not in message:
        assert text.startswith("batch.json: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"a": 1}', "expected a list of responses, found an object"),
        ("[" * 100_000, "is not JSON"),
        ("[" + "9" * 5000 + "]", "is not JSON"),
        ('[{"group": 0, "reward": 1, "reward": 0, "logp": [-1]}]', "the key 'reward' is written twice"),
        ('[{"a\\nb": 0, "a\\nb": 1}]', r"the key ''a\\nb'' is written twice"),
        ('"text"', "found the string 'text'"),
    ],
)
def test_a_file_that_is_no_list_is_refused(written, content, message):
    with pytest.raises(UserError, match=message):
        run(written(content), chosen(), False)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read"):
        run(tmp_path / "none.json", chosen(), False)


def test_combinations_that_mean_nothing_are_refused_without_a_command_line():
    process = chosen().model_copy(
        update={
            "advantage": chosen("advantage.supervision=process").advantage,
            "reward": chosen("reward.transform=random").reward,
        }
    )
    with pytest.raises(UserError, match="does not read"):
        explain([{"group": 0, "steps": [], "logp": [-1.0]}], process)


def everything(seed: int):
    """Responses that fill every column of the text."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[float]:
        return [round(-rng.expovariate(0.3), 3) for _ in range(count)]

    return [
        {
            "group": f"prompt-{i % 2}",
            "reward": rng.choice([0, 0.5, 1, None]),
            **{key: tokens(5) for key in ("logp", "old_logp", "ref_logp", "sampler_logp")},
        }
        for i in range(8)
    ]


def test_the_text_fits_a_terminal_of_100_columns_and_says_what_was_asked():
    settings = chosen("kl.beta=0.1", "update.mismatch=truncate", "reward.transform=affine", "reward.scale=10")
    for seed in range(5):
        found = explain(everything(seed), settings)
        text = format_text(found, settings, "batch.json")
        assert max(map(len, text.splitlines())) <= 100
        assert "kl.beta 0.1" in text and "mismatch" in text and text.count("response ") == 8
        for name in found.metrics:
            assert name in text


def test_the_text_shows_the_numbers_of_the_json(written):
    path = written(BATCH)
    text, found = run(path, chosen(), False), explain(BATCH, chosen())
    assert f"{found.loss:.6f}" in text and f"{found.grad[0][2]:.6f}" in text
    assert "reward missing" in text and "no tokens" in text
    assert str(path) in text.splitlines()[0]


def test_numbers_that_are_not_finite_are_null_in_json(written):
    found = json.loads(run(written([{**GOOD, "logp": [800.0, 0.0], "old_logp": [-800.0, 0.0]}]), chosen(), True))
    assert found["ratios"][0][0] is None
    assert found["metrics"]["train/groups_constant_predicted"] == 1.0


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "\ud800", "tab\t", "\u2028"])
def test_a_group_id_of_any_characters_stays_on_its_line(written, name):
    path = written([{"group": name, "reward": 1, "logp": [-1.0]}, {"group": "é", "reward": 1, "logp": [-1.0]}])
    text = run(path, chosen("sampling.dynamic=drop"), False)
    assert f"response 0  group {name!r}  reward 1" in text and "response 1  group é  reward 1" in text
    assert all(line.isprintable() for line in text.split("\n"))
    text.encode()
    assert json.loads(run(path, chosen(), True))["groups"] == [name, "é"]
