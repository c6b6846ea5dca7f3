"""The published table beside ours: both values, their difference, and how large it may be."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import Material, metric_label, row_name
from grpo_ablate.analysis.published import Published, Verdict, curves_of, judge


def verdicts(material: Material) -> list[tuple[Published, Verdict, Verdict | None]]:
    """Return per published final value the verdict on its mean and, with two seeds or more, on its spread."""
    metric = material.experiment.metric
    curves = curves_of(material.runs, metric)
    found = []
    for line in material.published(metric):
        if line.statement == "final":
            mean, *spread = judge(curves, [line])
            found.append((line, mean, spread[0] if spread else None))
    return found


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw three panels over the published rows: values, differences of means, differences of spreads."""
    found = verdicts(material)
    experiment, styles = material.experiment, style.row_styles(material.experiment)
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(style.DOUBLE, 0.24 * max(len(found), 1) + 0.8), sharey=True, layout="constrained",
        width_ratios=(1.5, 1, 1),
    )  # fmt: skip
    for place, (line, mean, spread) in enumerate(found):
        colour = styles[line.row].colour
        ours = spread.ours if spread else 0.0
        left.errorbar(mean.ours, place, xerr=ours, fmt="o", color=colour, markersize=4, elinewidth=1, zorder=3)
        left.plot(line.value, place, **style.PUBLISHED)
        text = f"{mean.ours:.{line.digits}f}  /  {line.value:.{line.digits}f}"
        left.annotate(
            text, (1.0, place), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
            ha="left", va="center", fontsize=6, annotation_clip=False,
        )  # fmt: skip
        _difference(middle, place, mean, colour)
        if spread is not None:
            _difference(right, place, spread, colour)
    left.set_yticks(range(len(found)), [row_name(experiment, experiment.row(line.row)) for line, _, _ in found])
    left.set_ylim(len(found) - 0.5, -0.5)
    left.set_xlabel(f"final {metric_label(experiment, experiment.metric)}")
    left.set_title("ours / published", loc="right", fontsize=6.5, x=1.0, ha="left")
    for axes, title in ((middle, "mean"), (right, "spread")):
        axes.set_title(title, fontsize=6.5)
        axes.set_xlabel(r"ours $-$ published ($\times 10^{-3}$)")
        axes.axvline(0, color=style.GREY, linewidth=0.6, zorder=1)
    sns.despine(figure)
    return figure


def _difference(axes: plt.Axes, place: int, verdict: Verdict, colour: str) -> None:
    """Draw ours minus theirs inside the band that agreement allows; for a bound the band ends at the bound."""
    low = -verdict.published if verdict.bound else -verdict.tolerance
    high = 0.0 if verdict.bound else verdict.tolerance
    axes.barh(place, (high - low) * 1000, left=low * 1000, height=0.62, color=style.PALE, linewidth=0, zorder=0)
    axes.plot(
        verdict.difference * 1000,
        place,
        marker="o" if verdict.holds else "X",
        color=colour,
        markersize=4,
        zorder=3,
    )


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what is compared, and with which tolerance."""
    found = verdicts(material)
    rows = [material.experiment.row(line.row) for line, _, _ in found]
    theirs = max((line.seeds for line, _, _ in found), default=0)
    return (
        f"Ours (per row {material.seeds(rows)}; dots with one sample standard deviation) beside the published "
        f"values ({theirs} seeds; open diamonds). Middle and right: ours minus theirs for the mean and for the "
        "sample standard deviation; grey bands: what agreement allows, four combined standard errors plus half a "
        "printed digit for a mean, four standard errors for a spread."
    )
