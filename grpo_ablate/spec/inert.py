"""Switches that cannot act in the row that sets them, and why; rows that differ only by these are twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.schema import JsonlTask, Spec


@dataclass(frozen=True)
class Inert:
    """A switch set to a value that changes nothing, and the reason in words."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Rule:
    """Keys that cannot act while ``holds``."""

    keys: tuple[str, ...]
    holds: Callable[[Spec], bool]
    reason: str


def _one_step(spec: Spec) -> bool:
    return spec.steps_per_round == 1 and spec.update.staleness == 0


def _transform_is_not(name: str) -> Callable[[Spec], bool]:
    return lambda spec: spec.reward.transform != name


def _surrogate_is(name: str) -> Callable[[Spec], bool]:
    return lambda spec: spec.update.surrogate == name


def _verifier_reads_no(option: str) -> Callable[[Spec], bool]:
    readers = {"pattern": ("regular-expression",), "tolerance": ("numeric", "last-number")}[option]
    return lambda spec: isinstance(spec.task, JsonlTask) and spec.task.verifier not in readers


_TRANSFORM_KEYS = {
    "affine": ("scale", "shift"),
    "per-prompt-affine": ("scale_low", "scale_high", "shift_low", "shift_high"),
    "power": ("power",),
    "clip": ("clip_low", "clip_high"),
    "noise": ("noise_std",),
    "constant": ("constant",),
}
_SURROGATE_KEYS = {
    "clip": ("clip_low", "clip_high", "dual_clip"),
    "reinforce": (),
    "cispo": ("clip_low", "clip_high"),
    "sequence": ("clip_low", "clip_high"),
    "geometric": ("clip_low", "clip_high"),
    "soft": ("tau_pos", "tau_neg"),
}

# Order matters: a later rule sees the spec with the earlier rules' keys already neutral.
RULES: tuple[Rule, ...] = (
    *(
        Rule(
            tuple(f"reward.{key}" for key in keys),
            _transform_is_not(name),
            f"only the transform {name} reads it",
        )
        for name, keys in _TRANSFORM_KEYS.items()
    ),
    Rule(
        (
            "reward.model",
            "reward.model_digest",
            "reward.model_dtype",
            "reward.refresh_model",
            "reward.refresh_steps",
            "reward.refresh_learning_rate",
        ),
        lambda s: s.reward.source != "model",
        "only the source model reads it",
    ),
    Rule(
        ("reward.refresh_steps", "reward.refresh_learning_rate"),
        lambda s: s.reward.refresh_model == 0,
        "the reward model is never refreshed",
    ),
    Rule(("task.pattern",), _verifier_reads_no("pattern"), "only the verifier regular-expression reads it"),
    Rule(
        ("task.tolerance",), _verifier_reads_no("tolerance"), "only the verifiers numeric and last-number read it"
    ),
    Rule(
        ("task.held_out_share",),
        lambda s: s.task.name == "jsonl" and s.task.held_out_path != "",
        "held-out questions have a file of their own",
    ),
    Rule(
        ("task.shots",),
        lambda s: s.task.name == "reasoning-gym" and s.task.form == "chat",
        "a chat prompt shows no worked answers",
    ),
    Rule(("reward.overlong_buffer",), lambda s: s.reward.overlong != "soft", "only the overlong soft reads it"),
    Rule(
        ("reward.masked_in_baseline", "reward.masked_in_denominator"),
        lambda s: s.reward.overlong != "mask",
        "only the overlong mask reads it",
    ),
    Rule(("sampling.engine",), lambda s: s.policy.name in ("tabular", "stacked"), "the policy samples by itself"),
    Rule(
        ("policy.vllm",),
        lambda s: s.policy.name == "huggingface" and s.sampling.engine != "vllm",
        "only the engine vllm reads it",
    ),
    Rule(
        ("evaluation.final_evaluations",),
        lambda s: s.evaluation.final_samples == "same",
        "every evaluation draws the same number of samples",
    ),
    Rule(
        ("sampling.max_resample", "sampling.on_exhausted"),
        lambda s: s.sampling.dynamic == "off",
        "dynamic sampling is off",
    ),
    Rule(
        ("sampling.max_resample", "sampling.on_exhausted"),
        lambda s: s.sampling.dynamic == "drop",
        "dynamic drop draws nothing anew",
    ),
    Rule(
        (
            "advantage.baseline",
            "advantage.constant",
            "advantage.ema_decay",
            "advantage.ema_initial",
            "advantage.scale",
            "advantage.ddof",
            "advantage.eps",
            "advantage.eps_inside",
        ),
        lambda s: s.advantage.function != "",
        "advantage.function is in its place",
    ),
    Rule(
        ("advantage.constant",),
        lambda s: s.advantage.baseline != "constant",
        "only the baseline constant reads it",
    ),
    Rule(
        ("advantage.ema_decay", "advantage.ema_initial"),
        lambda s: s.advantage.baseline != "ema",
        "only the baseline ema reads it",
    ),
    Rule(
        ("advantage.ddof", "advantage.eps", "advantage.eps_inside"),
        lambda s: s.advantage.scale == "none",
        "nothing is divided with scale none",
    ),
    Rule(
        ("advantage.eps_inside",),
        lambda s: s.advantage.eps == 0,
        "with eps 0 inside and outside the root are the same",
    ),
    Rule(("kl.estimator",), lambda s: s.kl.beta == 0, "beta is 0"),
    Rule(("kl.gradient",), lambda s: s.kl.beta == 0, "beta is 0"),
    Rule(("kl.place",), lambda s: s.kl.beta == 0, "beta is 0"),
    Rule(("kl.refresh_reference",), lambda s: s.kl.beta == 0, "beta is 0"),
    Rule(
        ("kl.gradient",),
        lambda s: s.kl.place != "loss",
        "a penalty in the reward carries no gradient of its own",
    ),
    Rule(
        ("kl.gradient",),
        lambda s: s.kl.estimator == "exact",
        "exact KL is differentiated as a function of the policy",
    ),
    Rule(
        ("kl.beta", "kl.estimator", "kl.place"),
        lambda s: (
            s.kl.place == "reward-before"
            and s.kl.estimator == "exact"
            and s.sampling.max_tokens == 1
            and s.advantage.baseline in ("mean", "leave-one-out")
            and s.advantage.scale != "batch-std"  # the constants of the groups differ
            and s.kl.refresh_reference == 0  # the measured KL is to the last reference
        ),
        "with one token, exact KL in the reward is one constant per group, which the group's mean removes",
    ),
    *(
        Rule(
            tuple(
                f"update.{key}"
                for key in ("clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg")
                if key not in keys
            ),
            _surrogate_is(name),
            f"the surrogate {name} does not read it",
        )
        for name, keys in _SURROGATE_KEYS.items()
    ),
    Rule(
        ("update.clip_low", "update.clip_high", "update.dual_clip"),
        lambda s: s.update.surrogate in ("clip", "cispo", "sequence", "geometric") and _one_step(s),
        "with one optimiser step per round every ratio is 1, so clipping cannot act",
    ),
    Rule(
        ("update.log_ratio_clamp",),
        _one_step,
        "with one optimiser step per round every log ratio is 0",
    ),
    Rule(
        ("update.constant",),
        lambda s: s.update.reduction != "constant",
        "only the reduction constant reads it",
    ),
    Rule(
        ("update.reduction", "update.constant"),
        lambda s: s.sampling.max_tokens == 1 and s.update.constant in (1, "max-tokens"),
        "responses have one token, so every reduction gives it the same weight",
    ),
    Rule(
        ("update.mismatch", "update.mismatch_level", "update.mismatch_cap"),
        lambda s: s.sampling.engine != "vllm",
        "sampler and trainer are one engine",
    ),
    Rule(
        ("update.mismatch_level", "update.mismatch_cap"),
        lambda s: s.update.mismatch == "none",
        "mismatch is none",
    ),
    Rule(("optimizer.betas",), lambda s: s.optimizer.name == "sgd", "plain SGD keeps no moments"),
)


def neutralised(spec: Spec) -> tuple[Spec, tuple[Inert, ...]]:
    """Return the spec with every switch that cannot act at its neutral value, and the list of those switches."""
    found: dict[str, Inert] = {}
    for rule in RULES:
        if not rule.holds(spec):
            continue
        changes: dict[str, dict[str, Any]] = {}
        for key in rule.keys:
            section, name = key.split(".")
            record = getattr(spec, section)
            value, neutral = getattr(record, name), type(record).model_fields[name].default
            if value != neutral:
                changes.setdefault(section, {})[name] = neutral
                found.setdefault(key, Inert(key, value, rule.reason))
        spec = replace(spec, changes)
    return spec, tuple(found.values())


def notes(spec: Spec) -> tuple[str, ...]:
    """Return what a reader of this row's numbers should know: step sizes that a switch changes on the side."""
    size, advantage = spec.sampling.group_size, spec.advantage
    said = []
    if advantage.scale == "group-std" and advantage.ddof == 1 and size > 1:
        said.append(
            f"ddof 1 multiplies every advantage by sqrt((G-1)/G) = {((size - 1) / size) ** 0.5:.4f} "
            f"at G = {size}: a change of step size before anything else happens"
        )
    if advantage.baseline == "leave-one-out" and advantage.scale == "none" and size > 1:
        said.append(
            f"leave-one-out is mean-only times G/(G-1) = {size / (size - 1):.4f} at G = {size}: "
            "the same direction, a larger step"
        )
    if spec.sampling.dynamic != "off":
        said.append("averaging over accepted groups only multiplies the update by about 1/a, a the accepted share")
    return tuple(said)
