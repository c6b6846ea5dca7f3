"""All groups of G responses as multisets, with the probability of each.

A statistic that does not look at the order of a group is the same for all orderings of a multiset, so C(K+G-1, G)
multisets with multinomial probabilities stand for K^G ordered groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def multiset_count(responses: int, group_size: int) -> int:
    """Return the number of multisets of ``group_size`` out of ``responses``.

    >>> multiset_count(6, 16), multiset_count(4, 64)
    (20349, 47905)
    """
    return math.comb(responses + group_size - 1, group_size)


def multisets(responses: int, group_size: int, chunk: int) -> Iterator[Tensor]:
    """Yield all multisets as int64 [m, G] of response numbers in rising order, at most ``chunk`` at a time.

    >>> next(multisets(2, 3, 10)).tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]
    """
    every = itertools.combinations_with_replacement(range(responses), group_size)
    while True:
        part = itertools.chain.from_iterable(itertools.islice(every, chunk))
        flat = np.fromiter(part, dtype=np.int64)
        if not flat.size:
            return
        yield torch.from_numpy(flat.reshape(-1, group_size))


class MultisetLaw:
    """The probability of each multiset of G independent draws from ``probabilities`` (float64 [K], sum 1).

    A multinomial is a chain of binomials: of the draws that fall on responses 0..k, how many fall on k. Their
    tables come from Pascal's recurrence, sums of positive terms, which keeps full relative accuracy where
    factorials overflow and log-gamma loses digits.
    """

    def __init__(self, probabilities: Tensor, group_size: int):
        self.responses = len(probabilities)
        up_to = probabilities.cumsum(0)
        # Where responses 0..k have no probability nothing falls on them, and any finite share will do.
        share = torch.where(up_to > 0, probabilities / up_to, 0.0)  # of k among 0..k
        rest = torch.where(up_to > 0, torch.cat([torch.zeros(1, dtype=torch.float64), up_to[:-1]]) / up_to, 0.0)
        table = torch.zeros(self.responses, group_size + 1, group_size + 1, dtype=torch.float64)
        table[:, 0, 0] = 1.0
        for n in range(1, group_size + 1):
            table[:, n] = rest[:, None] * table[:, n - 1]
            table[:, n, 1:] += share[:, None] * table[:, n - 1, :-1]
        self.table = table  # [K, n, count]

    def __call__(self, index: Tensor) -> Tensor:
        """Return the probability of each multiset, float64 [m], for ``index`` int64 [m, G]."""
        count = torch.zeros(len(index), self.responses, dtype=torch.int64)
        count.scatter_add_(1, index, torch.ones_like(index))
        return self.table[torch.arange(self.responses), count.cumsum(1), count].prod(1)
