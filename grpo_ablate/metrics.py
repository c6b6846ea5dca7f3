"""Every published metric with its meaning and denominator, and how sums become numbers.

A metric is kept as a numerator and a denominator, summed over rounds and divided once, never averaged as a
mean of unequal parts. Runs of other trainers can be brought in under these names.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ablate.algorithm.records import Metric

Denominator = Literal["token", "sequence", "group", "update", "extreme", "evaluation", "derived"]


@dataclass(frozen=True)
class Meaning:
    """What a metric says and what it is divided by."""

    name: str
    denominator: Denominator
    meaning: str
    finish: Literal["none", "root", "largest", "smallest"] = "none"  # root: square root after the division


_PUBLISHED = (
    Meaning("eval/reward", "evaluation", "mean raw task reward on held-out prompts"),
    Meaning("eval/accuracy", "evaluation", "share of sampled answers that are right"),
    Meaning("eval/greedy_accuracy", "evaluation", "share of prompts whose most probable answer is right"),
    Meaning(
        "eval/pass_at_k", "evaluation", "chance that one of k answers is right (unbiased estimator; k in the name)"
    ),
    Meaning("eval/distinct_answers", "evaluation", "distinct answers per prompt"),
    Meaning(
        "eval/entropy", "evaluation", "exact entropy of the policy, mean over held-out prompts or their tokens"
    ),
    Meaning(
        "eval/kl",
        "evaluation",
        "KL(policy, reference) of a response: exact at each prefix, summed over its tokens",
    ),
    Meaning("eval/length", "evaluation", "scored tokens of a sampled answer"),
    Meaning("eval/truncated", "evaluation", "share of sampled answers stopped by the limit"),
    Meaning("eval/reward_group", "evaluation", "reward on one group of the held-out prompts, as reward_french"),
    Meaning(
        "eval/component",
        "evaluation",
        "mean of one reward component, as component_format, where a task has several; without missing ones",
    ),
    Meaning("eval/reward_missing", "evaluation", "share of sampled answers without a reward"),
    Meaning("eval/length_group", "evaluation", "tokens of a sampled answer to one group of the held-out prompts"),
    Meaning("train/loss", "update", "policy, KL and entropy parts together, as minimised"),
    Meaning("train/policy_loss", "update", "minus the weighted surrogate"),
    Meaning("train/kl_loss", "update", "beta times the weighted KL penalty; 0 when the KL is in the reward"),
    Meaning("train/entropy_loss", "update", "minus the entropy coefficient times the weighted entropy"),
    Meaning("train/gradient_norm", "update", "norm of the gradient before any clipping by norm"),
    Meaning("train/reward_raw", "sequence", "raw task reward of every generated response, rejected ones included"),
    Meaning("train/reward_shaped", "sequence", "reward that entered the group statistics, trained groups only"),
    Meaning("train/reward_missing", "sequence", "share of generated responses without a reward"),
    Meaning(
        "train/component",
        "sequence",
        "one reward component of every generated response, as component_format, where a task has several",
    ),
    Meaning("train/groups_all_wrong", "group", "share of generated groups whose raw rewards are all exactly 0"),
    Meaning("train/groups_all_right", "group", "share of generated groups whose raw rewards are all exactly 1"),
    Meaning("train/groups_constant_other", "group", "share of generated groups all equal to another value"),
    Meaning(
        "train/groups_constant_predicted",
        "group",
        "share of all-wrong and all-right groups that p^G + (1-p)^G predicts from the round's success rate p; "
        "binary rewards only",
    ),
    Meaning("train/groups_accepted", "group", "share of generated groups that the filter let through"),
    Meaning("train/groups_without_steps", "group", "share of trained groups without any step score"),
    Meaning("train/rollouts_discarded", "sequence", "share of generated responses in rejected groups"),
    Meaning("train/tokens_discarded", "token", "share of generated tokens in rejected groups"),
    Meaning("train/length", "sequence", "scored tokens of a generated response"),
    Meaning("train/length_std", "sequence", "spread of the lengths within a round", "root"),
    Meaning("train/length_right", "sequence", "length of responses whose raw reward is exactly 1"),
    Meaning("train/length_wrong", "sequence", "length of responses whose raw reward is exactly 0"),
    Meaning("train/truncated", "sequence", "share of generated responses stopped by the limit"),
    Meaning("train/entropy", "token", "exact entropy of the current policy at each trained token's prefix"),
    Meaning("train/kl_reference", "token", "KL(policy, reference): ratio times the k3 estimate"),
    Meaning("train/kl_reference_exact", "token", "KL(policy, reference), exact at each prefix"),
    Meaning("train/kl_old", "token", "KL(old policy, policy): the k3 estimate on the old policy's samples"),
    Meaning("train/ratio", "token", "ratio of the surrogate before any clip; a sequence ratio counts per token"),
    Meaning("train/ratio_max", "extreme", "largest ratio of the surrogate", "largest"),
    Meaning("train/ratio_min", "extreme", "smallest ratio of the surrogate", "smallest"),
    Meaning("train/ratio_square", "token", "square of the ratio"),
    Meaning("train/effective_sample_size", "derived", "ratio squared over ratio_square: 1 for equal ratios"),
    Meaning("train/clip_fraction_high", "token", "share of tokens held at the upper bound, that branch active"),
    Meaning("train/clip_fraction_low", "token", "share of tokens held at the lower bound, that branch active"),
    Meaning("train/clip_fraction_dual", "token", "share of tokens held by dual clip"),
    Meaning("train/no_gradient", "token", "share of tokens whose policy term has no gradient, for any reason"),
    Meaning("train/mismatch", "token", "trainer over sampler probability at the switch's level, before any cap"),
    Meaning("train/mismatch_max", "extreme", "the largest of these", "largest"),
    Meaning("train/mismatch_over_cap", "token", "share of tokens above update.mismatch_cap"),
    Meaning(
        "train/engine_gap",
        "token",
        "distance of trainer's and engine's log-probability of a generated token; pretrained models only, as are "
        "the next three",
    ),
    Meaning("train/engine_gap_max", "extreme", "the largest of these distances", "largest"),
    Meaning(
        "train/engine_sample_size",
        "token",
        "effective sample size per token of weights that turn the engine's law into the trainer's; 1: equal laws",
    ),
    Meaning("train/engine_kl", "token", "KL(engine, trainer) at a generated token: the k3 estimate"),
)

METRICS: dict[str, Meaning] = {meaning.name: meaning for meaning in _PUBLISHED}
COMPONENT = "train/component"  # a family: the component's name follows after an underscore


def meaning_of(name: str) -> Meaning:
    """Return what a metric of training means; KeyError for a name that is not published.

    >>> meaning_of("train/component_format").name
    'train/component'
    """
    return METRICS[COMPONENT if name.startswith(f"{COMPONENT}_") else name]


def _joined(name: str, first: Metric, second: Metric, *, one_update: bool) -> Metric:
    import torch

    from grpo_ablate.algorithm.records import Metric

    finish = meaning_of(name).finish
    count = first.count + second.count
    if one_update and meaning_of(name).denominator == "update":
        count = torch.maximum(first.count, second.count)
    if finish == "largest":
        return Metric(torch.maximum(first.total, second.total), count)
    if finish == "smallest":
        return Metric(torch.minimum(first.total, second.total), count)
    return Metric(first.total + second.total, count)


def combine(
    first: Mapping[str, Metric], second: Mapping[str, Metric], *, one_update: bool = False
) -> dict[str, Metric]:
    """Return the metrics of two stretches of training as those of one.

    ``one_update`` joins microbatches: parts of the same optimiser step, whose losses add up to one loss.
    """
    result = {**first, **second}
    for name in first.keys() & second.keys():
        result[name] = _joined(name, first[name], second[name], one_update=one_update)
    return {name: result[name] for name in sorted(result)}


def divide(metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
    """Return each metric's number, float64 [M], by name in order; NaN where nothing was counted."""
    import torch

    values = {}
    for name, metric in metrics.items():
        finish = meaning_of(name).finish
        value = metric.total if finish in ("largest", "smallest") else metric.total / metric.count
        value = torch.where(metric.count > 0, value, torch.nan)
        values[name] = value.sqrt() if finish == "root" else value
    if "train/ratio" in values and "train/ratio_square" in values:
        values["train/effective_sample_size"] = values["train/ratio"].square() / values["train/ratio_square"]
    return dict(sorted(values.items()))


def known(name: str) -> bool:
    """Whether a metric is published under this name; the k, group or component in a name may be any.

    >>> known("eval/pass_at_4"), known("eval/pass_at_k4"), known("eval/reward_french")
    (True, False, True)
    """
    families = r"eval/(pass_at_[1-9][0-9]*|(reward|length)_[a-z0-9-]+)|(train|eval)/component_[a-z0-9-]+"
    return name in METRICS or re.fullmatch(families, name) is not None


def names() -> tuple[str, ...]:
    """Return the published names in their order."""
    return tuple(METRICS)


def as_json() -> str:
    """Return the published metrics as JSON."""
    return json.dumps([asdict(meaning) for meaning in _PUBLISHED], indent=2)


def as_text(width: int = 100) -> str:
    """Return the published metrics as a table of name, denominator and meaning."""
    names = max(map(len, METRICS))
    kinds = max(len(meaning.denominator) for meaning in _PUBLISHED)
    indent = " " * (names + kinds + 4)
    lines: list[str] = []
    for row in _PUBLISHED:
        first = f"{row.name:<{names}}  {row.denominator:<{kinds}}  "
        lines += textwrap.wrap(row.meaning, width, initial_indent=first, subsequent_indent=indent)
    return "\n".join(lines)
