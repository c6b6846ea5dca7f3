"""The arithmetic task once more, in plain Python on texts, as a reader of a prompt would grade an answer."""

import torch

from grpo_ablate.spec.schema import ArithmeticTask
from grpo_ablate.tasks.arithmetic import Arithmetic


def make(**keys):
    return Arithmetic(ArithmeticTask(name="arithmetic", **keys))


def running_totals(prompt):
    """Return label -> running total, of a prompt's text."""
    words = prompt.split()
    total, found = int(words[0]), {}
    assert words[-1] == "="
    for label, change in zip(words[1:-1:2], words[2:-1:2], strict=True):
        total += int(change)
        found[label] = total
    return found


def grade(prompt, words):
    """Return reward, final answer (None where there is none) and steps as (0-based end, score)."""
    totals = running_totals(prompt)
    answer = None
    if len(words) >= 2 and words[-1] == "<end>" and words[-2].isdigit():
        answer = int(words[-2])
    steps, used = [], "a"
    for place in range(len(words) - 1):
        label, total = words[place], words[place + 1]
        if label in set("bcdefg") and total.isdigit():
            right = label > used and totals.get(label) == int(total)
            steps.append((place + 1, 1.0 if right else -1.0))
            used = max(used, label)
    return float(answer == list(totals.values())[-1]), answer, steps


def responses(task, texts, groups=1):
    """Return tokens and mask [1, B, G, T] of responses given as words; B = groups."""
    number = {word: token for token, word in enumerate(task.vocabulary)}
    rows = [[number[word] for word in words] for words in texts]
    width = max(1, *(len(row) for row in rows))
    tokens = torch.tensor([row + [task.pad] * (width - len(row)) for row in rows])
    token = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    shape = (1, groups, len(rows) // groups, width)
    return tokens.reshape(shape), token.reshape(shape)


def steps_of(scores, member, prompt, sample):
    """Return the present steps of one response as (end, score)."""
    steps = scores.steps
    at = member, prompt, sample
    present = steps.present[at]
    return list(zip(steps.end[at][present].tolist(), steps.score[at][present].tolist(), strict=True))
