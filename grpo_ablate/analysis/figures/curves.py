"""Learning curves: every seed behind the mean and its interval, one panel per level of the lesser axes."""

from __future__ import annotations

from typing import Any

import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines, style
from grpo_ablate.analysis.figures.material import COST_LABELS, Material, metric_label


def costs(options: dict[str, Any]) -> list[str]:
    """Return the measures of cost that the figure's horizontal axes show."""
    return options["x"] if isinstance(options["x"], list) else [options["x"]]


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw the curves; against several measures of cost, a column of panels for each."""
    metric, chosen, groups = material.metric(options), costs(options), lines.groups(material, options["rows"])
    if len(chosen) > 1:
        return lines.strip(material, groups, [(metric, x) for x in chosen], [""] * len(chosen))
    columns = lines.columns(len(groups))
    figure, panels = lines.panels(len(groups), columns, 2.2, 1.65, sharey=True)
    labels = []
    for index, (axes, (title, rows)) in enumerate(zip(panels, groups, strict=True)):
        labels.append((axes, lines.panel(axes, material, rows, metric, chosen[0])))
        axes.set_title(title)
        style.cost_axis(axes)
        if index + columns >= len(groups):
            axes.set_xlabel(COST_LABELS[chosen[0]])
        if index % columns == 0:
            axes.set_ylabel(metric_label(material.experiment, metric))
    sns.despine(figure)
    style.label_ends(figure, labels)
    return figure


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the curves show."""
    metric, experiment = material.metric(options), material.experiment
    groups = lines.groups(material, options["rows"])
    against = ", ".join(COST_LABELS[x] for x in costs(options))
    theirs = " Open diamonds: the published final values." if material.published(metric) else ""
    return (
        f"{metric_label(experiment, metric).capitalize()} during training against {against}. Thin lines: single "
        f"seeds (per row {lines.seeds(material, groups)}); thick lines: their mean, with its 95 % t interval as a "
        f"band. Dashes of several colours are lines that coincide.{theirs}{lines.repeated(groups)}"
    )
