"""What multiplies the difference of two answers' scores: constant under GRPO, set by the margin under DPO."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import ExactMaterial, colour, plain_log, shades
from grpo_ablate.spec.exact_files import ExactRow

DPO = "dpo_weight/"


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the weights against the margin, on a logarithmic axis."""
    material.need("weight", "margin", "pair_weight")
    columns = [column for column in material.table.columns if column.startswith(DPO)]
    figure, axes = plt.subplots(figsize=(style.SINGLE, 2.4), layout="constrained")
    ends = []
    lines: dict[tuple[float, ...], list[ExactRow]] = {}
    for row in material.experiment.rows:
        margin, weight = material.curve(row, "margin", "pair_weight")
        lines.setdefault(tuple(weight.round(12)), []).append(row)
    for weights, rows in lines.items():
        axes.plot(margin, weights, color=colour(rows[0]), linewidth=1.6)
        text = rows[0].label if len(rows) == 1 else f"{rows[0].label}, any gap"
        ends.append((weights[-1], text.replace("reward gap", "gap"), colour(rows[0])))
    for column, shade in zip(columns, shades(len(columns)), strict=True):
        margin, weight = material.curve(material.experiment.rows[0], "margin", column)
        axes.plot(margin, weight, color=shade, linestyle=(0, (4, 1.5)))
        ends.append((float(weight[-1]), f"DPO, $\\beta$ = {column.removeprefix(DPO)}", shade))
    axes.set_yscale("log")
    plain_log(axes.yaxis, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
    axes.set_xlim(float(margin[0]), float(margin[-1]))
    axes.set_xlabel("margin of the better answer (nats)")
    axes.set_ylabel("weight of the pair")
    sns.despine(ax=axes)
    style.label_ends(figure, [(axes, ends)])
    return figure


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what the weight multiplies."""
    return material.told(
        "Groups of two: the weight of the difference of the two answers' scores in the update of a mixed "
        "group (solid), and in the gradient of DPO (dashed), against the margin by which the policy "
        "prefers the better answer more than the reference does; the reward gap is 1 unless another is "
        "stated. Group-std drops the reward gap; the group mean scales with it."
    )
