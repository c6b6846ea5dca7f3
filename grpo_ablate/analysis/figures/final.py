"""A dot plot of final quality: every seed of every row, with mean and interval."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import Material, interval, metric_label, row_name
from grpo_ablate.spec.resolve import Row

NARROW = 0.005  # seeds closer than this, of scores in [0, 1], need an axis of their own


def shown(material: Material, options: dict[str, Any]) -> list[Row]:
    """Return the rows of the figure, in the order of the experiment's file."""
    wanted = options["rows"]
    for name in wanted or ():
        material.experiment.row(name)
    return [row for row in material.rows if wanted is None or row.id in wanted]


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw one line per row: on the left where its seeds ended, on the right how far each lies from their mean."""
    metric, rows = material.metric(options), shown(material, options)
    styles = style.row_styles(material.experiment)
    height = 0.17 * len(rows) + 0.75
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.DOUBLE, height), sharey=True, layout="constrained", width_ratios=(1.25, 1)
    )
    finals = _finite(material, options)
    for place, (row, values) in enumerate(zip(rows, finals, strict=True)):
        if not len(values):
            continue
        mean, half = interval(values)
        heights = place + style.jitter(len(values), 0.3)
        look = styles[row.id]
        for axes, x in ((left, values), (right, (values - mean) * 1000)):
            axes.scatter(
                x, heights, s=5, marker=look.marker, color=look.colour, alpha=0.5, linewidth=0, zorder=2,
                clip_on=False,
            )  # fmt: skip
        bar = {
            "color": "black",
            "capsize": 1.8,
            "markersize": 2.4,
            "elinewidth": 0.8,
            "capthick": 0.8,
            "zorder": 3,
        }
        if len(values) > 1:
            left.errorbar(mean, place, xerr=half, fmt="o", **bar)
            right.errorbar(0, place, xerr=half * 1000, fmt="o", **bar)
        else:
            left.plot(mean, place, "o", color="black", markersize=2.4)
    for line in material.published(metric):
        places = [place for place, row in enumerate(rows) if row.id == line.row]
        if line.statement == "final" and places:
            left.plot(line.value, places[0], **style.PUBLISHED)
    label = metric_label(material.experiment, metric)
    left.set_yticks(range(len(rows)), [row_name(material.experiment, row) for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlabel(f"final {label}")
    right.set_xlabel(r"seed minus its row's mean ($\times 10^{-3}$)")
    widest = max((np.ptp(values) for values in finals if len(values)), default=0.0) * 700
    if widest > 0 and _narrow(finals):
        right.set_xscale("symlog", linthresh=1.0, linscale=0.8)
        right.set_xlim(-widest * 1.3, widest * 1.3)
        right.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    for axes in (left, right):
        axes.grid(axis="y", color=style.PALE, linewidth=0.5)
        axes.set_axisbelow(True)
    sns.despine(figure)
    return figure


def _finite(material: Material, options: dict[str, Any]) -> list[np.ndarray]:
    metric = material.metric(options)
    finals = [material.final(row, metric) for row in shown(material, options)]
    return [values[np.isfinite(values)] for values in finals]


def _narrow(finals: list[np.ndarray]) -> bool:
    """Whether the seeds of a typical row lie so close that a linear axis of all rows would hide their spread."""
    spreads = [float(np.ptp(values)) for values in finals if len(values)]
    return bool(spreads) and float(np.median(spreads)) < NARROW


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the dots show."""
    rows = shown(material, options)
    label = metric_label(material.experiment, material.metric(options))
    narrow = _narrow(_finite(material, options))
    scale = ", linear within one thousandth of zero and logarithmic beyond" if narrow else ""
    theirs = " Open diamonds: the published values." if material.published(material.metric(options)) else ""
    return (
        f"Final {label} of every row. Coloured dots: single seeds (per row {material.seeds(rows)}); black: mean "
        f"and 95 % t interval.{theirs} Right: each seed minus the mean of its row{scale}."
    )
