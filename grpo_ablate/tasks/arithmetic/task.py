"""The arithmetic task as the loop and a language model see it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.spec.schema import ArithmeticTask
from grpo_ablate.tasks.arithmetic.demonstrations import demonstrations
from grpo_ablate.tasks.arithmetic.grader import final_answers, step_scores
from grpo_ablate.tasks.arithmetic.prompts import Chains, pools, prompt_tokens, texts
from grpo_ablate.tasks.arithmetic.words import END, PAD, VOCABULARY
from grpo_ablate.tasks.pools import Pool
from grpo_ablate.tasks.protocol import Demonstrations, Scores


class Arithmetic:
    """Chains of 2 to 7 operands; the reward is 1 for a right final answer and 0 otherwise, steps score +1 or -1.

    The held-out prompts are measured apart by their number of operands: groups ``operands-3`` and so on.
    """

    vocabulary, end, pad = VOCABULARY, END, PAD

    def __init__(self, settings: ArithmeticTask):
        self.prompt_count, self.held_out_count = settings.train_prompts, settings.held_out
        found = pools(settings.operands, {Pool.TRAIN: settings.train_prompts, Pool.HELD_OUT: settings.held_out})
        train, held_out = found[Pool.TRAIN], found[Pool.HELD_OUT]
        both = Chains(*(torch.cat([getattr(train, f.name), getattr(held_out, f.name)]) for f in fields(Chains)))
        self.running = both.totals
        self.answers = both.totals.gather(1, both.operands[:, None] - 1)[:, 0]
        self.tokens, self.lengths = prompt_tokens(both)
        self.groups = {
            f"operands-{kind}": held_out.operands == kind for kind in held_out.operands.unique().tolist()
        }

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens int64 [..., 14] of ``prompts``, padded on the right, and their lengths."""
        here = prompts.to(self.tokens.device)
        return self.tokens[here].to(prompts.device), self.lengths[here].to(prompts.device)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Verify the final answers of responses [M, B, G, T] to ``prompts`` [M, B] and score their steps."""
        here = prompts.to(self.running.device)
        answers = final_answers(tokens, token)
        right = (answers == self.answers[here].to(tokens.device)[..., None]).double()
        steps = step_scores(self.running[here].to(tokens.device), tokens, token)
        return Scores(right, {"accuracy": right}, steps, answers)

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return prompt, right answer and response in words."""
        row = slice(prompt, prompt + 1)
        return {
            "prompt": texts(self.tokens[row], self.lengths[row])[0],
            "answer": str(int(self.answers[prompt])),
            "response": " ".join(VOCABULARY[token] for token in tokens),
        }

    def demonstrations(self, count: int, key: int) -> Demonstrations:
        """Return ``count`` noisy demonstrations with 3 to 7 operands, a function of ``key``."""
        return demonstrations(count, key)
