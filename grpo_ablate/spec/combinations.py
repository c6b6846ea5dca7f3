"""Combinations of switches that mean nothing, each refused in a sentence before anything runs."""

from __future__ import annotations

from grpo_ablate.errors import nearest
from grpo_ablate.spec import text_tasks
from grpo_ablate.spec.schema import Spec, StackedPolicy, Switches

_GROUP_BASELINES = ("mean", "leave-one-out")
_GROUP_SCALES = ("group-std", "leave-one-out-std")


def refusal(spec: Switches) -> str | None:
    """Return why the switches do not go together, naming the keys, or None when they do."""
    for rule in (_advantage, _update, _reward, _process, _kl, text_tasks.switches_refusal):
        reason = rule(spec)
        if reason is not None:
            return reason
    return (_task(spec) or _policy(spec) or _budget(spec)) if isinstance(spec, Spec) else None


def _advantage(spec: Switches) -> str | None:
    advantage, size = spec.advantage, spec.sampling.group_size
    if advantage.function:  # in place of baseline and scale
        return None
    if size == 1 and advantage.supervision == "outcome":
        if advantage.baseline in _GROUP_BASELINES:
            return (
                f"sampling.group_size is 1, but advantage.baseline {advantage.baseline} compares responses of "
                "one group: use a group_size of at least 2, or the baseline none, constant, batch or ema."
            )
        if advantage.scale in _GROUP_SCALES:
            return (
                f"sampling.group_size is 1, but advantage.scale {advantage.scale} needs the spread of a group: "
                "use a group_size of at least 2, or the scale none or batch-std."
            )
    if advantage.supervision == "process":
        if advantage.baseline in ("leave-one-out", "batch", "ema"):
            return (
                f"advantage.baseline {advantage.baseline} does not go with advantage.supervision process, whose "
                "step scores are pooled over the group: use the baseline mean, none or constant."
            )
        if advantage.scale in ("batch-std", "leave-one-out-std"):
            return (
                f"advantage.scale {advantage.scale} does not go with advantage.supervision process: "
                "use the scale group-std or none."
            )
    return None


def _update(spec: Switches) -> str | None:
    update = spec.update
    if update.surrogate in ("sequence", "geometric") and not update.force:
        if update.reduction != "sequence-mean":
            return (
                f"update.surrogate {update.surrogate} gives one value per response, which update.reduction "
                f"{update.reduction} would weight by length: use sequence-mean, or set update.force: true."
            )
        if spec.advantage.supervision == "process":
            return (
                f"update.surrogate {update.surrogate} gives one value per response, but advantage.supervision "
                "process gives one advantage per token: use outcome, or set update.force: true."
            )
        if spec.kl.beta > 0 and spec.kl.place == "reward-after":
            return (
                f"update.surrogate {update.surrogate} gives one value per response, but kl.place reward-after "
                "gives one advantage per token: use loss or reward-before, or set update.force: true."
            )
    if update.surrogate in ("clip", "sequence") and update.clip_low != "off" and update.clip_low >= 1:
        return f"update.clip_low is {update.clip_low}, but a ratio is never below 0: use less than 1, or off."
    return None


def _reward(spec: Switches) -> str | None:
    reward = spec.reward
    if reward.scale_low > reward.scale_high:
        return f"reward.scale_low {reward.scale_low} is above reward.scale_high {reward.scale_high}."
    if reward.shift_low > reward.shift_high:
        return f"reward.shift_low {reward.shift_low} is above reward.shift_high {reward.shift_high}."
    if reward.clip_low != "off" and reward.clip_high != "off" and reward.clip_low > reward.clip_high:
        return f"reward.clip_low {reward.clip_low} is above reward.clip_high {reward.clip_high}."
    if reward.overlong == "soft" and not 0 < reward.overlong_buffer <= spec.sampling.max_tokens:
        return (
            f"reward.overlong soft needs a reward.overlong_buffer between 1 and sampling.max_tokens "
            f"({spec.sampling.max_tokens}), found {reward.overlong_buffer}."
        )
    return None


def _process(spec: Switches) -> str | None:
    if spec.advantage.supervision != "process":
        return None
    if spec.reward.transform != "identity":
        return (
            f"reward.transform {spec.reward.transform} acts on response rewards, which advantage.supervision "
            "process does not read: use identity."
        )
    if spec.reward.overlong == "soft":
        return (
            "reward.overlong soft acts on response rewards, which advantage.supervision process does not read: "
            "use off or mask."
        )
    return None


def _kl(spec: Switches) -> str | None:
    if spec.kl.place == "reward-before" and spec.kl.beta > 0 and spec.advantage.supervision == "process":
        return (
            "kl.place reward-before puts the penalty into response rewards, which advantage.supervision process "
            "does not read: use loss or reward-after."
        )
    if spec.kl.place != "loss" and spec.kl.beta > 0 and spec.kl.refresh_reference and spec.update.staleness:
        return (
            f"kl.refresh_reference {spec.kl.refresh_reference} with kl.place {spec.kl.place} and update.staleness "
            f"{spec.update.staleness} would measure responses against another reference than that of their round: "
            "use staleness 0, or the place loss."
        )
    return None


def _task(spec: Spec) -> str | None:
    reason = text_tasks.refusal(spec)
    if reason is not None:
        return reason
    known = text_tasks.components(spec)
    for name in spec.reward.components:
        if name not in known:
            return (
                f"reward.components: the task {spec.task.name} has no component '{name}'; {nearest(name, known)}"
            )
    if spec.sampling.filter_on not in (*known, "reward"):
        return (
            f"sampling.filter_on: the task {spec.task.name} has no component '{spec.sampling.filter_on}'; "
            f"{nearest(spec.sampling.filter_on, (*known, 'reward'))}"
        )
    if spec.advantage.supervision == "process" and not spec.task.has_steps:
        return f"advantage.supervision process needs step scores, which the task {spec.task.name} does not have."
    return None


def _budget(spec: Spec) -> str | None:
    per_round, total = spec.rollouts_per_round, spec.budget.rollouts
    prompts = spec.sampling.prompts
    if total % per_round:
        nearest = max(1, round(total / per_round)) * per_round
        return (
            f"budget.rollouts {total} is not a multiple of the {per_round} responses of a round "
            f"(sampling.prompts {prompts} x sampling.group_size {spec.sampling.group_size}); "
            f"the nearest that is: {nearest}."
        )
    pool = spec.task.pool_size
    if spec.sampling.prompt_order == "each-once" and 0 < pool < prompts:  # 0: not counted yet
        return (
            f"sampling.prompts is {prompts}, but the task has {pool} prompts and sampling.prompt_order each-once "
            "takes each at most once per round: use cycle or iid."
        )
    if spec.update.minibatches > prompts:
        return (
            f"update.minibatches is {spec.update.minibatches}, but minibatches divide the {prompts} prompts of a "
            "round by whole groups."
        )
    if spec.update.staleness >= spec.rounds:
        return f"update.staleness {spec.update.staleness} leaves no round of {spec.rounds} to train on."
    return None


def architecture_refusal(policy: StackedPolicy) -> str | None:
    """Return why no transformer has these sizes, naming the keys, or None when one has."""
    if policy.heads % policy.kv_heads:
        return f"policy.kv_heads {policy.kv_heads} does not divide policy.heads {policy.heads}."
    if policy.head_size % 2:
        return f"policy.head_size is {policy.head_size}, but rotary positions need an even number."
    return None


def _policy(spec: Spec) -> str | None:
    policy = spec.policy
    if policy.name == "tabular":
        if spec.task.needs_tokens:
            return f"policy.name tabular cannot write the responses of the task {spec.task.name}: use stacked."
        if spec.sampling.max_tokens != 1:
            return (
                f"sampling.max_tokens is {spec.sampling.max_tokens}, but a tabular policy's response is one token."
            )
        return None
    if not spec.task.needs_tokens:
        return f"policy.name {policy.name} writes tokens, but the task {spec.task.name} chooses: use tabular."
    reason = architecture_refusal(policy) if isinstance(policy, StackedPolicy) else None
    if reason is not None:
        return reason
    if "exact" in (spec.evaluation.samples, spec.evaluation.final_samples):
        return f"evaluation.samples exact needs a closed form, which no {policy.name} policy has: use a number."
    return None
