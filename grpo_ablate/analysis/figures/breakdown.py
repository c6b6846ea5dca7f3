"""Final reward and length on each group of held-out prompts apart: languages, numbers of operands."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.final import shown
from grpo_ablate.analysis.figures.material import Material, interval, row_name
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import Row

FAMILIES = {"eval/reward_": "reward", "eval/length_": "length (tokens)"}


def prompt_groups(material: Material) -> list[str]:
    """Return the groups of held-out prompts that were measured apart, by name.

    Raises:
        UserError: there are none.
    """
    stem = next(iter(FAMILIES))
    found = sorted(name.removeprefix(stem) for name in material.runs.columns if name.startswith(stem))
    if not found:
        raise UserError(
            f"{material.experiment.path}: figures: breakdown: no group of prompts was measured apart "
            "(eval/reward_*)."
        )
    return found


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a column of panels per group of prompts: its reward above, its length below, one line per row."""
    groups, rows = prompt_groups(material), shown(material, options)
    families = {stem: label for stem, label in FAMILIES.items() if stem + groups[0] in material.runs}
    height = (0.15 * len(rows) + 0.45) * len(families) + 0.25
    figure, grid = plt.subplots(
        len(families), len(groups), figsize=(style.DOUBLE, height), sharey=True, sharex="row", squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for line, (stem, label) in zip(grid, families.items(), strict=True):
        for axes, group in zip(line, groups, strict=True):
            _dots(axes, material, rows, stem + group)
            axes.set_xlabel(label)
    for axes, group in zip(grid[0], groups, strict=True):
        axes.set_title(group.replace("-", " "))
    grid[0, 0].set_yticks(range(len(rows)), [row_name(material.experiment, row) for row in rows])
    grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    sns.despine(figure)
    return figure


def _dots(axes: Axes, material: Material, rows: list[Row], metric: str) -> None:
    styles = style.row_styles(material.experiment)
    for place, row in enumerate(rows):
        values = material.final(row, metric)
        values = values[np.isfinite(values)]
        if len(values):
            look, (mean, half) = styles[row.id], interval(values)
            axes.scatter(
                values, place + style.jitter(len(values), 0.28), s=5, marker=look.marker, color=look.colour,
                alpha=0.5, linewidth=0, zorder=2,
            )  # fmt: skip
            axes.errorbar(
                mean, place, xerr=None if np.isnan(half) else half, fmt="o", color="black", markersize=2.4,
                capsize=1.6, elinewidth=0.8, capthick=0.8, zorder=3,
            )  # fmt: skip
    axes.grid(axis="y", color=style.PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the dots show."""
    rows, groups = shown(material, options), ", ".join(prompt_groups(material))
    return (
        f"Final reward and length on each group of held-out prompts ({groups}). Coloured "
        f"dots: single seeds (per row {material.seeds(rows)}); black: mean and 95 % t interval."
    )
