"""Choose one of a prompt's fixed candidates; the reward is the quality of the candidate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_ablate.spec.schema import SelectionTask
from grpo_ablate.tasks.protocol import Scores


class Selection:
    """P prompts with up to C candidates each.

    ``qualities`` float64 [P, C] and ``valid`` bool [P, C]; a prompt with fewer candidates is padded
    with candidates that do not exist. The reward has two components: ``quality`` and ``accuracy``, which is
    1 for a candidate of the prompt's highest quality and 0 for the others.
    """

    def __init__(self, settings: SelectionTask):
        self.prompts = settings.prompts
        self.prompt_count = len(settings.prompts)
        width = max(len(prompt.candidates) for prompt in settings.prompts)
        qualities = torch.full((self.prompt_count, width), -torch.inf, dtype=torch.float64)
        for row, prompt in enumerate(settings.prompts):
            for column, candidate in enumerate(prompt.candidates):
                qualities[row, column] = candidate.quality
        self.valid = qualities > -torch.inf
        self.best = qualities == qualities.amax(-1, keepdim=True)
        self.qualities = qualities.where(self.valid, 0.0)
        self._accuracy = self.best.double()

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Return the quality of each chosen candidate; ``tokens`` [M, B, G, 1] are candidate numbers."""
        where = prompts[:, :, None], tokens[..., 0]
        quality = self.qualities[where]
        return Scores(quality, {"quality": quality, "accuracy": self._accuracy[where]})

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return source, target language and the chosen candidate's text."""
        record = self.prompts[prompt]
        return {
            "prompt": record.source,
            "target": record.target,
            "response": record.candidates[tokens[0]].text,
        }
