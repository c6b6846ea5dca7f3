"""Switches that the update of one group leaves open, each refused in a sentence."""

from __future__ import annotations

from grpo_ablate.errors import UserError
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.spec.combinations import refusal
from grpo_ablate.spec.schema import Switches

_DRAWN = ("noise", "random", "per-prompt-affine")


def check(policy: ExactPolicy, switches: Switches, *, sampled: bool) -> None:
    """Raise UserError for switches that go together with nothing here; ``sampled``: for a Monte Carlo estimate."""
    reason = refusal(switches) or _round(switches)
    if reason is None and not sampled and switches.reward.transform in _DRAWN:
        reason = (
            f"reward.transform {switches.reward.transform} draws random numbers, which are not enumerated: "
            "estimate with --monte-carlo N."
        )
    if reason is None:
        reason = _missing(policy, switches)
    if reason is not None:
        raise UserError(f"{policy.source}: {reason}")


def _round(switches: Switches) -> str | None:
    advantage = switches.advantage
    if advantage.baseline == "batch":
        return (
            "advantage.baseline batch compares the prompts of a round, but the exact update is of one group: "
            "use mean, leave-one-out, constant or none."
        )
    if advantage.scale == "batch-std":
        return (
            "advantage.scale batch-std needs the other prompts of a round, but the exact update is of one group: "
            "use group-std, leave-one-out-std or none."
        )
    if advantage.baseline == "ema":
        return (
            "advantage.baseline ema depends on the rounds before, which an expectation over one group does not "
            "have: use constant, with advantage.constant the running mean."
        )
    return None


def _missing(policy: ExactPolicy, switches: Switches) -> str | None:
    for number, prompt in enumerate(policy.prompts):
        if switches.kl.beta > 0 and prompt.reference is None:
            return f"prompt {number}: kl.beta is {switches.kl.beta:g}, but 'reference' is not there."
        if switches.advantage.supervision == "process" and prompt.steps is None:
            return f"prompt {number}: advantage.supervision process needs a 'tree' with 'steps'."
    return None
