"""From responses to verdicts: the format, the place of the answer, and a verifier under its time limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from grpo_ablate.tasks.text.places import FORMATS
from grpo_ablate.tasks.text.protocol import Fault, Judged, Verdict
from grpo_ablate.tasks.text.supervised import Supervised


class Judge:
    """A verifier, asked once for each different call, and the format that responses are asked to have.

    ``components`` are the verifier's; ``format`` adds one of its own: 1 for a response that has it, 0 otherwise.
    Where there is a format the verifier is shown what stands where the answer belongs, and a response with nothing
    there is wrong.
    """

    def __init__(self, verify: Callable[..., Verdict], components: tuple[str, ...], format: str, seconds: float):
        self.verify = Supervised(verify, seconds)
        self.format = None if format == "off" else FORMATS[format]
        self.of_verifier = components
        self.components = components if self.format is None else (*components, "format")

    def __call__(
        self, numbers: Sequence[int], responses: Sequence[str], others: Sequence[tuple[Any, ...]]
    ) -> Judged:
        """Judge responses to the prompts ``numbers``; the verifier gets what it is shown of each, and ``others``.

        Calls with the same prompt and the same text are made once.
        """
        shown = [response if self.format is None else self.format.answer(response) for response in responses]
        asked: dict[tuple[int, str], int] = {}
        calls: list[tuple[Any, ...]] = []
        for number, text, more in zip(numbers, shown, others, strict=True):
            if text is not None and (number, text) not in asked:
                asked[number, text] = len(calls)
                calls.append((text, *more))
        outcomes = self.verify(calls)
        wrong = Verdict(dict.fromkeys(self.of_verifier, 0.0))
        missing = Verdict(dict.fromkeys(self.of_verifier, math.nan))
        verdicts, faults = [], []
        for number, response, text in zip(numbers, responses, shown, strict=True):
            if text is None:
                verdicts.append(wrong)
                continue
            outcome = outcomes[asked[number, text]]
            if outcome.reason is not None:
                faults.append(Fault(number, response, outcome.reason))
            verdicts.append(missing if outcome.reason is not None else outcome.value)
        components = {name: [verdict.values[name] for verdict in verdicts] for name in self.of_verifier}
        if self.format is not None:
            components["format"] = [float(self.format.kept(response)) for response in responses]
        reward = components[self.of_verifier[0]]
        return Judged(reward, components, [verdict.answer for verdict in verdicts], faults)
