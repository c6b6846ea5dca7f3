"""How tables speak of failed runs: what they score, and which they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grpo_ablate.analysis.words import number


def failure_notes(metric: str, floor: float, failed: Mapping[str, Sequence[int]]) -> list[str]:
    """Return what a table of a metric says of failed runs: the rule, and every row with its seeds; else nothing.

    ``floor`` is what they score; NaN where no value of the metric is the worst, and they are left out.
    """
    found = {row: seeds for row, seeds in failed.items() if seeds}
    if not found:
        return []
    rule = (
        f"Failed runs (diverged) are left out: no value of {metric} is the worst."
        if math.isnan(floor)
        else f"Failed runs (diverged or collapsed) score {number(floor)}, the lowest value seen."
    )
    return [rule, f"Failed: {'; '.join(f'{row}, {seeds_said(seeds)}' for row, seeds in found.items())}."]


def seeds_said(seeds: Sequence[int]) -> str:
    """Return seeds in words, neighbours as a range.

    >>> seeds_said([3]), seeds_said([0, 1, 2, 5, 7, 8])
    ('seed 3', 'seeds 0 to 2, 5, 7, 8')
    """
    spans: list[list[int]] = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1].append(seed)
        else:
            spans.append([seed])
    said = [f"{span[0]} to {span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans]
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(said)}"
