"""How the expected update of each KL estimator agrees with the gradient of the KL, in every gradient variant."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import (
    BLUE,
    GREEN,
    ROUNDING,
    VERMILLION,
    ExactMaterial,
    plain_log,
)
from grpo_ablate.spec.exact_files import ExactRow

COLOURS = {"k1": VERMILLION, "k2": BLUE, "k3": GREEN, "exact": "#000000"}
VARIANTS = {"pathwise": "differentiate $k$", "ratio": "differentiate $u\\,k$",
            "score-function": "$k$ times the score"}  # fmt: skip
MEASURES = {"kl_cosine": "cosine", "kl_norm_ratio": "ratio of norms"}
WIDE = 3.0  # a ratio of norms beyond this needs a logarithmic axis


def _moved(material: ExactMaterial) -> bool:
    """Whether responses were drawn before the policy moved."""
    return "step" in material.experiment.vary


def _rows(material: ExactMaterial, variant: str) -> list[ExactRow]:
    """The estimators of a gradient variant, and the exact KL, which has none."""
    return [
        row
        for row in material.experiment.rows
        if row.switches.kl.estimator == "exact" or row.switches.kl.gradient == variant
    ]


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw cosine and ratio of norms against the KL or the step, a panel per gradient variant."""
    x = "step" if _moved(material) else "kl"
    material.need("agreement", x, *MEASURES)
    figure, panels = plt.subplots(
        len(MEASURES), len(VARIANTS), figsize=(style.DOUBLE, 2.6), sharex=True, sharey="row", layout="constrained"
    )
    labels = []
    for line, (measure, name) in zip(panels, MEASURES.items(), strict=True):
        for axes, (variant, title) in zip(line, VARIANTS.items(), strict=True):
            rows = _rows(material, variant)
            labels.append((axes, _lines(axes, material, rows, x, measure)))
            if measure == next(iter(MEASURES)):
                axes.set_title(title)
        line[0].set_ylabel(name)
    largest = material.table["kl_norm_ratio"].max()
    low = min(0.0, float(material.table["kl_cosine"].min()))
    panels[0, 0].set_ylim(low - 0.05, 1.06)
    if largest > WIDE:
        panels[1, 0].set_yscale("log")
        plain_log(panels[1, 0].yaxis, 1, 2, 4, 8)
        panels[1, 0].set_ylim(0.8, 1.1 * largest)
    else:
        panels[1, 0].set_ylim(-0.08, 1.05 * largest)
    span = material.table[x]
    for axes in panels.flat:
        axes.set_xlim(span.min() if _moved(material) else 0, span.max())
        if _moved(material):
            axes.axvline(0, color=style.GREY, linewidth=0.5, linestyle=(0, (1, 1.5)), zorder=0)
        sns.despine(ax=axes)
    for axes in panels[-1]:
        axes.set_xlabel(
            "step since the responses were drawn" if _moved(material) else "KL to the reference (nats)"
        )
    style.label_ends(figure, labels)
    return figure


def _lines(
    axes: Axes, material: ExactMaterial, rows: list[ExactRow], x: str, measure: str
) -> list[tuple[float, str, str]]:
    """Draw a line per estimator, coincident ones in turn; return their labels."""
    curves = {}
    for row in rows:
        place, value = material.curve(row, x, measure)
        curves[row.switches.kl.estimator] = (place, value)
    right = [name for name, (_, y) in curves.items() if np.allclose(y, 1.0, atol=1e-9, rtol=0)]
    ends = []
    for name, (place, value) in curves.items():
        dashes = style.interleaved(right.index(name), len(right)) if name in right else "-"
        if np.isfinite(value).any():
            axes.plot(
                place, value, color=COLOURS[name], linestyle=dashes, dash_capstyle="butt", solid_capstyle="butt",
                clip_on=False, zorder=3 if name in right else 2,
            )  # fmt: skip
            ends.append((float(value[-1]), f"${_mathtext(name)}$", COLOURS[name]))
    nothing = [name for name, (_, y) in curves.items() if not np.isfinite(y).any() or np.all(np.abs(y) < ROUNDING)]
    if nothing and measure == "kl_cosine":
        axes.text(
            0.97, 0.06, f"${_mathtext(nothing[0])}$: no gradient", transform=axes.transAxes, ha="right",
            color=COLOURS[nothing[0]], fontsize=6.5,
        )  # fmt: skip
    return ends


def _mathtext(name: str) -> str:
    return f"k_{name[1:]}" if name != "exact" else "\\mathrm{exact}"


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what is compared, and where."""
    where = (
        "against the step since the responses were drawn (dotted: on policy)"
        if _moved(material)
        else "on policy, against the KL to the reference"
    )
    return material.told(
        "The expected gradient of each KL estimator beside that of KL(pi, pi_ref) itself: cosine (above) "
        f"and ratio of norms (below), {where}. Columns: what is differentiated, with $u$ the probability "
        "ratio to the policy the responses were drawn from; interleaved dashes coincide."
    )
