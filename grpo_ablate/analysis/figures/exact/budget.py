"""Bias, variance and progress per rollout against group size, the number of rollouts held."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, colour, plain_log, size_axis
from grpo_ablate.spec.exact_files import ExactRow

MEASURES = {
    "direction_bias": "bias: sine of the\nangle to the gradient",
    "norm_ratio": "|E update| / |gradient|",
    "noise_per_rollout": "rollouts until noise\nequals signal",
    "gain_per_rollout": "first-order gain\nper rollout generated",
}
LOGARITHMIC = {  # measure -> ticks
    "noise_per_rollout": (5, 10, 20, 50, 100, 200),
    "gain_per_rollout": (0.0002, 0.0005, 0.001, 0.002, 0.005),
}


def _filtered(row: ExactRow) -> bool:
    return row.switches.sampling.dynamic != "off"


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw a panel per measure, a line per row; dashed where only mixed groups train."""
    material.need("budget", SIZE, "accepted", *MEASURES)
    figure, panels = plt.subplots(2, 2, figsize=(style.DOUBLE, 3.5), sharex=True, layout="constrained")
    for axes, (measure, name) in zip(panels.flat, MEASURES.items(), strict=True):
        _lines(axes, material, measure)
        size_axis(axes, material.values(SIZE))
        axes.set_ylabel(name)
        sns.despine(ax=axes)
    for axes in panels[0]:
        axes.set_xlabel("")
    handles = [
        plt.Line2D([], [], color=colour(row), label=row.label, **_look(row)) for row in material.experiment.rows
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False,
                  columnspacing=1.2, handlelength=2.2, handletextpad=0.5)  # fmt: skip
    return figure


def _look(row: ExactRow) -> dict[str, Any]:
    """Lines that coincide lie on one another, the widest below."""
    if _filtered(row):
        return {"linestyle": (0, (4, 2)), "linewidth": 1.2, "zorder": 4}
    if row.switches.advantage.baseline == "leave-one-out":
        return {"linestyle": (0, (1, 1)), "linewidth": 1.2, "zorder": 5}
    wide = row.switches.advantage.scale == "group-std"
    return {"linewidth": 3.2 if wide else 1.6, "alpha": 0.4 if wide else 0.8, "zorder": 2 if wide else 3}


def _lines(axes: Axes, material: ExactMaterial, measure: str) -> None:
    for row in material.experiment.rows:
        size, value = charged(material, row, measure)
        axes.plot(size, value, color=colour(row), clip_on=False, **_look(row))
    if measure in LOGARITHMIC:
        axes.set_yscale("log")
        plain_log(axes.yaxis, *LOGARITHMIC[measure])
    else:
        axes.set_ylim(bottom=0)


def charged(material: ExactMaterial, row: ExactRow, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return group sizes and a measure; the table has the noise of accepted groups, here rejected ones count."""
    size, value = material.curve(row, SIZE, measure)
    if measure == "noise_per_rollout":
        value = value / material.curve(row, SIZE, "accepted")[1]
    return size, value


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what is held."""
    return material.told(
        "Larger groups at a fixed number of rollouts, paid for with fewer prompts. Bias is that of the "
        "direction; noise is the variance per rollout generated over the squared length of the expected "
        "update; the gain is the rise of the expected reward per rollout generated and unit of learning rate, to "
        "first order. Dashed: only mixed groups train; the rejected rollouts are charged."
    )
