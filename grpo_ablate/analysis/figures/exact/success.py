"""The success probability under expected updates, against updates and against rollouts."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, colour, plain_log
from grpo_ablate.spec.exact_files import ExactRow

COSTS = ("updates", "rollouts")
FIRST = 2.0  # rollouts where a logarithmic axis begins: the smallest group
SETTLED = 0.03  # a curve this close to its end is at it
DASHES: tuple[style.Dashes, ...] = ((0, (1, 1)), (0, (4, 1.5)), "-")


def _rows(material: ExactMaterial, options: dict[str, Any]) -> list[ExactRow]:
    return [row for row in material.experiment.rows if (row.switches.kl.beta > 0) == bool(options["kl"])]


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw a panel per start and cost; colours are advantages, dashes group sizes."""
    material.need("success", SIZE, "success", "expected_reward", *COSTS)
    rows, sizes, starts = _rows(material, options), material.values(SIZE), material.values("success")
    figure, panels = plt.subplots(
        len(COSTS), len(starts), figsize=(style.DOUBLE, 2.9), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    looks = {size: DASHES[max(0, len(DASHES) - len(sizes)) + i] for i, size in enumerate(sizes)}
    for line, cost in zip(panels, COSTS, strict=True):
        for axes, start in zip(line, starts, strict=True):
            for row in rows:
                for size in sizes:
                    held = {SIZE: size, "success": start}
                    x, y = material.curve(row, cost, "expected_reward", held)
                    if cost == "rollouts":  # on a logarithmic axis a curve begins with its first group
                        x, y = x[x > 0], y[x > 0]
                    axes.plot(x, y, color=colour(row), linestyle=looks[size], dash_capstyle="butt")
            _costs(axes, material, cost, _settled(material, rows, start, cost))
            axes.set_xlabel(cost)
            sns.despine(ax=axes)
        line[0].set_ylabel("success $p$")
    for axes, start in zip(panels[0], starts, strict=True):
        axes.set_title(f"from $p$ = {start:g}")
    panels[0, 0].set_ylim(0, 1.02)
    handles = [plt.Line2D([], [], color=colour(row), label=row.label) for row in rows]
    handles += [
        plt.Line2D([], [], color=style.GREY, linestyle=look, label=f"$G$ = {size:g}")
        for size, look in looks.items()
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, columnspacing=1.4
    )
    return figure


def _settled(material: ExactMaterial, rows: list[ExactRow], start: float, cost: str) -> float:
    """Return the cost from which on every curve of a panel is nearly where it ends."""
    last = 0.0
    for row in rows:
        for size in material.values(SIZE):
            x, y = material.curve(row, cost, "expected_reward", {SIZE: size, "success": start})
            far = np.flatnonzero(np.abs(y - y[-1]) > SETTLED)
            last = max(last, float(x[min(int(far[-1]) + 1, len(x) - 1)]) if len(far) else 0.0)
    return last


def _costs(axes: Axes, material: ExactMaterial, cost: str, last: float) -> None:
    """Rollouts differ by a factor between group sizes: their axis is logarithmic."""
    if cost == "rollouts":
        axes.set_xscale("log")
        axes.set_xlim(FIRST, last)
        plain_log(axes.xaxis, 10, 100, 1000)
    else:
        axes.set_xlim(0, last)


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what is followed, and what is held."""
    plan = material.experiment.iterate
    rate = f" of learning rate {plan.learning_rate:g}" if plan else ""
    rows = _rows(material, options)
    beta = f" and beta {rows[0].switches.kl.beta:g}" if options["kl"] and rows else ""
    return material.told(
        f"Success probability under expected updates{rate}{beta}, against updates (above) and against "
        "rollouts (below, log scale, one group per update, each curve from its first update on). "
        "Group-std with groups of 2 coincides with "
        "leave-one-out at every group size."
    )
