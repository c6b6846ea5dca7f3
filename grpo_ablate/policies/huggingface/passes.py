"""How responses are laid out for a forward pass, and dealt to microbatches by their tokens.

A sequence is a prompt, padded on the left, and the responses that share it, each without its last token, which
predicts nothing. With one response a sequence it is what every causal model takes. With several, a response
attends to the prompt and to itself alone, by a mask of its own, and stands at positions that follow the prompt's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Unit:
    """A prompt and some of its responses: their places among the rows that are scored."""

    prompt: list[int]
    rows: list[int]
    tokens: list[list[int]]

    @property
    def fed(self) -> int:
        """Response tokens that are fed to the model."""
        return sum(len(response) - 1 for response in self.tokens)


@dataclass(frozen=True)
class Pass:
    """One microbatch of n sequences of S tokens."""

    tokens: Tensor  # int64 [n, S]
    positions: Tensor  # int64 [n, S]
    mask: Tensor  # int64 [n, S], or bool [n, 1, S, S] where responses share their prompts
    keep: int  # the last columns, whose logits predict response tokens
    predictor: Tensor  # int64 [K], the place among n keep of each scored token's predictor
    target: Tensor  # int64 [K]
    row: Tensor  # int64 [K], the response of each scored token
    step: Tensor  # int64 [K], its place in the response

    def to(self, device: torch.device) -> Pass:
        """Return the pass with what the model reads on a device; where values come from and go to stays here."""
        moved = {
            name: getattr(self, name).to(device) for name in ("tokens", "positions", "mask", "predictor", "target")
        }
        return replace(self, **moved)


def units(
    prompts: Sequence[list[int]], rows: Sequence[list[list[int]]], budget: int, *, share: bool
) -> list[Unit]:
    """Return the sequences for the responses ``rows[b][g]`` to ``prompts[b]``; empty ones are left out.

    A response's place is the number of those before it, empty ones included. With ``share`` a sequence takes the
    responses of a prompt as long as it stays within ``budget`` tokens.
    """
    found: list[Unit] = []
    place = 0
    for prompt, responses in zip(prompts, rows, strict=True):
        unit = Unit(prompt, [], [])
        for response in responses:
            if response:
                full = len(prompt) + unit.fed + len(response) - 1 > budget
                if unit.rows and (full or not share):
                    found.append(unit)
                    unit = Unit(prompt, [], [])
                unit.rows.append(place)
                unit.tokens.append(response)
            place += 1
        if unit.rows:
            found.append(unit)
    return found


def dealt(sequences: list[Unit], budget: int) -> Iterator[list[Unit]]:
    """Deal sequences to microbatches of at most ``budget`` tokens, padding included; one sequence at least.

    The longest come first: what does not fit into memory shows itself at once, and like lengths come together.
    """
    chosen: list[Unit] = []
    width = fed = 0
    for unit in sorted(sequences, key=lambda unit: (-unit.fed, -len(unit.prompt))):
        wider, longer = max(width, len(unit.prompt)), max(fed, unit.fed)
        if chosen and (len(chosen) + 1) * (wider + longer) > budget:
            yield chosen
            chosen, wider, longer = [], len(unit.prompt), unit.fed
        chosen.append(unit)
        width, fed = wider, longer
    if chosen:
        yield chosen


def laid_out(sequences: list[Unit], pad: int, *, share: bool) -> Pass:
    """Return the microbatch of some sequences."""
    count, width = len(sequences), max(len(unit.prompt) for unit in sequences)
    keep = 1 + max(unit.fed for unit in sequences)
    tokens = torch.full((count, width + keep - 1), pad)
    positions = torch.zeros_like(tokens)
    owner = torch.full_like(tokens, -1)  # 0: the prompt, then the responses; -1: padding
    predictor, target, row, step = [], [], [], []
    for number, unit in enumerate(sequences):
        length = len(unit.prompt)
        own = slice(width - length, width)
        tokens[number, own] = torch.tensor(unit.prompt)
        positions[number, own] = torch.arange(length)
        owner[number, own] = 0
        place = width
        for response, at in enumerate(unit.rows):
            whole = torch.tensor(unit.tokens[response])
            steps = torch.arange(len(whole))
            own = slice(place, place + len(whole) - 1)
            tokens[number, own] = whole[:-1]
            positions[number, own] = length + steps[:-1]
            owner[number, own] = response + 1
            # The last token of the prompt predicts the first of every response.
            column = torch.where(steps == 0, 0, place - width + steps)
            predictor.append(number * keep + column)
            target.append(whole)
            row.append(torch.full_like(steps, at))
            step.append(steps)
            place += len(whole) - 1
    return Pass(
        tokens=tokens,
        positions=positions,
        mask=_shared_mask(owner) if share else (owner >= 0).long(),
        keep=keep,
        predictor=torch.cat(predictor),
        target=torch.cat(target),
        row=torch.cat(row),
        step=torch.cat(step),
    )


def _shared_mask(owner: Tensor) -> Tensor:
    """Return which place sees which, bool [n, 1, S, S]; padding sees itself, as attention to nothing is NaN."""
    place = torch.arange(owner.shape[1])
    seen = (owner[:, None] == 0) | (owner[:, None] == owner[..., None])
    seen = seen & (owner[:, None] >= 0) & (owner[..., None] >= 0) & (place <= place[:, None])
    return (seen | (place == place[:, None]))[:, None]
