"""The variance of each baseline against the success probability, and where the group mean raises it."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import (
    ORANGE,
    SIZE,
    SKY,
    ExactMaterial,
    colour,
    plain_log,
    success_axis,
)
from grpo_ablate.spec.exact_files import ExactRow

MEASURES = {
    "variance_per_rollout": "$G$ x variance",
    "noise_per_rollout": "$G$ x variance / |E update|$^2$",
}
CONSTANTS = {"expected-reward": ORANGE, "variance-minimising": SKY}
# Rows that coincide at some group size: dashed, each above the one before.
DASHES = {"leave-one-out": (0, (4, 3)), "mean": (0, (1.5, 1.5))}
ORDER = {"leave-one-out": 3, "mean": 4}
FLOOR = 1e-2  # of the logarithmic axis; what lies below is 0 or as good as


def _colour(row: ExactRow) -> str:
    return CONSTANTS.get(row.constant_at or "", colour(row))


def _of(material: ExactMaterial, baseline: str) -> ExactRow | None:
    """The row of a plain baseline, undivided."""
    for row in material.experiment.rows:
        if (row.switches.advantage.baseline, row.switches.advantage.scale) == (baseline, "none"):
            return row
    return None


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw variance above and noise below, a panel per group size; shaded: the group mean is the noisier."""
    material.need("variance", SIZE, "success", *MEASURES)
    sizes = material.values(SIZE)
    figure, panels = plt.subplots(
        len(MEASURES), len(sizes), figsize=(style.DOUBLE, 3.7), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for line, (measure, name) in zip(panels, MEASURES.items(), strict=True):
        for axes, size in zip(line, sizes, strict=True):
            logarithmic = measure == "noise_per_rollout"
            _lines(axes, material, size, measure, logarithmic)
            _shade(axes, material, size, measure)
            success_axis(axes)
            sns.despine(ax=axes)
        line[0].set_ylabel(name)
    for axes, size in zip(panels[0], sizes, strict=True):
        axes.set_title(f"$G$ = {size:g}")
        axes.set_xlabel("")
    handles = [
        plt.Line2D([], [], color=_colour(row), linestyle=_dashes(row), label=row.label)
        for row in material.experiment.rows
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False,
                  columnspacing=1.2, handlelength=1.8, handletextpad=0.5)  # fmt: skip
    return figure


def _plain(row: ExactRow) -> str:
    return row.switches.advantage.baseline if row.switches.advantage.scale == "none" else ""


def _dashes(row: ExactRow) -> Any:
    return DASHES.get(_plain(row), "-")


def _lines(axes: Axes, material: ExactMaterial, size: float, measure: str, logarithmic: bool) -> None:
    for row in material.experiment.rows:
        x, y = material.curve(row, "success", measure, {SIZE: size})
        y = np.where(y < FLOOR, np.nan, y) if logarithmic else y
        axes.plot(
            x, y, color=_colour(row), linestyle=_dashes(row), zorder=ORDER.get(_plain(row), 2), clip_on=False
        )
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(FLOOR, 100)
        plain_log(axes.yaxis, 0.01, 0.1, 1, 10, 100)
    else:
        axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])  # a variance of 0 stands clear of the axis


def raised_from(material: ExactMaterial, size: float, measure: str = "noise_per_rollout") -> float | None:
    """Return the least success probability from which on the group mean raises a measure above that of none.

    By default noise: variance per rollout over the squared length of the expected update, which the group mean
    shortens.
    """
    mean, none = _of(material, "mean"), _of(material, "none")
    if mean is None or none is None:
        return None
    x, with_mean = material.curve(mean, "success", measure, {SIZE: size})
    _, without = material.curve(none, "success", measure, {SIZE: size})
    lower = np.flatnonzero(with_mean <= without)
    first = 0 if len(lower) == 0 else int(lower[-1]) + 1
    return float(x[first]) if first < len(x) else None


def _shade(axes: Axes, material: ExactMaterial, size: float, measure: str) -> None:
    start = raised_from(material, size, measure)
    if start is not None:
        axes.axvspan(start, 1, color=style.PALE, alpha=0.5, linewidth=0, zorder=0)


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what noise is and what is shaded."""
    return material.told(
        "Variance of the update per rollout (above) and over the squared length of the expected update "
        "(below, the number of rollouts at which noise equals signal) against the success probability. "
        "Shaded: by that measure, subtracting the group mean is noisier than subtracting nothing. The "
        "variance-minimising constant has variance 0 here, which the log scale below does not show."
    )
