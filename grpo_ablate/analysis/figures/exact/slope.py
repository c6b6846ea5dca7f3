"""How hard each surrogate pushes one token as its ratio leaves 1: a panel each, both signs of advantage."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import BLUE, VERMILLION, ExactMaterial, plain_log

COLUMNS = 4
MINUS = "\N{MINUS SIGN}"
JUMP = 0.25  # a step of the slope larger than this between neighbouring ratios is a jump, not a line


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the derivative of the objective in the token's log-probability against its ratio."""
    material.need("slope", "ratio", "advantage", "slope")
    rows = material.experiment.rows
    height = math.ceil(len(rows) / COLUMNS)
    figure, panels = plt.subplots(
        height, COLUMNS, figsize=(style.DOUBLE, 1.2 * height + 0.5), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    ratios = material.table["ratio"]
    limit = 1.05 * float(material.table["slope"].abs().max())
    for axes, row in zip(panels.flat, rows, strict=False):
        for advantage, colour in _signs(material).items():
            ratio, slope = material.curve(row, "ratio", "slope", {"advantage": advantage})
            _broken(axes, ratio, slope, colour)
        axes.set_title(row.label)
        axes.axvline(1, color=style.GREY, linewidth=0.5, linestyle=(0, (1, 1.5)), zorder=0)
        axes.axhline(0, color=style.GREY, linewidth=0.5, zorder=0)
        sns.despine(ax=axes)
    for axes in panels.flat[len(rows) :]:
        axes.set_axis_off()
    panels[0, 0].set_xscale("log")
    plain_log(panels[0, 0].xaxis, 0.1, 0.2, 0.5, 1, 2, 5)
    panels[0, 0].set_xlim(max(float(ratios.min()), 0.1), float(ratios.max()))
    panels[0, 0].set_ylim(-limit, limit)
    for axes in panels[-1]:
        axes.set_xlabel("ratio $u$")
    for axes in panels[:, 0]:
        axes.set_ylabel("slope in log $\\pi$")
    handles = [
        plt.Line2D([], [], color=colour, label=f"advantage {'+' if advantage > 0 else MINUS}{abs(advantage):g}")
        for advantage, colour in _signs(material).items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def _signs(material: ExactMaterial) -> dict[float, str]:
    advantages = sorted(material.values("advantage"), reverse=True)
    return dict(zip(advantages, (BLUE, VERMILLION), strict=False))


def _broken(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """Draw a line that is thin and upright where it jumps."""
    jumps = np.flatnonzero(np.abs(np.diff(y)) > JUMP) + 1
    for piece_x, piece_y in zip(np.split(x, jumps), np.split(y, jumps), strict=True):
        # A piece of one point is a spike: show the point.
        axes.plot(piece_x, piece_y, color=colour, marker="." if len(piece_x) == 1 else None, markersize=3)
    for jump in jumps:
        middle = np.sqrt(x[jump - 1] * x[jump])
        axes.plot([middle, middle], y[jump - 1 : jump + 1], color=colour, linewidth=0.6, linestyle=(0, (1.5, 1)))


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what the slope is."""
    return material.told(
        "The derivative of one token's objective in its own log-probability, against the probability "
        "ratio $u$ (log scale), for a positive and a negative advantage: where a line is at 0, the token "
        "has no gradient."
    )
