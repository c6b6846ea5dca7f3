"""When a response ends: at an end token, or where its text comes to contain a stop text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


class Ends:
    """The tokens and texts that end a response; the token that completes one is the response's last.

    A stop text of one byte lies in single tokens alone, which become end tokens; longer ones may span tokens and
    are looked for in the decoded response.
    """

    def __init__(self, tokenizer: Any, tokens: Iterable[int], stops: Iterable[str] = ()):
        self.tokenizer = tokenizer
        stops = tuple(stops)
        bytes_ = tuple(stop for stop in stops if len(stop.encode()) == 1)
        self.texts = tuple(stop for stop in stops if len(stop.encode()) > 1)
        found = set(tokens)
        if bytes_:
            found |= {
                number for number, text in enumerate(self._vocabulary) if any(stop in text for stop in bytes_)
            }
        self.tokens = torch.tensor(sorted(found), dtype=torch.int64)

    @cached_property
    def _vocabulary(self) -> list[str]:
        """The text of every token."""
        numbers = [[number] for number in range(len(self.tokenizer))]
        return list(self.tokenizer.batch_decode(numbers, clean_up_tokenization_spaces=False))

    def __bool__(self) -> bool:
        """Whether any response can end before its limit."""
        return bool(self.texts) or len(self.tokens) > 0

    def lengths(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many of ``tokens`` int64 [N, T] belong to a response, int64 [N], and which ended, bool [N].

        >>> Ends(None, [1, 2]).lengths(torch.tensor([[5, 2, 0], [5, 5, 5], [1, 1, 1]]))
        (tensor([2, 3, 1]), tensor([ True, False,  True]))
        """
        last = torch.isin(tokens, self.tokens.to(tokens.device))
        ended = last.any(-1)
        length = torch.where(ended, last.to(torch.uint8).argmax(-1) + 1, tokens.shape[-1])
        if self.texts:
            for row, row_length in enumerate(length.tolist()):
                first = self._completed(tokens[row, :row_length].tolist())
                if first is not None:
                    length[row], ended[row] = first, True
        return length, ended

    def _completed(self, tokens: list[int]) -> int | None:
        """Return the number of tokens after which a stop text stands in the response, None where none does."""

        def holds(count: int) -> bool:
            text = self.tokenizer.decode(tokens[:count], clean_up_tokenization_spaces=False)
            return any(stop in text for stop in self.texts)

        if not holds(len(tokens)):
            return None
        low, high = 0, len(tokens)  # a text once complete stays
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high
