"""Lengths over training: of right and of wrong answers, and the share stopped by the limit."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines
from grpo_ablate.analysis.figures.material import COST_LABELS, Material

SHOWN = {
    "train/length_right": "right answers",
    "train/length_wrong": "wrong answers",
    "train/truncated": "stopped by the limit",
}


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a column of panels for each of the three."""
    cells = [(metric, options["x"]) for metric in SHOWN]
    return lines.strip(material, lines.groups(material, options["rows"]), cells, list(SHOWN.values()))


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the panels show."""
    groups = lines.groups(material, options["rows"])
    return (
        f"Mean length of right and of wrong answers, and the share stopped by the limit, against "
        f"{COST_LABELS[options['x']]}, over the rounds between two evaluations (per row "
        f"{lines.seeds(material, groups)}); {lines.DRAWN}.{lines.repeated(groups)}"
    )
