"""What the paper says of the testbeds that train language models, and of what all runs cost."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_ablate.analysis.figures.material import Material
    from grpo_ablate.spec.schema import Spec

TIMES = "\N{MULTIPLICATION SIGN}"


def testbeds(materials: Mapping[str, Material]) -> list[dict[str, str]]:
    """Return a line per testbed of a language model: how the baseline trains there, and what it gains.

    Where several experiments share a testbed, the baseline of the first by name speaks for it.
    """
    found: dict[str, dict[str, str]] = {}
    for name in sorted(materials):
        material = materials[name]
        experiment = material.experiment
        row = experiment.row(experiment.baseline)
        if row.spec.policy.name != "stacked" or row.id not in set(material.runs["row"]):
            continue
        found.setdefault(experiment.testbed.name, {**_setting(row.spec), **_gain(material)})
    return [{"testbed": testbed, **line} for testbed, line in sorted(found.items())]


def _setting(spec: Spec) -> dict[str, str]:
    return {
        "task": spec.task.name,
        "rollouts": f"{spec.sampling.prompts} {TIMES} {spec.sampling.group_size}",
        "rounds": str(spec.rounds),
        "steps": f"{spec.update.inner_passes} {TIMES} {spec.update.minibatches}",
        "optimizer": f"{spec.optimizer.name} {spec.optimizer.learning_rate:g}",
        "limit": str(spec.sampling.max_tokens),
    }


def _gain(material: Material) -> dict[str, str]:
    experiment = material.experiment
    row = experiment.row(experiment.baseline)
    runs = material.runs[material.runs["row"] == row.id]
    start = runs[runs["round"] == 0].set_index("seed")[experiment.metric]
    final = material.final(row, experiment.metric)
    up = int((final > start.sort_index().to_numpy()).sum()) if len(start) == len(final) else 0
    return {"start": f"{start.mean():.3f}", "end": f"{final.mean():.3f}", "up": f"{up} of {len(final)}"}


def cost(materials: Mapping[str, Material]) -> dict[str, str]:
    """Return what the distinct runs took together, single-threaded: hours or minutes."""
    seconds: dict[Hashable, float] = {}
    for material in materials.values():
        last = material.runs.groupby(["testbed", "hash", "seed"])["seconds"].max()
        seconds |= {key: float(value) for key, value in last.items()}
    total = sum(value for value in seconds.values() if math.isfinite(value))
    return {"time": f"{total / 3600:.1f} hours" if total >= 5400 else f"{total / 60:.0f} minutes"}
