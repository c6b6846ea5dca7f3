"""Clip activity and entropy over training: the share of tokens held at either bound, and what it leads to."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines
from grpo_ablate.analysis.figures.material import COST_LABELS, Material

SHOWN = {
    "train/clip_fraction_high": "upper bound",
    "train/clip_fraction_low": "lower bound",
    "train/entropy": "entropy",
}


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a column of panels for each of the three."""
    cells = [(metric, options["x"]) for metric in SHOWN]
    return lines.strip(material, lines.groups(material, options["rows"]), cells, list(SHOWN.values()))


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the panels show."""
    groups = lines.groups(material, options["rows"])
    return (
        "Share of tokens held at the upper and at the lower clip bound, where that branch is active, and exact "
        f"entropy per trained token, against {COST_LABELS[options['x']]}, over the rounds between two evaluations "
        f"(per row {lines.seeds(material, groups)}); {lines.DRAWN}.{lines.repeated(groups)}"
    )
