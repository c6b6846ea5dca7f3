"""By what factor group-std scales the gradient of a success probability, for each group size, with its limit."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, shades, success_axis


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the factor against the success probability, a line per group size."""
    material.need("factor", SIZE, "success", "norm_ratio", "limit_norm_ratio")
    row = material.experiment.rows[0]
    sizes = material.values(SIZE)
    figure, axes = plt.subplots(figsize=(style.SINGLE, 2.3), layout="constrained")
    ends = []
    for size, colour in zip(sizes, shades(len(sizes)), strict=True):
        x, factor = material.curve(row, "success", "norm_ratio", {SIZE: size})
        axes.plot(x, factor, color=colour)
        ends.append((float(factor[-1]), f"$G$ = {size:g}", colour))
    x, limit = material.curve(row, "success", "limit_norm_ratio", {SIZE: sizes[-1]})
    axes.plot(x, limit, color="black", linestyle=(0, (3, 2)), linewidth=0.9)
    ends.append((float(limit[-1]), "limit", "black"))
    success_axis(axes)
    axes.set_xlim(0, float(x[-1]))
    axes.set_ylim(bottom=0)
    axes.set_yticks([0, 1, *range(2, int(max(limit)) + 1, 2)])
    axes.set_ylabel("factor $c_G(p)$ on the gradient of $p$")
    sns.despine(ax=axes)
    style.label_ends(figure, [(axes, ends)])
    return figure


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what the factor is."""
    return material.told(
        "Binary rewards: under group-std the expected update is $c_G (p)$ times the gradient of the "
        "success probability $p$. Dashed: the limit of large groups, $1/sqrt(p(1-p))$."
    )
