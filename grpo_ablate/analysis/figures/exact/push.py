"""Which answers each reduction pushes up or down when lengths differ, and its bias and variance."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import (
    BLUE,
    ROUNDING,
    SIZE,
    SKY,
    VERMILLION,
    ExactMaterial,
    colour,
)
from grpo_ablate.spec.exact_files import ExactRow

# class -> colour: right is blue, wrong is red; long is pale
CLASSES = {"short-right": BLUE, "long-right": SKY, "short-wrong": VERMILLION, "long-wrong": "#F2B48C"}
REDUCTIONS = {
    "sequence-mean": "sequence mean\n$1/L_i$",
    "token-mean": "token mean\n$1/N$",
    "constant": "constant\n$1/L_{\\max}$",
    "sequence-sum": "sequence sum\n1",
}
MARKERS = ("o", "D")
NUMBERS = {"direction_bias": "sine of the angle\nto the gradient", "norm_ratio": "|E update| /\n|gradient|",
           "noise_per_rollout": "rollouts until noise\nequals signal"}  # fmt: skip


def _size(material: ExactMaterial) -> float:
    return material.values(SIZE)[-1]


def _rows(material: ExactMaterial) -> dict[tuple[str, str], list[ExactRow]]:
    """The rows by advantage, one per reduction, in the order of the file."""
    found: dict[tuple[str, str], list[ExactRow]] = {}
    for row in material.experiment.rows:
        advantage = row.switches.advantage
        found.setdefault((advantage.baseline, advantage.scale), []).append(row)
    return found


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the pushes at equal length of the update, then bias, size and noise of every row."""
    columns = [f"push_classes/{name}" for name in CLASSES]
    material.need("push", SIZE, *columns, *NUMBERS)
    advantages = _rows(material)
    first = next(iter(advantages.values()))
    figure, (pushes, *numbers) = plt.subplots(
        1, 1 + len(NUMBERS), figsize=(style.DOUBLE, 2.5), sharey=True, layout="constrained",
        width_ratios=(2.3, *(1 for _ in NUMBERS)),
    )  # fmt: skip
    exact = _gradient(material)
    bars = [] if exact is None else [("the gradient", exact)]
    bars += [(REDUCTIONS[row.switches.update.reduction], _line(material, row)) for row in first]
    height = 0.2
    for place, (_, line) in enumerate(bars):
        values = line[columns].to_numpy(dtype=np.float64) / float(line["norm_ratio"])
        offsets = (np.arange(len(columns)) - (len(columns) - 1) / 2) * height
        pushes.barh(place + offsets, values, height, color=list(CLASSES.values()), linewidth=0)
    pushes.axvline(0, color="black", linewidth=0.6)
    pushes.set_yticks(range(len(bars)), [name for name, _ in bars])
    pushes.set_ylim(len(bars) - 0.5, -0.5)
    pushes.set_title(f"{_name(first[0])}, $G$ = {_size(material):g}")
    pushes.set_xlabel("d log P(class), update scaled\nto the gradient's length")
    for axes, (name, label) in zip(numbers, NUMBERS.items(), strict=True):
        _dots(axes, material, advantages, name, len(bars) - len(first))
        axes.set_xlabel(label)
    handles = [Patch(color=c, label=name.replace("-", " and ")) for name, c in CLASSES.items()]
    dots = [
        plt.Line2D(
            [], [], color=colour(rows[0]), marker=marker, linestyle="none", markersize=4, label=_name(rows[0])
        )
        for marker, rows in zip(MARKERS, advantages.values(), strict=False)
    ]
    figure.legend(
        handles=[*handles, *dots], loc="outside upper center", ncols=len(handles) + len(dots), frameon=False,
        handlelength=1, columnspacing=1.2, handletextpad=0.4,
    )  # fmt: skip
    for axes in (pushes, *numbers):
        sns.despine(ax=axes)
        axes.tick_params(axis="y", length=0)
    return figure


def _name(row: ExactRow) -> str:
    advantage = row.switches.advantage
    return "group std" if advantage.scale == "group-std" else advantage.baseline


def _line(material: ExactMaterial, row: ExactRow) -> pd.Series:
    return material.lines(row, {SIZE: _size(material)}).iloc[0]


def _gradient(material: ExactMaterial) -> pd.Series | None:
    """The line of a row whose expected update is the gradient itself, where there is one."""
    for row in material.experiment.rows:
        line = _line(material, row)
        if float(line["bias"]) < ROUNDING:
            return line
    return None


def _dots(
    axes: Axes, material: ExactMaterial, advantages: dict[tuple[str, str], list[ExactRow]], name: str, first: int
) -> None:
    for index, (marker, rows) in enumerate(zip(MARKERS, advantages.values(), strict=False)):
        for place, row in enumerate(rows, start=first):
            value = float(_line(material, row)[name])
            shift = (index - (len(advantages) - 1) / 2) * 0.28
            axes.plot(value, place + shift, marker=marker, color=colour(row), markersize=4, clip_on=False)
            axes.axhline(place + shift, color=style.PALE, linewidth=0.5, zorder=0)
    axes.set_xlim(left=0)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what is pushed."""
    return material.told(
        "Left: how fast the expected update raises or lowers the log-probability of each class of "
        f"answers, for each reduction, with group-std and $G = {_size(material):g}$; updates are scaled to "
        "one length, that of the reward gradient, shown above them. Right: angle, length and noise of the "
        "same rows and of their leave-one-out counterparts; noise is the number of rollouts at which the "
        "update's standard deviation equals its length."
    )
