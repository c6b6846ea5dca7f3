"""Learning curves against everything a row spends: rollouts, tokens, updates and seconds, side by side."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import curves
from grpo_ablate.analysis.figures.material import Material

COUNTERS = ["rollouts", "tokens", "updates", "seconds"]


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw the same curves against each measure of cost, a column of panels for each."""
    return curves.draw(material, {**options, "x": COUNTERS})


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the curves show."""
    return curves.caption(material, {**options, "x": COUNTERS})
