"""Other libraries' settings as named settings of our switches, and what the switches cannot express.

Each preset reproduces its library's advantages and loss on one batch. What it does not name is neutral in
the sections that decide those (a row's own keys win over both).
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A library's default setting, sparse by section."""

    name: str
    switches: dict[str, dict[str, Any]]
    leaves_out: tuple[str, ...]
    source: str


_KL_K3 = {"estimator": "k3", "gradient": "pathwise", "place": "loss"}
_GROUP_STD = {"baseline": "mean", "scale": "group-std"}
_CLIP = {"surrogate": "clip", "clip_low": 0.2, "clip_high": 0.2}

_PRESETS = (
    Preset(
        "documents",
        {
            "advantage": {**_GROUP_STD, "ddof": 0, "eps": 0.0},
            "update": {**_CLIP, "reduction": "sequence-mean"},
            "kl": {"beta": 0.0, **_KL_K3},
        },
        (),
        "Shao et al. 2024, DeepSeekMath, section 4.1, with the divisor-G standard deviation and no stabiliser",
    ),
    Preset(
        "documents-experiment",
        {
            "advantage": {**_GROUP_STD, "ddof": 0, "eps": 1e-8},
            "update": {**_CLIP, "reduction": "sequence-mean"},
            "kl": {"beta": 0.05, "estimator": "exact", "gradient": "pathwise", "place": "loss"},
        },
        (),
        "the published translation-selection experiment, group-normalised condition",
    ),
    Preset(
        "trl-1.16",
        {
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-4},
            "update": {
                **_CLIP,
                "reduction": "token-mean",
                "mismatch": "mask",
                "mismatch_level": "sequence",
                "mismatch_cap": 3.0,
            },
            "kl": {"beta": 0.0, "estimator": "k3", "gradient": "ratio", "place": "loss"},
        },
        (
            "cispo: trl's epsilon_high is the cap itself, min(u, cap); write clip_high = cap - 1 here",
            "the mismatch mask applies with vLLM alone; where sampler and trainer are one engine it cannot act",
            "a response without a reward has advantage 0 in trl and keeps its KL and its place in the "
            "denominator; it has neither here",
            "of several reward functions trl adds up those that gave a reward; here a response that lacks one is "
            "without a reward",
            "mask_truncated_completions: write reward.overlong mask, and masked_in_denominator false where the "
            "mean is over tokens",
            "delta: write update.dual_clip; below 1 + epsilon_high the two change places in trl",
            "the KL of a sequence ratio: trl multiplies it by that ratio, here by the token's",
            "an entropy bonus: in trl the mean over tokens whatever the reduction, here with its weights",
            "a constant group: float32 rounding divided by eps in trl, some 1e-4, exactly 0 here",
            "bnpo over several microbatches: the mean of their token means, no reduction here",
        ),
        "trl 1.16.0, GRPOConfig and GRPOTrainer",
    ),
    Preset(
        "verl-0.9",
        {
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-6},
            "update": {**_CLIP, "dual_clip": 3.0, "log_ratio_clamp": 20.0, "reduction": "token-mean"},
            "kl": {"beta": 0.0, **_KL_K3},
        },
        (
            "the overlong penalty is unbounded beyond the limit in verl, -1 here",
            "a group of one response keeps its raw reward as advantage in verl, 0 here",
            "verl holds z of its k3 within +-20 and the estimate within +-10",
        ),
        "verl 0.9.1, core_algos and the default actor configuration",
    ),
    Preset(
        "openrlhf-0.11",
        {
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-9, "advantage_clip": 10.0},
            "update": {**_CLIP, "reduction": "token-mean"},
            "kl": {"beta": 0.01, "estimator": "k1", "gradient": "pathwise", "place": "reward-after"},
        },
        (),
        "OpenRLHF 0.11.2, advantage estimator group_norm",
    ),
    Preset(
        "nemo-rl",
        {
            "advantage": {"baseline": "leave-one-out", "scale": "leave-one-out-std", "ddof": 1, "eps": 1e-6},
            "update": {**_CLIP, "reduction": "token-mean"},
            "kl": {"beta": 0.01, **_KL_K3},
        },
        ("the overlong penalty is unbounded beyond the limit in NeMo-RL, -1 here",),
        "NeMo-RL, snapshot of August 2026",
    ),
    Preset(
        "slime",
        {
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-6},
            "update": {**_CLIP, "reduction": "sequence-mean"},
            "kl": {"beta": 0.0, **_KL_K3},
        },
        (),
        "slime, snapshot of August 2026",
    ),
    Preset(
        "skyrl",
        {
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-6},
            "update": {**_CLIP, "reduction": "token-mean"},
            "kl": {"beta": 0.001, **_KL_K3},
        },
        (),
        "SkyRL, snapshot of August 2026",
    ),
    Preset(
        "dr-grpo",
        {
            "advantage": {"baseline": "mean", "scale": "none"},
            "update": {**_CLIP, "reduction": "constant", "constant": "max-tokens"},
            "kl": {"beta": 0.0, **_KL_K3},
        },
        (),
        "Liu et al. 2025, Understanding R1-Zero-Like Training, and Oat 2025-10",
    ),
    Preset(
        "dapo",
        {
            "reward": {"overlong": "soft", "overlong_buffer": 1},
            "sampling": {"dynamic": "resample", "filter_on": "accuracy"},
            "advantage": {**_GROUP_STD, "ddof": 1, "eps": 1e-6},
            "update": {
                "surrogate": "clip",
                "clip_low": 0.2,
                "clip_high": 0.28,
                "dual_clip": 3.0,
                "reduction": "token-mean",
            },
            "kl": {"beta": 0.0, **_KL_K3},
        },
        (
            "the buffer of the overlong penalty belongs to a task's limit: the paper's is 4096 of 20480 tokens; "
            "the 1 here reaches only responses at the limit, so set reward.overlong_buffer",
            "how often to draw anew: sampling.max_resample is the row's own",
        ),
        "Yu et al. 2025, DAPO, as run by verl's recipe",
    ),
    Preset(
        "open-instruct",
        {
            "sampling": {"dynamic": "drop"},
            "advantage": {"baseline": "mean", "scale": "none"},
            "update": {"surrogate": "clip", "clip_low": 0.2, "clip_high": 0.272, "reduction": "token-mean"},
            "kl": {"beta": 0.05, **_KL_K3},
        },
        (),
        "open-instruct, snapshot of August 2026",
    ),
    Preset(
        "prime-rl",
        {
            "advantage": {"baseline": "mean", "scale": "none"},
            "update": {"surrogate": "clip", "clip_low": "off", "clip_high": "off", "reduction": "token-mean"},
            "kl": {"beta": 0.0},
        },
        (
            "prime-rl drops tokens whose trainer-to-sampler ratio leaves a band and may penalise that log ratio; "
            "here its ratio times the advantage, without the band",
        ),
        "prime-rl, snapshot of August 2026",
    ),
    Preset(
        "tinker",
        {
            "advantage": {"baseline": "mean", "scale": "none"},
            "update": {"surrogate": "clip", "clip_low": "off", "clip_high": "off", "reduction": "sequence-sum"},
            "kl": {"beta": 0.0},
        },
        (),
        "tinker-cookbook, snapshot of August 2026, loss importance_sampling",
    ),
    Preset(
        "rloo",
        {
            "advantage": {"baseline": "leave-one-out", "scale": "none"},
            "update": {"surrogate": "reinforce", "reduction": "sequence-sum"},
            "kl": {"beta": 0.0, "estimator": "k1", "place": "reward-before"},
        },
        (
            "no coefficient of the KL in the reward is standard: set kl.beta",
            "trl's RLOOTrainer clips the ratio of the whole response: its gradient is this one on a round's first "
            "step alone",
        ),
        "Kool et al. 2019; Ahmadian et al. 2024, Back to Basics",
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _PRESETS}


def as_json() -> str:
    """Return all presets as JSON: name, switches, leaves_out, source."""
    return json.dumps([asdict(preset) for preset in _PRESETS], indent=2)


def format_presets() -> str:
    """Return all presets as text of at most 100 columns."""
    return "\n\n".join(_format(preset) for preset in _PRESETS)


def _format(preset: Preset) -> str:
    lines = textwrap.wrap(f"{preset.name}: {preset.source}", 98, subsequent_indent="  ")
    for section, keys in preset.switches.items():
        text = ", ".join(f"{key} {value}" for key, value in keys.items())
        lines += textwrap.wrap(f"{section + ':':<11}{text}", 98, initial_indent="  ", subsequent_indent=" " * 13)
    for reason in preset.leaves_out:
        lines += textwrap.wrap(reason, 98, initial_indent="  leaves out: ", subsequent_indent=" " * 14)
    return "\n".join(lines)
