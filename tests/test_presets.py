"""Each preset reproduces its library's advantages and loss on one batch."""

from __future__ import annotations

import json
import math
import statistics

import pytest

from grpo_ablate.explain import explain
from grpo_ablate.spec.presets import PRESETS, as_json, format_presets
from grpo_ablate.spec.resolve import switches

REWARDS = [[1.0, 0, 0, 0], [1.0, 1, 0, 0], [1.0, 0], [2.0, 1, 0, 0.5]]
COLUMNS = {
    "trl": [[1.4997, -0.4999, -0.4999, -0.4999], [0.8659, 0.8659, -0.8659, -0.8659], [0.7070, -0.7070],
            [1.3173, 0.1464, -1.0246, -0.4391]],
    "verl": [[1.5, -0.5, -0.5, -0.5], [0.8660, 0.8660, -0.8660, -0.8660], [0.7071, -0.7071],
             [1.3175, 0.1464, -1.0247, -0.4392]],
    "mean": [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5], [0.5, -0.5], [1.125, 0.125, -0.875, -0.375]],
    "leave-one-out": [[1.0, -0.3333, -0.3333, -0.3333], [0.6667, 0.6667, -0.6667, -0.6667], [1.0, -1.0],
                      [1.5, 0.1667, -1.1667, -0.5]],
    "nemo-rl": [[1.0, -0.5773, -0.5773, -0.5773], [1.1547, 1.1547, -1.1547, -1.1547], [1.0, -1.0],
                [3.0, 0.1601, -1.5275, -0.5]],
    "documents": [[math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, [1, 1, -1, -1], [1, -1],
                  [1.5213, 0.1690, -1.1832, -0.5071]],
}  # fmt: skip
COLUMN_OF = {
    "documents": "documents",
    "documents-experiment": "documents",
    "trl-1.16": "trl",
    "verl-0.9": "verl",
    "openrlhf-0.11": "verl",
    "nemo-rl": "nemo-rl",
    "slime": "verl",
    "skyrl": "verl",
    "dr-grpo": "mean",
    "dapo": "verl",
    "open-instruct": "mean",
    "prime-rl": "mean",
    "tinker": "mean",
    "rloo": "leave-one-out",
}


def preset(name, *settings):
    return switches(None, name, list(settings))


def test_every_preset_has_its_column():
    assert set(COLUMN_OF) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_reproduces_its_column_of_the_advantages_table(name):
    # Reference and policy agree, so that KL in the reward adds nothing.
    for rewards, printed in zip(REWARDS, COLUMNS[COLUMN_OF[name]], strict=True):
        entries = [
            {"group": 0, "reward": r, "logp": [-1.0], "ref_logp": [-1.0], "kl_exact": [0.0]} for r in rewards
        ]
        found = [row[0] for row in explain(entries, preset(name)).advantages]
        assert found == pytest.approx(printed, abs=5.1e-5)


# The losses, by hand: two responses of lengths 1 and 3, rewards 1 and 0, second token of the second moved.
OLD, MOVED, REFERENCE = [[-1.0], [-1.0, -0.5, -0.2]], math.log(1.9), 0.25
FIRST = {"logp": [-1.0], "old_logp": OLD[0], "ref_logp": [-1.0 + REFERENCE], "kl_exact": [0.1]}
LATER = {"logp": [-1.0, -0.5 + MOVED, -0.2], "old_logp": OLD[1], "ref_logp": OLD[1], "kl_exact": [0.1] * 3}
BATCH = [{"group": 0, "reward": 1.0, **FIRST}, {"group": 0, "reward": 0.0, **LATER}]
K3_FIRST, K3_MOVED = math.exp(REFERENCE) - REFERENCE - 1, math.exp(-MOVED) + MOVED - 1


def std1(eps):
    """The upper advantage of rewards (1, 0) with divisor G - 1; the lower is its negative."""
    return 0.5 / (statistics.stdev([1.0, 0.0]) + eps)


# Sums of u A over the tokens of the second response: ratios 1, 1.9, 1, never clipped for A < 0 without dual clip.
SECOND = 1 + 1.9 + 1
EXPECTED = {
    "documents": -(1 - SECOND / 3) / 2,
    "documents-experiment": -(0.5 / (0.5 + 1e-8)) * (1 - SECOND / 3) / 2 + 0.05 * 0.1,
    "trl-1.16": -std1(1e-4) * (1 - SECOND) / 4,
    "verl-0.9": -std1(1e-6) * (1 - SECOND) / 4,
    "nemo-rl": -(1 - SECOND) / 4 + 0.01 * (K3_FIRST + K3_MOVED) / 4,
    "slime": -std1(1e-6) * (1 - SECOND / 3) / 2,
    "skyrl": -std1(1e-6) * (1 - SECOND) / 4 + 0.001 * (K3_FIRST + K3_MOVED) / 4,
    "dr-grpo": -0.5 * (1 - SECOND) / (2 * 4),
    "open-instruct": -0.5 * (1 - SECOND) / 4 + 0.05 * (K3_FIRST + K3_MOVED) / 4,
    "prime-rl": -0.5 * (1 - SECOND) / 4,
    "tinker": -0.5 * (1 - SECOND) / 2,
    "rloo": -(-1.0 - (-1.0 - 0.5 + MOVED - 0.2)) / 2,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_reproduces_its_loss(name):
    found = explain(BATCH, preset(name, "sampling.max_tokens=4"))
    assert found.loss == pytest.approx(EXPECTED[name], rel=1e-12)


def test_openrlhf_takes_k1_of_the_old_policy_from_each_token_on():
    found = explain(BATCH, preset("openrlhf-0.11"))
    # k1 = old - reference: -.25 on the first response, 0 on the second.
    assert found.advantages[0] == pytest.approx([std1(1e-9) + 0.01 * REFERENCE])
    assert found.advantages[1] == pytest.approx([-std1(1e-9)] * 3)
    assert found.kl_loss == 0


def test_openrlhf_clips_the_advantage_before_the_kl():
    entries = [{"group": 0, "reward": r, "logp": [-1.0], "ref_logp": [-1.0 + 100]} for r in [1.0] + [0.0] * 199]
    assert explain(entries, preset("openrlhf-0.11")).advantages[0] == pytest.approx([10 + 0.01 * 100])


def test_dual_clip_of_verl_holds_a_ratio_of_five():
    entries = [
        {"group": 0, "reward": 1.0, "logp": [0.0]},
        {"group": 0, "reward": 0.0, "logp": [math.log(5)], "old_logp": [0.0]},
    ]
    for name, ratio in (("verl-0.9", 3), ("dapo", 3), ("skyrl", 5)):
        found = explain(entries, preset(name, "kl.beta=0"))
        assert found.policy_loss == pytest.approx(std1(1e-6) * (ratio - 1) / 2)
        assert found.clipped[1] == ["dual" if ratio == 3 else None]


@pytest.mark.parametrize(("name", "high"), [("dapo", 0.28), ("open-instruct", 0.272), ("trl-1.16", 0.2)])
def test_upper_bounds(name, high):
    entries = [
        {"group": 0, "reward": 1.0, "logp": [1.0], "old_logp": [0.0], "ref_logp": [1.0]},
        {"group": 0, "reward": 0.0, "logp": [-1.0], "ref_logp": [-1.0]},
    ]
    found = explain(entries, preset(name))
    assert found.objective[0] == pytest.approx([(1 + high) * found.advantages[0][0]])
    assert found.clipped[0] == ["high"]


def test_trl_multiplies_its_k3_by_the_ratio():
    found = explain(BATCH, preset("trl-1.16", "kl.beta=0.5"))
    assert found.kl_loss == pytest.approx(0.5 * (K3_FIRST + 1.9 * K3_MOVED) / 4)


def test_trl_masks_a_response_whose_mismatch_product_is_above_three():
    entries = [
        {"group": 0, "reward": 1.0, "logp": [-1.0, -1.0], "sampler_logp": [-1.0, -1.0 - math.log(3.1)]},
        {"group": 0, "reward": 0.0, "logp": [-1.0], "sampler_logp": [-1.0 - math.log(2.9)]},
    ]
    found = explain(entries, preset("trl-1.16"))
    assert found.mismatch == [[0.0, 0.0], [pytest.approx(2.9)]] and found.grad[0] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["dapo", "open-instruct"])
def test_constant_groups_do_not_train_where_the_library_drops_them(name):
    entries = [
        {"group": g, "reward": r, "logp": [-1.0], "ref_logp": [-1.0]}
        for g, r in ((0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0))
    ]
    found = explain(entries, preset(name))
    assert found.weights == [[0.5], [0.5], [0.0], [0.0]]


def test_the_listing_names_what_each_preset_leaves_out():
    listed = {entry["name"]: entry for entry in json.loads(as_json())}
    assert list(listed) == list(PRESETS)
    text = format_presets()
    assert max(map(len, text.splitlines())) <= 100
    for name, entry in listed.items():
        assert name in text and entry["source"] and entry["switches"] == PRESETS[name].switches
    assert any("cap" in reason for reason in listed["trl-1.16"]["leaves_out"])
