"""A verifier and an advantage function of one's own, as a row names them: ``examples.own_functions:few_words``."""

from __future__ import annotations

from typing import Any

import torch


def few_words(response: str, answer: str, row: dict[str, Any]) -> float:
    """Right where the answer is in the response, and the better the fewer words there are.

    A verifier gets the response (or what stands where ``task.format`` puts the answer), the final answer, and the
    whole row of the data file. Here a row may say in ``words`` what half the reward is paid for.

    >>> few_words("Paris", "Paris", {"words": 1}), few_words("Lyon", "Paris", {})
    (0.5, 0.0)
    """
    right = answer.casefold() in response.casefold()
    return right / (1 + len(response.split()) / row.get("words", 20))


def against_the_median(rewards: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Each reward minus the median of its group, in place of baseline and scale.

    An advantage function gets one seed's rewards, float64 [prompts, group], NaN where there is none, and which
    there are, bool of that shape; it returns an advantage for each.

    >>> against_the_median(torch.tensor([[0.0, 1.0, 5.0]]), torch.ones(1, 3, dtype=torch.bool))
    tensor([[-1.,  0.,  4.]])
    """
    return rewards - rewards.nanmedian(-1, keepdim=True).values
