"""Two trainers on one row: the reward of their rollouts, and what one earns more than the other, seed by seed."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import COST_LABELS, Material, interval
from grpo_ablate.spec.resolve import Row

REWARD = "train/reward_raw"
OURS, THEIRS = "grpo-ablate", "trl"
LOOKS: dict[str, tuple[str, style.Dashes]] = {
    OURS: (style.PALETTE[0], "-"),
    THEIRS: (style.PALETTE[1], (0, (4, 1.5))),
}


def curve(material: Material, row: Row, trainer: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rollouts spent, ``[blocks]``, and the mean reward of each block, ``[seeds, blocks]``."""
    lines = material.runs
    table = lines[(lines["row"] == row.id) & (lines["trainer"] == trainer)].pivot(
        index="seed", columns="rollouts", values=REWARD
    )
    return table.columns.to_numpy(dtype=np.float64), table.to_numpy(dtype=np.float64)


def differences(material: Material, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """Return the rollouts spent and trl's reward minus ours of each seed, ``[seeds, blocks]``."""
    rollouts, ours = curve(material, row, OURS)
    return rollouts, curve(material, row, THEIRS)[1] - ours


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a line of two panels per row: the curves, and their difference about zero."""
    rows = material.rows
    figure, grid = plt.subplots(
        len(rows), 2, figsize=(style.DOUBLE, 2.0 * len(rows) + 0.35), squeeze=False, layout="constrained",
        sharex=True,
    )  # fmt: skip
    labels = []
    for (left, right), row in zip(grid, rows, strict=True):
        ends = []
        for trainer, (colour, dashes) in LOOKS.items():
            rollouts, rewards = curve(material, row, trainer)
            style.draw_curve(left, rollouts, rewards, colour, dashes)
            ends.append((float(interval(rewards)[0][-1]), trainer, colour))
        rollouts, gaps = differences(material, row)
        right.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        style.draw_curve(right, rollouts, gaps, "#000000")
        for axes, name in ((left, "mean reward of rollouts"), (right, "trl minus grpo-ablate")):
            axes.autoscale_view()
            axes.set_xlim(0, rollouts[-1])
            axes.set_ylabel(name)
            style.cost_axis(axes)
        _centre(right)
        left.set_title(row.label if len(rows) > 1 else "", loc="left", fontsize=6.5)
        labels.append((left, ends))
    for axes in grid[-1]:
        axes.set_xlabel(COST_LABELS["rollouts"])
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def _centre(axes: Axes) -> None:
    """Let zero be in the middle: a difference to either side looks alike."""
    largest = max(map(abs, axes.get_ylim()))
    axes.set_ylim(-largest, largest)


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what was held alike, on how many seeds, and what the difference is over the later half."""
    first = material.rows[0]
    seeds = len(curve(material, first, OURS)[1])
    told = "; ".join(_told(material, row) for row in material.rows)
    return (
        "Mean reward of the rollouts against rollouts spent, trained by this project and by trl 1.16's "
        "GRPOTrainer from one start, on the same prompts in the same rounds, with the same switches and "
        f"optimiser (n = {seeds} seeds each). Thin lines: single seeds; thick lines: their mean, with its 95 % t "
        "interval as a band. Right: what trl earns more, seed by seed; one seed means the same prompts and other "
        f"random numbers of the sampling. Over the later half of the rollouts: {told}."
    )


def _told(material: Material, row: Row) -> str:
    rollouts, gaps = differences(material, row)
    mean, half = interval(gaps[:, rollouts > rollouts[-1] / 2].mean(axis=1))
    name = f"{row.label} " if len(material.rows) > 1 else ""
    return f"{name}{mean:+.3f} (95 % interval {mean - half:+.3f} to {mean + half:+.3f})"
