"""A language task of a dozen tokens: the prompt names a token, the response should repeat it and end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_ablate.tasks.protocol import Demonstrations, Scores

WORDS = ("<pad>", "<end>", "say", "and", "a", "b", "c", "d", "e", "f", "g")


class Small:
    """Prompts `say X` or `say X and Y`; the reward is the share of named tokens among the response's.

    ``end_is_pad`` gives both roles to one token. ``shift`` is added to every reward of a member, by its place.
    """

    def __init__(self, *, end_is_pad: bool = False, shift: Tensor | None = None):
        self.vocabulary = WORDS
        self.pad, self.end = (1, 1) if end_is_pad else (0, 1)
        self.shift = shift
        letters = range(4, len(WORDS))
        texts = [[2, one] for one in letters] + [[2, one, 3, two] for one in letters for two in letters]
        self.length = torch.tensor([len(text) for text in texts])
        self.tokens = torch.tensor([text + [self.pad] * (4 - len(text)) for text in texts])
        self.prompt_count = len(texts) - 8
        self.held_out_count = 8
        self.groups = {"even": torch.arange(8) % 2 == 0, "odd": torch.arange(8) % 2 == 1}

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        return self.tokens[prompts], self.length[prompts]

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        named = self.tokens[prompts][:, :, None, None]
        letters = (tokens >= 4) & token
        hit = ((tokens[..., None] == named) & (named >= 4)).any(-1) & letters
        reward = hit.sum(-1).double() / token.sum(-1).clamp(min=1)
        if self.shift is not None:
            reward = reward + self.shift[:, None, None]
        right = (reward >= 0.5).double()
        return Scores(reward, {"accuracy": right}, answers=tokens[..., 0])

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        return {"prompt": prompt, "response": " ".join(WORDS[token] for token in tokens)}

    def demonstrations(self, count: int, key: int) -> Demonstrations:
        chosen = (torch.arange(count) * 7 + key) % self.prompt_count
        length = self.length[chosen]
        tokens = torch.full((count, 6), self.pad)
        tokens[:, :4] = self.tokens[chosen]
        rows = torch.arange(count)
        tokens[rows, length] = self.tokens[chosen][:, 1]
        tokens[rows, length + 1] = self.end
        return Demonstrations(tokens, length, length + 2)
