"""The arguments written for trl are those that were compared by hand, and what trl cannot do is named."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from grpo_ablate.bench.trl_settings import objective_arguments, training_arguments
from grpo_ablate.errors import UserError
from grpo_ablate.spec.presets import PRESETS
from grpo_ablate.spec.resolve import merged, preset_switches
from grpo_ablate.spec.schema import Spec, Switches

TRL = {"advantage": {"ddof": 1, "eps": 1e-4}, "update": {"reduction": "token-mean"}}


def with_changes(**sections):
    return Switches.model_validate(merged(TRL, sections))


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_arguments_are_those_that_the_comparison_wrote_by_hand():
    from recorded import switches_of
    from trl import GRPOConfig
    from trl_cases import CASES, case

    def written(arguments):
        found = vars(GRPOConfig(output_dir="", use_cpu=True, bf16=False, **arguments))
        return found | {"epsilon_high": found["epsilon_high"] or found["epsilon"]}

    for loss, variant in CASES:
        if loss == "bnpo":  # one microbatch of it is dapo
            continue
        by_hand, layers = case(loss, variant)
        switches = switches_of(*layers)
        mapped = objective_arguments(switches, "here")
        wanted, found = written(by_hand | {"max_completion_length": 8}), written(mapped)
        compared = {*by_hand, *mapped} - {"use_vllm"}
        if not by_hand.get("use_vllm"):
            compared -= {"vllm_importance_sampling_correction"}  # read with vLLM alone
        if "beta" not in by_hand:
            compared -= {"use_bias_correction_kl"}  # read with a beta alone
        for name in compared:
            expected = wanted[name]
            close = pytest.approx(expected) if isinstance(expected, float) else expected
            assert found[name] == close, (loss, variant, name)


@pytest.mark.parametrize("name", ["trl-1.16", "dr-grpo", "prime-rl", "tinker"])
def test_presets_that_trl_can_express_have_arguments(name):
    assert objective_arguments(Switches.model_validate(preset_switches(name, "here")), name)


@pytest.mark.parametrize("name", sorted({*PRESETS} - {"trl-1.16", "dr-grpo", "prime-rl", "tinker"}))
def test_other_presets_are_refused_in_a_sentence(name):
    with pytest.raises(UserError, match=rf"^{name}: trl 1\.16 cannot train this: [a-z]+\.[a-z_]+ .*\.$"):
        objective_arguments(Switches.model_validate(preset_switches(name, "here")), name)


REFUSED = {
    "reward.transform": {"reward": {"transform": "rank"}},
    "reward.masked_in_baseline": {"reward": {"overlong": "mask", "masked_in_baseline": False}},
    "reward.masked_in_denominator": {"reward": {"overlong": "mask"}},
    "sampling.dynamic": {"sampling": {"dynamic": "drop"}},
    "sampling.top_k": {"sampling": {"top_k": 5}},
    "sampling.top_p": {"sampling": {"top_p": 0.9}},
    "advantage.ddof": {"advantage": {"ddof": 0}},
    "advantage.eps_inside": {"advantage": {"eps_inside": True}},
    "advantage.baseline": {"advantage": {"baseline": "batch"}},
    "advantage.advantage_clip": {"advantage": {"advantage_clip": 3.0}},
    "update.surrogate": {"update": {"surrogate": "geometric", "force": True}},
    "update.reduction": {"update": {"surrogate": "soft"}},
    "update.clip_low": {"update": {"surrogate": "cispo"}},
    "update.dual_clip": {"update": {"dual_clip": 1.1}},
    "update.log_ratio_clamp": {"update": {"log_ratio_clamp": 20.0}},
    "update.constant": {"update": {"reduction": "constant", "constant": 7}},
    "update.staleness": {"update": {"staleness": 1}},
    "update.entropy_coefficient": {"update": {"reduction": "sequence-mean", "entropy_coefficient": 0.1}},
    "kl.estimator": {"kl": {"beta": 0.1, "estimator": "k1", "gradient": "ratio"}},
    "kl.place": {"kl": {"beta": 0.1, "place": "reward-before"}},
    "kl.refresh_reference": {"kl": {"beta": 0.1, "refresh_reference": 3}},
    "kl.gradient": {
        "kl": {"beta": 0.1, "gradient": "ratio"},
        "update": {"surrogate": "sequence", "reduction": "sequence-mean"},
    },
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_trl_has_no_word_for_is_named(key):
    assert objective_arguments(with_changes(), "here")
    with pytest.raises(UserError, match=rf"^here: trl 1\.16 cannot train this: {key} .*expected "):
        objective_arguments(with_changes(**REFUSED[key]), "here")


def test_kl_options_are_free_at_beta_0():
    assert objective_arguments(with_changes(kl={"estimator": "k1", "place": "reward-before"}), "here")["beta"] == 0


def spec(**sections):
    return Spec.model_validate(
        {"task": {"prompts": [{"source": "", "target": "", "candidates": [{"text": "", "quality": 0.0}] * 2}]},
         "budget": {"rollouts": 192}, **sections}
    )  # fmt: skip


def test_a_round_is_as_many_optimiser_steps_of_trl_s():
    found = training_arguments(spec(update={"inner_passes": 3, "minibatches": 2}), "here")
    assert found["per_device_train_batch_size"] * found["steps_per_generation"] == 64
    assert found["steps_per_generation"] == 2 and found["max_steps"] == 3 * 3 * 2


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"optimizer": {"warmup": 8}}, "optimizer.warmup is 8"),
        ({"optimizer": {"schedule": "linear"}}, "optimizer.schedule is linear"),
        ({"update": {"minibatches": 7}}, "7 minibatches do not divide the 64 responses"),
    ],
)
def test_schedules_and_splits_that_trl_lacks_are_refused(sections, key):
    with pytest.raises(UserError, match=f"^here: trl 1.16 cannot train this: {key}"):
        training_arguments(spec(**sections), "here")
