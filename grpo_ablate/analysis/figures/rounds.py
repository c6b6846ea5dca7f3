"""Metrics of the rounds between two evaluations over training, a column of panels for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import lines
from grpo_ablate.analysis.figures.material import COST_LABELS, Material


@dataclass(frozen=True)
class Shown:
    """The columns of one kind of figure."""

    headings: dict[str, str]  # metric -> what stands above its column
    words: str  # what the columns show, for the caption


KINDS = {
    "lengths": Shown(
        {
            "train/length_right": "right answers",
            "train/length_wrong": "wrong answers",
            "train/truncated": "stopped by the limit",
        },
        "Mean length of right and of wrong answers, and the share stopped by the limit",
    ),
    "clipping": Shown(
        {
            "train/clip_fraction_high": "upper bound",
            "train/clip_fraction_low": "lower bound",
            "train/entropy": "entropy",
        },
        "Share of tokens held at the upper and at the lower clip bound, where that branch is active, and exact "
        "entropy per trained token",
    ),
}


def draw(material: Material, options: dict[str, Any]) -> Figure:
    """Draw a column of panels for each metric of the kind."""
    headings = KINDS[options["kind"]].headings
    cells = [(metric, options["x"]) for metric in headings]
    return lines.strip(material, lines.groups(material, options["rows"]), cells, list(headings.values()))


def caption(material: Material, options: dict[str, Any]) -> str:
    """Say what the panels show."""
    groups = lines.groups(material, options["rows"])
    return (
        f"{KINDS[options['kind']].words}, against {COST_LABELS[options['x']]}, over the rounds between two "
        f"evaluations (per row {lines.seeds(material, groups)}); {lines.DRAWN}.{lines.repeated(groups)}"
    )
