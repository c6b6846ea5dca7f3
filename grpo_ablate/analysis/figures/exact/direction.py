"""Where the expected update of each advantage points, beside the reward gradient, as the group grows."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.material import SIZE, ExactMaterial, colour, shades, size_axis
from grpo_ablate.spec.exact_files import ExactRow

ARROWS = (2, 3, 4, 8)  # sizes drawn as arrows; larger ones can no longer be told from the gradient


def _components(material: ExactMaterial, name: str) -> list[str]:
    return [column for column in material.table.columns if column.startswith(f"{name}/")]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _turning(material: ExactMaterial) -> ExactRow:
    """The first of the rows that turn most."""
    return min(material.experiment.rows, key=lambda row: round(float(material.lines(row)["cosine"].min()), 9))


def draw(material: ExactMaterial, options: dict[str, Any]) -> Figure:
    """Draw the directions in their plane, the angle to the gradient, and the components against group size."""
    material.need("direction", SIZE, "cosine", *(_components(material, "update") or ["update/0: 0"]))
    figure, (plane, angles, parts) = plt.subplots(
        1, 3, figsize=(style.DOUBLE, 2.1), layout="constrained", width_ratios=(1.75, 1, 1)
    )
    labels = [(plane, _plane(plane, material)), (angles, _angles(angles, material))]
    labels.append((parts, _parts(parts, material)))
    for axes in (angles, parts):
        size_axis(axes, material.values(SIZE))
    for axes in (plane, angles, parts):
        sns.despine(ax=axes)
    style.label_ends(figure, labels)
    return figure


def _plane(axes: Axes, material: ExactMaterial) -> list[tuple[float, str, str]]:
    """Draw unit vectors in the plane of updates, whose components add up to zero."""
    columns, row = _components(material, "update"), _turning(material)
    low, middle, high = np.eye(3)
    basis = np.stack([(2 * high - middle - low) / np.sqrt(6), (middle - low) / np.sqrt(2)], axis=-1)
    sizes = [size for size in material.values(SIZE) if size in ARROWS]
    gradient = _unit(material.lines(row)[_components(material, "gradient")].to_numpy()[:1] @ basis)[0]
    arrows = [(gradient, "gradient", "black")]
    for size, shade in zip(sizes, shades(len(sizes)), strict=True):
        vector = material.lines(row, {SIZE: size})[columns].to_numpy() @ basis
        arrows.append((_unit(vector)[0], f"$G$ = {size:g}", shade))
    for (x, y), _, shade in arrows:
        axes.annotate(
            "", (x, y), (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": shade, "linewidth": 1, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    names = [name.partition(": ")[2] or name for name in columns]
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 0.58)
    axes.set_aspect("equal")
    axes.set_xlabel(f"towards {names[2]}")
    axes.set_ylabel(f"from {names[0]} to {names[1]}")
    axes.set_title(f"directions: {row.label}")
    return [(float(y), text, shade) for (_, y), text, shade in arrows]


def _angles(axes: Axes, material: ExactMaterial) -> list[tuple[float, str, str]]:
    ends = []
    for index, row in enumerate(material.experiment.rows):
        size, cosine = material.curve(row, SIZE, "cosine")
        angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
        dashes = style.interleaved(index % 2, 2)
        axes.plot(size, angle, color=colour(row), linestyle=dashes, dash_capstyle="butt", clip_on=False)
        ends.append((float(angle[-1]), row.label.replace("divisor ", ""), colour(row)))
    axes.set_ylim(bottom=0)
    axes.set_title("angle to the gradient (degrees)")
    return ends


def _parts(axes: Axes, material: ExactMaterial) -> list[tuple[float, str, str]]:
    row = _turning(material)
    size = material.curve(row, SIZE, "cosine")[0]
    updates = _unit(material.lines(row)[_components(material, "update")].to_numpy())
    gradients = _unit(material.lines(row)[_components(material, "gradient")].to_numpy())
    ends = []
    for place, name in enumerate(_components(material, "update")):
        shade = style.PALETTE[place]
        axes.plot(size, updates[:, place], color=shade)
        axes.plot(size, gradients[:, place], color=shade, linestyle=(0, (2, 2)), linewidth=0.7)
        ends.append((float(updates[-1, place]), name.partition(": ")[2] or name, shade))
    axes.axhline(0, color=style.GREY, linewidth=0.5)
    axes.set_title("unit update, by response")
    return ends


def caption(material: ExactMaterial, options: dict[str, Any]) -> str:
    """Say what turns."""
    row = _turning(material)
    return material.told(
        f"Left: direction of the expected update ({row.label}) in the plane of updates, beside the reward "
        "gradient (black). Middle: the angle between them, for each advantage. Right: the components of "
        "the unit update; dashed: of the unit gradient."
    )
