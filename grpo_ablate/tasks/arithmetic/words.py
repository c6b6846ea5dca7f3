"""The 49 words of the arithmetic task: totals, signed operands, labels, and four marks."""

from __future__ import annotations

HIGHEST = 20  # totals lie in 0..HIGHEST
MOST_OPERANDS = 7  # the number a chain starts from counts as its first
LARGEST = 9  # operands after the first lie in -LARGEST..-1 and 1..LARGEST

LABELS = tuple("bcdefg")  # of the operands after the first
PAD, END, EQUALS, FILLER = range(4)
FIRST_LABEL = 4
FIRST_TOTAL = FIRST_LABEL + len(LABELS)
FIRST_PLUS = FIRST_TOTAL + HIGHEST + 1
FIRST_MINUS = FIRST_PLUS + LARGEST
VOCABULARY = (
    "<pad>",
    "<end>",
    "=",
    ".",
    *LABELS,
    *(str(total) for total in range(HIGHEST + 1)),
    *(f"+{size}" for size in range(1, LARGEST + 1)),
    *(f"-{size}" for size in range(1, LARGEST + 1)),
)
