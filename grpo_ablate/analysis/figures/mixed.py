"""The share of mixed groups, those with a reward gradient: observed, and as p^G + (1-p)^G predicts it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines, style
from grpo_ablate.analysis.figures.material import COST_LABELS, Material
from grpo_ablate.spec.resolve import Row

CONSTANT = ("train/groups_all_wrong", "train/groups_all_right", "train/groups_constant_other")
PREDICTED = "train/groups_constant_predicted"
OBSERVED_MIXED, PREDICTED_MIXED = "mixed share", "mixed share predicted"


def with_shares(material: Material) -> Material:
    """Return the material with the two shares of mixed groups as metrics, NaN where there is none."""
    runs = material.runs
    present = [name for name in CONSTANT if name in runs]
    constant = runs[present].sum(axis=1, min_count=1) if present else np.nan
    predicted = runs.get(PREDICTED, np.nan)
    added = {OBSERVED_MIXED: 1 - constant, PREDICTED_MIXED: 1 - predicted}
    return replace(material, runs=runs.assign(**added))


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw the share over training, a panel per group of rows; last, every seed's observed against predicted."""
    found, groups = with_shares(material), lines.groups(material, options["rows"])
    count = len(groups) + 1
    figure, (*panels, last) = lines.panels(count, lines.columns(count), 2.0, 1.7)
    labels = []
    for axes, (title, rows) in zip(panels, groups, strict=True):
        ends = lines.panel(axes, found, rows, OBSERVED_MIXED, options["x"])
        _predicted(axes, found, rows, options["x"])
        axes.set_ylim(0, 1)
        labels.append((axes, ends))
        axes.set_title(title)
        style.cost_axis(axes)
        axes.set_xlabel(COST_LABELS[options["x"]])
        axes.set_ylabel("share of mixed groups")
    _scatter(last, found, [row for _, rows in groups for row in rows])
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def _predicted(axes: Axes, material: Material, rows: list[Row], x: str) -> None:
    styles = style.row_styles(material.experiment)
    for row in rows:
        places, values = material.curve(row.id, PREDICTED_MIXED, x)
        axes.plot(places, _mean(values, 0), color=styles[row.id].colour, linestyle=(0, (1, 1.5)), zorder=4)


def _scatter(axes: Axes, material: Material, rows: list[Row]) -> None:
    styles = style.row_styles(material.experiment)
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.6, zorder=1)
    for row in rows:
        look = styles[row.id]
        predicted, observed = (
            _mean(material.curve(row.id, name)[1], 1) for name in (PREDICTED_MIXED, OBSERVED_MIXED)
        )
        axes.scatter(
            predicted, observed, s=7, marker=look.marker, color=look.colour, alpha=0.7, linewidth=0, zorder=2
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted", ylabel="observed", title="each seed, over the run")
    axes.set_aspect("equal")


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # not measured: NaN
        return np.nanmean(values, axis=axis)


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what is predicted and from what."""
    groups = lines.groups(material, options["rows"])
    return (
        f"Share of generated groups whose rewards differ (per row {lines.seeds(material, groups)}); "
        f"{lines.DRAWN}. Dotted: the share that p^G + (1-p)^G predicts from the success rate p of the round, as "
        "if all prompts were equally hard. Last panel: both for every seed, the mean over its training; below the "
        f"diagonal, prompts differ in difficulty.{lines.repeated(groups)}"
    )
