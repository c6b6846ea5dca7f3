"""What a stabiliser beside the spread or under its root, and the divisor G - 1, make of group-std's factor."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, shades, success_axis
from grpo_ablate.spec.exact_files import ExactRow

EPS = "advantage.eps"


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw a panel per group size and variant, a line per stabiliser, the limit behind them."""
    material.need("stabiliser", SIZE, EPS, "success", "norm_ratio", "limit_norm_ratio")
    sizes, stabilisers, rows = material.values(SIZE), material.values(EPS), material.experiment.rows
    figure, panels = plt.subplots(
        len(sizes), len(rows), figsize=(style.DOUBLE, 1.45 * len(sizes) + 0.3), sharex=True, sharey="row",
        squeeze=False, layout="constrained",
    )  # fmt: skip
    labels = []
    for line, size in zip(panels, sizes, strict=True):
        for axes, row in zip(line, rows, strict=True):
            ends = []
            for index, (eps, colour) in enumerate(zip(stabilisers, shades(len(stabilisers)), strict=True)):
                x, factor = material.curve(row, "success", "norm_ratio", {SIZE: size, EPS: eps})
                # Two stabilisers so small that their lines coincide are to show both.
                dashes = style.interleaved(index, 2) if index < 2 else "-"
                axes.plot(x, factor, color=colour, linestyle=dashes, dash_capstyle="butt")
                ends.append((float(factor[-1]), f"{eps:g}", colour))
            held = {SIZE: size, EPS: stabilisers[0]}
            axes.plot(*material.curve(row, "success", "limit_norm_ratio", held), color=style.GREY, linewidth=0.6,
                      linestyle=(0, (1, 1.5)), zorder=1)  # fmt: skip
            axes.set_title(_formula(row) if size == sizes[0] else "")
            success_axis(axes)
            axes.set_xlabel(axes.get_xlabel() if size == sizes[-1] else "")
            labels.append((axes, ends))
        top = max(max(material.curve(row, "success", "norm_ratio", {SIZE: size})[1]) for row in rows)
        line[0].set_ylim(0, 1.25 * top)
        line[0].set_ylabel(f"factor $c_G(p)$, $G$ = {size:g}")
    for axes in panels.flat:
        axes.set_xlim(0, float(x[-1]))
        sns.despine(ax=axes)
    style.label_ends(figure, labels)
    return figure


def _formula(row: ExactRow) -> str:
    """What the advantage is divided by."""
    divisor = r"\sqrt{s^2 + \varepsilon}" if row.switches.advantage.eps_inside else r"s + \varepsilon"
    return f"${divisor}$" + (", divisor $G - 1$" if row.switches.advantage.ddof else "")


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say which variants there are."""
    return material.told(
        "The factor of group-std on the gradient of a success probability, for stabilisers of several "
        "sizes (at the lines' ends), added to the spread $s$, added under its root, and added with the "
        "divisor $G - 1$; dotted: the limit $1/sqrt(p(1-p))$ without a stabiliser."
    )
