"""Where the expected clipped update goes flat as the policy moves away from where its groups were drawn."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import BLUE, ORANGE, ExactMaterial
from grpo_ablate.spec.exact_files import ExactRow

UNCLIPPED = "#000000"
COLOURS = (BLUE, ORANGE, style.PALETTE[2], style.PALETTE[3])
USUAL = 1.2 + 1e-9  # upper bound of the usual clip: a higher one is dashed


def _component(material: ExactMaterial) -> str:
    """The column of the first component of the update: the parameter that moves."""
    return next((c for c in material.table.columns if c.startswith("update/")), "update/0: 0")


def _bound(row: ExactRow) -> float | None:
    high = row.switches.update.clip_high
    return None if isinstance(high, str) else 1.0 + high


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the update against the step, a panel per success probability at which groups were drawn."""
    component = _component(material)
    material.need("plateau", "success", "step", component)
    starts = material.values("success")
    figure, panels = plt.subplots(
        1, len(starts), figsize=(style.DOUBLE, 1.95), sharex=True, squeeze=False, layout="constrained"
    )
    rows = sorted(material.experiment.rows, key=lambda row: _bound(row) is not None)
    colours = iter(COLOURS)
    looks = {row.id: UNCLIPPED if _bound(row) is None else next(colours) for row in rows}
    for axes, start in zip(panels[0], starts, strict=True):
        for row in rows:
            step, update = material.curve(row, "step", component, {"success": start})
            clipped = _bound(row) is not None
            axes.plot(step, update, color=looks[row.id], linewidth=1.1 if clipped else 2.4,
                      alpha=1 if clipped else 0.25, linestyle=_dashes(row))  # fmt: skip
        axes.axvline(0, color=style.GREY, linewidth=0.5, linestyle=(0, (1, 1.5)), zorder=0)
        axes.set_ylim(bottom=0)
        axes.set_title(f"drawn at $p$ = {start:g}: ratio at most {1 / start:.3g}")
        axes.set_xlabel("step of the logit since drawing")
        sns.despine(ax=axes)
    panels[0, 0].set_ylabel("expected update\nof that logit")
    handles = [
        plt.Line2D([], [], color=looks[row.id], alpha=1 if _bound(row) else 0.4, linestyle=_dashes(row),
                   linewidth=1.1 if _bound(row) else 2.4, label=row.label)
        for row in material.experiment.rows
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _dashes(row: ExactRow) -> Any:
    """Clips differ in their upper bound alone and coincide elsewhere."""
    bound = _bound(row)
    return (0, (3, 1.5)) if bound is not None and bound > USUAL else "-"


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what goes flat, and when it cannot."""
    return material.told(
        "The expected update of the right answer's logit, a step after the groups were drawn. The right "
        "answer's ratio cannot exceed $1/p$: the upper bound is reached only where $1/p$ lies above it, "
        "and what is left beyond it comes from wrong answers until they reach the lower bound."
    )
