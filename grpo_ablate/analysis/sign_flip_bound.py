"""How many seeds a sign-flip test needs before it can reject anything: light, since planning asks for it."""

from __future__ import annotations


def seeds_needed(claims: int, alpha: float = 0.05) -> int:
    """Return the smallest n with which an exact sign-flip test can reach ``alpha`` for one of ``claims``.

    Two-sided: of the 2^n patterns of signs two are as extreme as a sample of one sign, so the smallest
    p is 2 / 2^n, which must not exceed Holm's first level alpha / m: n = ceil(log2(2 m / alpha)).

    >>> [seeds_needed(claims) for claims in (1, 3, 10)]
    [6, 7, 9]
    """
    seeds = 1
    while 2 * max(1, claims) > alpha * 2**seeds:
        seeds += 1
    return seeds
