"""The translation task as the loop and a language model see it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_ablate.spec.schema import TranslationTask
from grpo_ablate.tasks.pools import Pool
from grpo_ablate.tasks.protocol import Demonstrations, Scores
from grpo_ablate.tasks.translation.demonstrations import demonstrations
from grpo_ablate.tasks.translation.grader import grade
from grpo_ablate.tasks.translation.lexicon import TARGETS
from grpo_ablate.tasks.translation.prompts import pools
from grpo_ablate.tasks.translation.words import END, NUMBER, PAD, VOCABULARY, as_text


class Translation:
    """English sentences into French, a word a token, or Spanish, two characters a token; the reward is chrF.

    The component ``accuracy`` is 1 for the reference itself. Held-out groups: ``french`` and ``spanish``.
    """

    vocabulary, end, pad = VOCABULARY, END, PAD

    def __init__(self, settings: TranslationTask):
        self.prompt_count, self.held_out_count = settings.train_prompts, settings.held_out
        found = pools({Pool.TRAIN: settings.train_prompts, Pool.HELD_OUT: settings.held_out})
        self.prompts = found[Pool.TRAIN] + found[Pool.HELD_OUT]
        self.references = [as_text(prompt.reference) for prompt in self.prompts]
        words = [[NUMBER[word] for word in prompt.words] for prompt in self.prompts]
        width = max(len(row) for row in words)
        self.tokens = torch.tensor([row + [PAD] * (width - len(row)) for row in words])
        self.lengths = torch.tensor([len(row) for row in words])
        targets = torch.tensor([prompt.target for prompt in found[Pool.HELD_OUT]])
        self.groups = {name.lower(): targets == target for target, name in enumerate(TARGETS)}

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens int64 [..., P] of ``prompts``, padded on the right, and their lengths."""
        here = prompts.to(self.tokens.device)
        return self.tokens[here].to(prompts.device), self.lengths[here].to(prompts.device)

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Grade responses [M, B, G, T] to ``prompts`` [M, B]; two answers are the same when every token is."""
        grades = grade(self.references, prompts, tokens, token)
        return Scores(grades.chrf, {"chrf": grades.chrf, "accuracy": grades.exact}, answers=grades.answers)

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return prompt, target language, reference and response in words."""
        ended = tokens[-1:] == [END]
        said = as_text([VOCABULARY[token] for token in (tokens[:-1] if ended else tokens)])
        return {
            "prompt": " ".join(self.prompts[prompt].words),
            "target": TARGETS[self.prompts[prompt].target],
            "reference": self.references[prompt],
            "response": f"{said} {VOCABULARY[END]}".strip() if ended else said,
        }

    def demonstrations(self, count: int, key: int) -> Demonstrations:
        """Return ``count`` noisy demonstrations, a function of ``key``."""
        return demonstrations(count, key)
