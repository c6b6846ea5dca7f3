"""Measures of sampled answers, against an enumeration of the samples."""

import itertools

import torch

from grpo_ablate.policies.evaluation import sampled_metrics
from grpo_ablate.tasks.protocol import Scores

RIGHT = torch.tensor([[[1, 0, 0, 1, 0], [0, 0, 0, 0, 0]], [[1, 1, 1, 1, 1], [0, 0, 1, 0, 0]]], dtype=torch.float64)
ANSWERS = torch.tensor([[[4, -1, 7, 4, -1], [2, 2, 2, 2, 2]], [[9, 9, 9, 9, 9], [0, 1, 2, 3, 4]]])


def metrics(answers=ANSWERS, tokens=None):
    return sampled_metrics(Scores(RIGHT / 2, {"accuracy": RIGHT}, answers=answers), tokens)


def test_pass_at_k_is_the_share_of_k_samples_with_a_right_one():
    found = metrics()
    assert [name for name in found if "pass" in name] == [f"eval/pass_at_{k}" for k in (1, 2, 4)]
    for k in (1, 2, 4):
        subsets = list(itertools.combinations(range(5), k))
        expected = torch.stack([RIGHT[..., list(some)].amax(-1) for some in subsets]).mean((0, 2))
        torch.testing.assert_close(found[f"eval/pass_at_{k}"], expected)
    torch.testing.assert_close(found["eval/pass_at_1"], found["eval/accuracy"])


def test_distinct_answers_are_those_of_the_task_where_it_names_them():
    assert metrics(tokens=torch.zeros(2, 2, 5, 3))["eval/distinct_answers"].tolist() == [2.0, 3.0]
    tokens = torch.tensor([[[1, 1, 2, 3, 3], [1, 1, 1, 1, 1]], [[1, 2, 3, 4, 5], [0, 0, 0, 0, 1]]])
    assert metrics(None, tokens)["eval/distinct_answers"].tolist() == [2.0, 3.5]


def test_the_reward_is_the_mean_over_samples_and_prompts():
    assert metrics()["eval/reward"].tolist() == [0.1, 0.3]


def test_answers_without_a_verdict_are_counted_and_left_out_of_the_means():
    """By hand: of the first prompt's answers two rewards are known, of the second's one; the third has none."""
    nan = torch.nan
    right = torch.tensor([[[1, 0, nan], [nan, 1, nan], [nan, nan, nan]]], dtype=torch.float64)
    found = sampled_metrics(Scores(right / 2, {"accuracy": right, "format": 1 - right}), torch.zeros(1, 3, 3))
    assert found["eval/reward"].tolist() == [(0.25 + 0.5) / 2]
    assert found["eval/component_accuracy"].tolist() == [(0.5 + 1) / 2]
    assert found["eval/component_format"].tolist() == [(0.5 + 0) / 2]
    assert found["eval/reward_missing"].tolist() == [6 / 9]
    assert found["eval/accuracy"].tolist() == [(0.5 + 1) / 2]
    assert found["eval/pass_at_1"].tolist() == [(0.5 + 1) / 2]
    assert found["eval/pass_at_2"].tolist() == [1]  # the first prompt alone has two verdicts, one of them right


def test_one_component_is_the_reward_and_no_metric_of_its_own():
    assert not [name for name in metrics() if "component" in name]
    assert metrics()["eval/reward_missing"].tolist() == [0.0, 0.0]
