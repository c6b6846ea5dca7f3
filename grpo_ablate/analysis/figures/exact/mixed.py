"""How often a group holds both right and wrong answers: only such a group has a reward gradient."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, shades, success_axis


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the chance of a mixed group against the success probability, a line per group size."""
    material.need("mixed", SIZE, "success", "p_mixed")
    row = material.experiment.rows[0]
    sizes = material.values(SIZE)
    figure, axes = plt.subplots(figsize=(style.SINGLE, 2.1), layout="constrained")
    ends = []
    for size, colour in zip(sizes, shades(len(sizes)), strict=True):
        x, chance = material.curve(row, "success", "p_mixed", {SIZE: size})
        axes.plot(x, chance, color=colour)
        ends.append((float(chance[-1]), f"$G$ = {size:g}", colour))
    success_axis(axes)
    axes.set_xlim(0, float(x[-1]))
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("chance $a_G(p)$ of a mixed group")
    sns.despine(ax=axes)
    style.label_ends(figure, [(axes, ends)])
    return figure


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what the chance is."""
    return material.told(
        "Chance $a_G (p) = 1 - p^G - (1-p)^G$ that a group of $G$ answers holds both right and wrong "
        "ones; every other group has no reward gradient, and costs as many rollouts."
    )
