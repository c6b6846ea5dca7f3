"""One fixed batch under trl 1.16's own code and under ours: advantages, loss and gradient agree to 1e-5.

Where the two differ by design, the test says by what, and `grpo-ablate presets` says so to a user.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

from recorded import (
    LIMIT,
    by_token,
    difference,
    fixed_batch,
    ids_of,
    largest,
    make_trainer,
    ours,
    prompts,
    single,
    switches_of,
    theirs,
    with_current_as_old,
)

from grpo_ablate.spec.presets import PRESETS
from grpo_ablate.spec.resolve import preset_switches

CLOSE = 1e-5
BATCHES = [fixed_batch(seed) for seed in (1, 2)]
Sections = dict[str, dict[str, Any]]

# Of trl's default: the preset without the correction for vLLM, which is off where trl samples by itself.
BASE: Sections = {**preset_switches("trl-1.16", "test"), "sampling": {"max_tokens": LIMIT}}
BASE = {**BASE, "update": {**BASE["update"], "mismatch": "none"}}

SEQUENCE = {"surrogate": "sequence", "clip_low": 0.05, "clip_high": 0.06}
GSPO = {"importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.06}
# name -> trl's arguments, our switches
LOSSES: dict[str, tuple[dict[str, Any], Sections]] = {
    "dapo": ({}, {}),
    "bnpo": ({"loss_type": "bnpo"}, {}),  # of one microbatch
    "grpo": ({"loss_type": "grpo"}, {"update": {"reduction": "sequence-mean"}}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"update": {"reduction": "constant"}}),
    "token-sum": ({"loss_type": "luspo"}, {"update": {"reduction": "sequence-sum"}}),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        {"update": {"surrogate": "cispo", "clip_low": "off", "clip_high": single(1.3) - 1}},
    ),
    "sapo": (
        {"loss_type": "sapo", "sapo_temperature_pos": 1.5, "sapo_temperature_neg": 2.5},
        {"update": {"surrogate": "soft", "tau_pos": 1.5, "tau_neg": 2.5, "reduction": "sequence-mean"}},
    ),
    "gspo": ({"loss_type": "grpo", **GSPO}, {"update": {**SEQUENCE, "reduction": "sequence-mean"}}),
    "gspo-dapo": (GSPO, {"update": {**SEQUENCE, "force": True}}),
    "luspo": (
        {"loss_type": "luspo", **GSPO},
        {"update": {**SEQUENCE, "reduction": "sequence-sum", "force": True}},
    ),
    "clip-higher": ({"epsilon": 0.1, "epsilon_high": 0.28}, {"update": {"clip_low": 0.1, "clip_high": 0.28}}),
    "two-sided": ({"delta": 1.5}, {"update": {"dual_clip": 1.5}}),
    "unclipped": ({"epsilon": 1e30}, {"update": {"clip_low": "off", "clip_high": "off"}}),
}
BY_SEQUENCE = ("gspo", "gspo-dapo", "luspo")
# Where the mean is over tokens, trl's truncated responses leave the denominator; elsewhere they stay in it.
OVER_TOKENS = ("dapo", "bnpo", "cispo", "gspo-dapo", "clip-higher", "two-sided", "unclipped")
VLLM = {"use_vllm": True, "vllm_importance_sampling_clip_max": 1.1}


def masked(loss: str) -> Sections:
    return {"reward": {"overlong": "mask", "masked_in_denominator": loss not in OVER_TOKENS}}


def corrected(kind: str, level: str) -> Sections:
    return {"update": {"mismatch": kind, "mismatch_level": level, "mismatch_cap": single(1.1)}}


def kl(gradient: str) -> Sections:
    return {"kl": {"beta": 0.3, "gradient": gradient}}


# name -> trl's arguments, our switches by the name of the loss
VARIANTS: dict[str, tuple[dict[str, Any], Any]] = {
    "alone": ({}, lambda loss: {}),
    "scale-batch": ({"scale_rewards": "batch"}, lambda loss: {"advantage": {"scale": "batch-std"}}),
    "scale-none": ({"scale_rewards": "none"}, lambda loss: {"advantage": {"scale": "none"}}),
    "kl": ({"beta": 0.3, "use_bias_correction_kl": False}, lambda loss: kl("pathwise")),
    "kl-with-ratio": ({"beta": 0.3}, lambda loss: kl("ratio")),
    "truncated-masked": ({"mask_truncated_completions": True}, masked),
    "vllm-sequence-mask": (VLLM, lambda loss: corrected("mask", "sequence")),
    "vllm-sequence-truncate": (
        {**VLLM, "vllm_importance_sampling_mode": "sequence_truncate"},
        lambda loss: corrected("truncate", "sequence"),
    ),
    "vllm-token-mask": (
        {**VLLM, "vllm_importance_sampling_mode": "token_mask"},
        lambda loss: corrected("mask", "token"),
    ),
    "vllm-token-truncate": (
        {**VLLM, "vllm_importance_sampling_mode": "token_truncate"},
        lambda loss: corrected("truncate", "token"),
    ),
    "all": (
        {**VLLM, "beta": 0.3, "use_bias_correction_kl": False, "mask_truncated_completions": True,
         "scale_rewards": "batch"},
        lambda loss: {**masked(loss), **corrected("mask", "sequence"), **kl("pathwise"),
                      "advantage": {"scale": "batch-std"}},
    ),
}  # fmt: skip
CASES = [
    (loss, variant)
    for loss in LOSSES
    for variant in VARIANTS
    if (loss, variant) not in {(name, "kl-with-ratio") for name in BY_SEQUENCE}
]


def case(loss: str, variant: str) -> tuple[dict[str, Any], list[Sections]]:
    theirs_of_loss, ours_of_loss = LOSSES[loss]
    theirs_of_variant, ours_of_variant = VARIANTS[variant]
    return theirs_of_loss | theirs_of_variant, [BASE, ours_of_loss, ours_of_variant(loss)]


@pytest.mark.parametrize(("loss", "variant"), CASES)
def test_advantages_loss_and_gradient_are_trl_s(loss, variant):
    arguments, layers = case(loss, variant)
    for entries in BATCHES:
        expected = theirs(entries, arguments)
        assert max(abs(value) for row in expected.gradient for value in row) > 0.005  # there is something to see
        assert difference(ours(entries, switches_of(*layers)), expected, entries) < CLOSE


@pytest.mark.parametrize("loss", LOSSES)
def test_the_first_step_of_a_round_is_trl_s(loss):
    arguments, layers = case(loss, "kl")
    entries = with_current_as_old(BATCHES[0])
    # Of one inner iteration trl takes no old log-probabilities: it detaches the current ones.
    expected = theirs(entries, {**arguments, "num_iterations": 1})
    assert difference(ours(entries, switches_of(*layers)), expected, entries) < CLOSE


# A switch of the default set otherwise: each must be seen, or agreement would say nothing of it.
MISTAKES: dict[str, Sections] = {
    "ddof": {"advantage": {"ddof": 0}},
    "eps": {"advantage": {"eps": 0.0}},
    "scale": {"advantage": {"scale": "batch-std"}},
    "reduction": {"update": {"reduction": "sequence-mean"}},
    "clip_high": {"update": {"clip_high": 0.21}},
    "clip_low": {"update": {"clip_low": 0.21}},
    "gradient": {"kl": {"gradient": "pathwise"}},
    "estimator": {"kl": {"estimator": "k2"}},
    "beta": {"kl": {"beta": 0.301}},
    "cap": {"update": {"mismatch_cap": 10.0}},
    "level": {"update": {"mismatch_level": "token"}},
    "correction": {"update": {"mismatch": "truncate"}},
    "denominator": {"reward": {"masked_in_denominator": True}},
    "baseline": {"reward": {"masked_in_baseline": False}},
    "mask": {"reward": {"overlong": "off"}},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_switch_set_otherwise_would_be_seen(mistake):
    arguments = {**VLLM, "beta": 0.3, "mask_truncated_completions": True}
    layers = [BASE, masked("dapo"), corrected("mask", "sequence"), kl("ratio")]
    right, wrong = switches_of(*layers), switches_of(*layers, MISTAKES[mistake])
    answers = [(entries, theirs(entries, arguments)) for entries in BATCHES]
    assert max(difference(ours(entries, right), expected, entries) for entries, expected in answers) < CLOSE
    assert max(difference(ours(entries, wrong), expected, entries) for entries, expected in answers) > 3 * CLOSE


# preset -> trl's arguments; None where trl has no word for the preset.
WHOLE: dict[str, dict[str, Any]] = {
    "trl-1.16": {"use_vllm": True},
    "dr-grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "open-instruct": {
        "scale_rewards": "none", "epsilon_high": 0.272, "beta": 0.05, "use_bias_correction_kl": False,
    },
    "prime-rl": {"scale_rewards": "none", "epsilon": 1e30},
    "tinker": {"scale_rewards": "none", "epsilon": 1e30, "loss_type": "luspo"},
}  # fmt: skip
# Advantages that trl cannot compute (another divisor or stabiliser, KL in the reward) are handed to its loss.
LOSS_ALONE: dict[str, dict[str, Any]] = {
    "documents": {"loss_type": "grpo"},
    "verl-0.9": {"delta": 3.0},
    "openrlhf-0.11": {},
    "nemo-rl": {"beta": 0.01, "use_bias_correction_kl": False},
    "slime": {"loss_type": "grpo"},
    "skyrl": {"beta": 0.001, "use_bias_correction_kl": False},
    "dapo": {"epsilon_high": 0.28, "delta": 3.0},
}
NOT_TRL = {
    "documents-experiment": "exact KL in the loss: trl has k3 alone",
    "rloo": "another trainer of trl's: test_trl_rloo.py",
}


def test_every_preset_is_compared_or_says_why_not():
    assert {*WHOLE, *LOSS_ALONE, *NOT_TRL} == set(PRESETS)
    assert not set(WHOLE) & set(LOSS_ALONE)


def mixed(entries: list[dict[str, Any]]) -> bool:
    """Whether no group is constant, so that no preset's filter acts."""
    groups: dict[Any, set[float]] = {}
    for entry in entries:
        groups.setdefault(entry["group"], set()).add(entry["reward"])
    return all(len(rewards) > 1 for rewards in groups.values())


@pytest.mark.parametrize("name", WHOLE)
def test_a_preset_that_trl_can_express_is_trl_s(name):
    entries = BATCHES[0]
    assert mixed(entries)
    expected = theirs(entries, WHOLE[name])
    assert difference(ours(entries, switches_of(preset_switches(name, "test"))), expected, entries) < CLOSE


@pytest.mark.parametrize("name", LOSS_ALONE)
def test_the_loss_of_a_preset_is_trl_s_given_its_advantages(name):
    entries = BATCHES[0]
    found = ours(entries, switches_of(preset_switches(name, "test")))
    expected = theirs(entries, LOSS_ALONE[name], advantages=found.advantages)
    assert difference(found, expected, entries) < CLOSE


def test_the_documents_advantages_are_trl_s_times_what_the_divisor_makes():
    entries, (group, *_) = BATCHES[0], [BATCHES[0][:4]]
    rewards = [entry["reward"] for entry in group]
    mean = sum(rewards) / 4
    squares = sum((reward - mean) ** 2 for reward in rewards)
    factor = (math.sqrt(squares / 3) + 1e-4) / math.sqrt(squares / 4)
    found = ours(entries, switches_of(preset_switches("documents", "test")))
    expected = theirs(entries, {})
    assert [row[0] for row in found.advantages[:4]] == pytest.approx(
        [value * factor for value in expected.advantages[:4]], abs=CLOSE
    )


def test_an_entropy_bonus_is_trl_s_under_the_token_mean():
    entries = BATCHES[0]
    entropies = [[0.5 + 0.1 * position for position in range(len(entry["logp"]))] for entry in entries]
    arguments = {"entropy_coef": 0.2}
    switches = switches_of(BASE, {"update": {"entropy_coefficient": 0.2}})
    expected = theirs(entries, arguments, entropies=entropies)
    found = ours(entries, switches, entropies=entropies)
    assert difference(found, expected, entries) < CLOSE
    assert largest(found.entropy_gradient, expected.entropy_gradient) < 1e-7
    # Under any other reduction trl's bonus stays the mean over tokens, where ours takes the reduction's weights.
    expected = theirs(entries, {**arguments, "loss_type": "grpo"}, entropies=entropies)
    found = ours(entries, switches.model_copy(update={"update": switches.update.model_copy(
        update={"reduction": "sequence-mean"})}), entropies=entropies)  # fmt: skip
    assert largest(found.gradient, expected.gradient) < CLOSE
    tokens = sum(len(entry["logp"]) for entry in entries)
    for entry, mine, trl in zip(entries, found.entropy_gradient, expected.entropy_gradient, strict=True):
        assert mine == pytest.approx([-0.2 / (len(entries) * len(entry["logp"]))] * len(mine))
        assert trl == pytest.approx([-0.2 / tokens] * len(trl))


REWARDS = [
    [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0],
    [0.5, 0.25, 0.0, 0.75, 0.5, 0.5, 0.0, 1.0, 0.25, 0.25, 0.75, 0.0],
]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_several_reward_functions_with_weights_are_trl_s(scale):
    entries = BATCHES[0]
    weights = {"reward_0": 1.0, "reward_1": -0.5}
    expected = theirs(entries, {"reward_weights": list(weights.values()), "scale_rewards": scale}, rewards=REWARDS)
    named = {"group": "group-std", "batch": "batch-std", "none": "none"}[scale]
    switches = switches_of(BASE, {"reward": {"components": weights}, "advantage": {"scale": named}})
    assert difference(ours(entries, switches, rewards=REWARDS), expected, entries) < CLOSE


def missing(*numbers: int, batch: int = 0) -> list[dict[str, Any]]:
    return [entry | ({"reward": None} if i in numbers else {}) for i, entry in enumerate(BATCHES[batch])]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_missing_reward_leaves_its_siblings_trl_s_advantages(scale):
    named = {"group": "group-std", "batch": "batch-std", "none": "none"}[scale]
    # One missing in the first group, three in the second, all in the third.
    for gone in ((0,), (0, 4, 5, 6), (0, 4, 5, 6, 8, 9, 10, 11)):
        entries = missing(*gone)
        expected = theirs(entries, {"scale_rewards": scale})
        found = ours(entries, switches_of(BASE, {"advantage": {"scale": named}}))
        assert largest(found.advantages, by_token(expected.advantages, entries)) < CLOSE
        assert all(expected.advantages[number] == 0 for number in gone)


@pytest.mark.parametrize(("loss", "reduction"), [("dapo", "token-mean"), ("grpo", "sequence-mean")])
def test_a_response_without_reward_stays_in_trl_s_denominator_and_leaves_ours(loss, reduction):
    gone = (0, 6)
    entries = missing(*gone)
    expected = theirs(entries, {"loss_type": loss})
    found = ours(entries, switches_of(BASE, {"update": {"reduction": reduction}}))

    def size(numbers):
        return sum(len(entries[i]["logp"]) if reduction == "token-mean" else 1 for i in numbers)

    kept = [number for number in range(len(entries)) if number not in gone]
    factor = size(range(len(entries))) / size(kept)
    assert factor > 1.05
    assert found.loss == pytest.approx(expected.loss * factor, abs=CLOSE)
    scaled = [[value * factor for value in row] for row in expected.gradient]
    assert largest(found.gradient, scaled) < CLOSE


def test_a_response_without_reward_keeps_trl_s_kl_and_loses_ours():
    entries = missing(3)
    expected = theirs(entries, {"beta": 0.3})
    found = ours(entries, switches_of(BASE, kl("ratio")))
    assert any(expected.gradient[3]) and not any(found.gradient[3])


def test_where_one_of_several_rewards_is_missing_trl_takes_the_rest_and_ours_leaves_the_response_out():
    entries = BATCHES[0]
    parted = [[None, *REWARDS[0][1:]], REWARDS[1]]
    weights = {"reward_0": 1.0, "reward_1": 0.5}
    expected = theirs(entries, {"reward_weights": [1.0, 0.5]}, rewards=parted)
    switches = switches_of(BASE, {"reward": {"components": weights}})
    as_zero = ours(entries, switches, rewards=[[0.0, *REWARDS[0][1:]], REWARDS[1]])
    assert difference(as_zero, expected, entries) < CLOSE
    found = ours(entries, switches, rewards=parted)
    assert not any(found.advantages[0]) and expected.advantages[0] != 0


def test_a_constant_group_is_rounding_noise_in_trl_and_nothing_in_ours():
    entries = [entry | {"reward": single(0.3)} for entry in fixed_batch(3, groups=2, size=6)]
    expected = theirs(entries, {})
    # Float32: the mean of six equal numbers is another number, and what is left is divided by some 1e-4.
    assert 1e-5 < max(map(abs, expected.advantages)) < 1e-3
    assert not any(map(any, ours(entries, switches_of(BASE)).advantages))


def test_under_a_sequence_ratio_trl_corrects_the_kl_with_it_and_ours_with_the_token_s():
    entries = BATCHES[0]
    arguments, layers = case("gspo", "kl-with-ratio")
    expected = theirs(entries, arguments)
    found = ours(entries, switches_of(*layers))
    assert abs(found.loss - expected.loss) > 1e-3

    def penalty(ratio_of):
        total = 0.0
        for entry in entries:
            logs = [a - b for a, b in zip(entry["logp"], entry["old_logp"], strict=True)]
            for t, (logp, ref) in enumerate(zip(entry["logp"], entry["ref_logp"], strict=True)):
                z = ref - logp
                value = math.exp(z) - z - 1
                total += 0.3 * ratio_of(logs, t) * value / (len(entries) * len(logs))
        return total

    without = ours(entries, switches_of(*layers[:2]))
    by_sequence = penalty(lambda logs, t: math.exp(sum(logs) / len(logs)))
    assert expected.loss == pytest.approx(without.loss + by_sequence, abs=CLOSE)
    assert found.loss == pytest.approx(without.loss + penalty(lambda logs, t: math.exp(logs[t])), abs=CLOSE)


def test_a_delta_below_the_clip_changes_places_with_it():
    entries = BATCHES[0]
    expected = theirs(entries, {"delta": 1.05})
    written = ours(entries, switches_of(BASE, {"update": {"dual_clip": 1.05}}))
    assert difference(written, expected, entries) > 1e-3
    # trl then holds A > 0 at delta and A < 0 at 1 + epsilon_high.
    swapped = switches_of(BASE, {"update": {"clip_high": single(1.05) - 1, "dual_clip": 1.2}})
    assert difference(ours(entries, swapped), expected, entries) < CLOSE


def test_vllm_s_log_probabilities_come_from_the_engine_and_its_weights_are_loaded_once():
    trainer = make_trainer(BATCHES[0], {"use_vllm": True, "num_iterations": 2})
    trainer.model.train()
    asked = [{"prompt": prompt} for prompt in prompts(BATCHES[0]) for _ in range(4)]
    for _ in range(2):
        inputs = trainer._generate_and_score_completions(asked)
    assert trainer.vllm_generation.loads == 1
    sampled = inputs["sampling_per_token_logps"]
    for row, ids, entry in zip(sampled, ids_of(BATCHES[0]).of, BATCHES[0], strict=True):
        assert row[: len(ids)].tolist() == entry["sampler_logp"]


def test_the_preset_says_where_trl_differs():
    told = " ".join(PRESETS["trl-1.16"].leaves_out)
    for word in ("cap", "without a reward", "of several", "masked_in_denominator", "delta", "sequence ratio",
                 "entropy", "rounding", "bnpo"):  # fmt: skip
        assert word in told
