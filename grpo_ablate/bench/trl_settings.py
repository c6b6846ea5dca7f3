"""Switches as trl's GRPOConfig writes them, or the sentence that says which one trl 1.16 has no word for.

`tests/conformance` shows that trl's own code under these arguments computes this project's advantages, loss and
gradient.
"""

from __future__ import annotations

from typing import Any

from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import Spec, Switches

ENDLESS = 1e30  # trl has no `off`: a bound that no ratio reaches
EPS = 1e-4  # trl's stabiliser, not a setting of its own

# Switches that trl holds at one value, or at few.
HELD: dict[str, tuple[object, ...]] = {
    "reward.transform": ("identity",),
    "reward.overlong": ("off", "mask"),
    "sampling.dynamic": ("off",),
    "sampling.top_k": ("off",),  # trl samples from the best k and scores under the whole law
    "sampling.top_p": (1.0,),
    "advantage.supervision": ("outcome",),
    "advantage.baseline": ("mean",),
    "advantage.scale": ("group-std", "batch-std", "none"),
    "advantage.eps_inside": (False,),
    "advantage.advantage_clip": ("off",),
    "update.surrogate": ("clip", "sequence", "cispo", "soft"),
    "update.log_ratio_clamp": ("off",),
    "update.constant": ("max-tokens",),
    "update.staleness": (0,),
    "kl.estimator": ("k3",),
    "kl.gradient": ("ratio", "pathwise"),
    "kl.place": ("loss",),
    "kl.refresh_reference": (0,),
}
LOSSES = {"sequence-mean": "grpo", "token-mean": "dapo", "constant": "dr_grpo", "sequence-sum": "luspo"}
OWN_LOSSES = {"cispo": ("cispo", "token-mean"), "soft": ("sapo", "sequence-mean")}  # with the reduction they imply
SCALES = {"group-std": "group", "batch-std": "batch", "none": "none"}


def objective_arguments(switches: Switches, where: str) -> dict[str, Any]:
    """Return the arguments that make a GRPOTrainer's advantages and loss those of ``switches``.

    ``use_vllm`` is the caller's: trl corrects a mismatch with vLLM alone.

    Raises:
        UserError: trl cannot express a switch; the sentence begins with ``where`` and names it.
    """
    reason = _refusal(switches)
    if reason is not None:
        raise UserError(f"{where}: trl 1.16 cannot train this: {reason}")
    reward, update, kl = switches.reward, switches.update, switches.kl
    loss, _ = OWN_LOSSES.get(update.surrogate, (LOSSES[update.reduction], ""))
    found: dict[str, Any] = {
        "loss_type": loss,
        "importance_sampling_level": "sequence" if update.surrogate == "sequence" else "token",
        "scale_rewards": SCALES[switches.advantage.scale],
        "mask_truncated_completions": reward.overlong == "mask",
        "max_completion_length": switches.sampling.max_tokens,
        "temperature": switches.sampling.temperature,
        "num_generations": switches.sampling.group_size,
        "num_iterations": update.inner_passes,
        "entropy_coef": update.entropy_coefficient,
        "beta": kl.beta,
        "use_bias_correction_kl": kl.gradient == "ratio",
        "vllm_importance_sampling_correction": update.mismatch != "none",
    }
    if reward.components:
        found["reward_weights"] = list(reward.components.values())
    if update.surrogate in ("clip", "sequence"):
        found["epsilon"] = ENDLESS if update.clip_low == "off" else update.clip_low
        found["epsilon_high"] = ENDLESS if update.clip_high == "off" else update.clip_high
        if update.surrogate == "clip" and update.dual_clip != "off":
            found["delta"] = update.dual_clip
    if update.surrogate == "cispo":
        found["epsilon_high"] = ENDLESS if update.clip_high == "off" else 1.0 + update.clip_high
    if update.surrogate == "soft":
        found |= {"sapo_temperature_pos": update.tau_pos, "sapo_temperature_neg": update.tau_neg}
    if update.mismatch != "none":
        found["vllm_importance_sampling_mode"] = f"{update.mismatch_level}_{update.mismatch}"
        found["vllm_importance_sampling_clip_max"] = update.mismatch_cap
    return found


def training_arguments(spec: Spec, where: str) -> dict[str, Any]:
    """Return the arguments of rounds, steps and optimiser that go with ``objective_arguments``.

    A pass is ``minibatches`` optimiser steps of trl, one microbatch each; trl deals single responses to them, in
    the order of the first pass, this project whole groups in a new order.

    Raises:
        UserError: trl's optimiser or schedule is another.
    """
    update, optimizer, sampling = spec.update, spec.optimizer, spec.sampling
    if optimizer.schedule != "constant" or optimizer.warmup:
        key = "warmup" if optimizer.warmup else "schedule"
        raise UserError(
            f"{where}: trl 1.16 cannot train this: optimizer.{key} is {getattr(optimizer, key)}, and "
            "transformers' schedules count steps from 0; expected schedule constant and warmup 0."
        )
    if spec.rollouts_per_round % update.minibatches:
        raise UserError(
            f"{where}: trl 1.16 cannot train this: {update.minibatches} minibatches do not divide the "
            f"{spec.rollouts_per_round} responses of a round."
        )
    return {
        **optimizer_arguments(spec),
        "max_steps": spec.rounds * spec.steps_per_round,
        "per_device_train_batch_size": spec.rollouts_per_round // update.minibatches,
        "steps_per_generation": update.minibatches,
        "gradient_accumulation_steps": 1,
        "top_k": 0,
        "top_p": sampling.top_p,
        "lr_scheduler_type": "constant",
    }


def optimizer_arguments(spec: Spec) -> dict[str, Any]:
    """Return the optimiser of a spec as transformers' Trainer has it."""
    optimizer = spec.optimizer
    return {
        "optim": "adamw_torch_fused" if optimizer.name == "adamw" else "sgd",
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": 0.0 if optimizer.max_grad_norm == "off" else optimizer.max_grad_norm,
    }


def quiet_arguments(folder: str, seed: int, device: str) -> dict[str, Any]:
    """Return the arguments under which a trainer neither logs, saves nor evaluates, in float32."""
    return {
        "output_dir": folder,
        "seed": seed,
        "shuffle_dataset": False,
        "bf16": False,
        "use_cpu": device == "cpu",
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": device != "cpu",
        "remove_unused_columns": False,
    }


def _refusal(switches: Switches) -> str | None:
    """Return which switch trl cannot express, and what it can."""
    for name, allowed in HELD.items():
        section, key = name.split(".")
        value = getattr(getattr(switches, section), key)
        if value not in allowed and not (section == "kl" and switches.kl.beta == 0):
            return f"{name} is {value}; expected {' or '.join(map(str, allowed))}."
    return _advantage(switches) or _reward(switches) or _update(switches)


def _advantage(switches: Switches) -> str | None:
    advantage = switches.advantage
    if advantage.scale != "none" and (advantage.ddof, advantage.eps) != (1, EPS):
        return (
            f"advantage.ddof is {advantage.ddof} and advantage.eps {advantage.eps:g}; expected 1 and {EPS:g}, "
            "which trl has fixed."
        )
    return None


def _reward(switches: Switches) -> str | None:
    reward, over_tokens = switches.reward, switches.update.reduction == "token-mean"
    if reward.overlong != "mask":
        return None
    if not reward.masked_in_baseline:
        return "reward.masked_in_baseline is false; expected true: truncated responses stay in trl's baseline."
    if reward.masked_in_denominator == over_tokens:
        return (
            f"reward.masked_in_denominator is {str(reward.masked_in_denominator).lower()} under update.reduction "
            f"{switches.update.reduction}; expected {str(not over_tokens).lower()}."
        )
    return None


def _update(switches: Switches) -> str | None:
    update, kl = switches.update, switches.kl
    own, implied = OWN_LOSSES.get(update.surrogate, ("", update.reduction))
    if update.reduction != implied:
        return f"update.reduction is {update.reduction}; expected {implied}, the one of trl's {own}."
    if update.surrogate == "cispo" and update.clip_low != "off":
        return f"update.clip_low is {update.clip_low}; expected off: trl's cispo holds the weight above alone."
    bound = ENDLESS if update.clip_high == "off" else 1.0 + update.clip_high
    if update.surrogate == "clip" and update.dual_clip != "off" and update.dual_clip <= bound:
        return (
            f"update.dual_clip is {update.dual_clip} and update.clip_high {update.clip_high}; expected a "
            "dual_clip above 1 + clip_high, as trl's delta is meant."
        )
    if update.entropy_coefficient and (update.reduction != "token-mean" or update.minibatches > 1):
        return (
            "update.entropy_coefficient is not 0; expected update.reduction token-mean and update.minibatches 1: "
            "trl's bonus is the mean over the tokens of a step."
        )
    if kl.beta > 0 and kl.gradient == "ratio" and update.surrogate == "sequence":
        return "kl.gradient is ratio; expected pathwise: trl takes the ratio of the sequence for it."
    return None
