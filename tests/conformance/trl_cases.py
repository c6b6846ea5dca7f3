"""What is compared with trl: pairs of its arguments and our switches, written by hand on both sides."""

from __future__ import annotations

from typing import Any

from recorded import LIMIT, single

from grpo_ablate.spec.resolve import preset_switches

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
