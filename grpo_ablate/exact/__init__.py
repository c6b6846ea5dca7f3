"""The exact laboratory: what a row does in expectation, by enumeration of every group, with no sampling at all."""

from grpo_ablate.exact.dynamics import UpdateField, along, iterate
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.policy_file import load, parse
from grpo_ablate.exact.quantities import (
    accepted_law,
    expected_reward,
    kl_gradient,
    normalised_mean_gradient,
    population_limit,
    push,
    reference_kl,
    response_laws,
    reward_gradient,
    scores,
    variance_minimising_baseline,
)
from grpo_ablate.exact.report import run, with_group_size
from grpo_ablate.exact.update import ExactUpdate, expected_update, monte_carlo

__all__ = [
    "ExactPolicy",
    "ExactUpdate",
    "UpdateField",
    "accepted_law",
    "along",
    "expected_reward",
    "expected_update",
    "iterate",
    "kl_gradient",
    "load",
    "monte_carlo",
    "normalised_mean_gradient",
    "parse",
    "population_limit",
    "push",
    "reference_kl",
    "response_laws",
    "reward_gradient",
    "run",
    "scores",
    "variance_minimising_baseline",
    "with_group_size",
]
