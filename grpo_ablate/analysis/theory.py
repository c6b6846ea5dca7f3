"""What the paper says of expected updates: every number read from the exact tables and the propositions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.notation import power_of_ten, scientific
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from grpo_ablate.analysis.figures.exact.material import ExactMaterial
    from grpo_ablate.spec.exact_files import ExactExperiment

# The exact experiments that the text tells of.
TOLD = (
    "exact-baselines", "exact-budget", "exact-direction", "exact-dynamics", "exact-factor", "exact-kl",
    "exact-kl-off-policy", "exact-length", "exact-pairs", "exact-surrogates",
)  # fmt: skip
FIGURES = (
    "exact-factor-factor", "exact-length-push", "exact-kl-agreement", "exact-surrogates-slope",
    "exact-dynamics-success",
)  # fmt: skip
PROPOSITIONS = "tables/propositions.csv"
EXACT = 1e-9  # a larger tolerance is that of a printed value or of a trend, not of two exact calculations
PENALTY = "0.1"  # beta of the dynamics with a KL
SIZE, SUCCESS = "sampling.group_size", "success"


def numbers(experiments: Mapping[str, ExactExperiment], results: Path) -> dict[str, Any]:
    """Return everything that the theory section prints and that is not its own words.

    Raises:
        UserError: a table is missing, or lacks what the text tells of.
    """
    from grpo_ablate.analysis.figures.exact.material import load

    told = {name: load(experiments[name], results) for name in TOLD}
    findings = _findings(results / PROPOSITIONS)
    return {
        "propositions": propositions(findings),
        **{topic: read(told, findings) for topic, read in TOPICS.items()},
    }


def captions(experiments: Mapping[str, ExactExperiment], results: Path) -> dict[str, str]:
    """Return the caption of every figure of the exact experiments that the text tells of, by its full name."""
    from grpo_ablate.analysis import figures
    from grpo_ablate.analysis.figures.exact.material import load

    return {
        f"{name}-{figure}": caption
        for name in TOLD
        for figure, caption in figures.captions(experiments[name], load(experiments[name], results)).items()
    }


def propositions(findings: pd.DataFrame) -> dict[str, Any]:
    """Return a line per proposition: how many findings, how many hold, and how exactly the equalities do."""
    lines = []
    for title, group in findings.groupby("title", sort=False):
        equal = group[(group["relation"] == "equals") & (group["tolerance"] <= EXACT)]
        holding = int((group["verdict"] == "holds").sum())
        lines.append(
            {
                "title": str(title),
                "findings": str(len(group)),
                "holding": str(holding),
                "all": holding == len(group),
                "gap": scientific(float(equal["difference"].abs().max())) if len(equal) else "",
            }
        )
    return {
        "rows": lines,
        "count": str(len(lines)),
        "findings": str(len(findings)),
        "holding": str(int((findings["verdict"] == "holds").sum())),
        "all": bool((findings["verdict"] == "holds").all()),
        "exact": power_of_ten(EXACT),
    }


Told = Mapping[str, "ExactMaterial"]


def mean(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return how exactly the group mean shrinks the gradient, and leave-one-out does not."""
    found = findings[(findings["proposition"] == "group-mean") & findings["quantity"].str.contains("gradient")]
    return {"gap": scientific(float(found["difference"].abs().max()))}


def direction(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the cosines of the counterexample, the angle at the smallest group, and the population limit's."""
    material = told["exact-direction"]
    rewards = [c.partition("r=")[2] for c in material.table.columns if c.startswith("gradient/")]
    cosines = {size: _value(material, "group-std", "cosine", {SIZE: size}) for size in (2, 4, 8)}
    limit = _finding(
        findings, "population-limit", "two prompts, logits w1 and w1 + w2, w = (-1, 1/2)", "their cosine"
    )
    return {
        "rewards": _listed(rewards),
        "sizes": _listed([str(size) for size in cosines]),
        "cosines": _listed([f"{cosine:.4f}" for cosine in cosines.values()]),
        "angle": f"{math.degrees(math.acos(cosines[2])):.0f}",
        "limit": f"{limit:.4f}",
    }


def factor(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the factor of group-std at a few points, and the chance of a mixed group."""
    material = told["exact-factor"]

    def at(column: str, size: int, success: float) -> float:
        return _value(material, "group-std", column, {SIZE: size, SUCCESS: success})

    sizes = material.values(SIZE)
    return {
        "some": {"size": "8", "success": "0.1", "factor": f"{at('norm_ratio', 8, 0.1):.2f}"},
        "rare": {
            "size": f"{sizes[-1]:g}",
            "success": "0.01",
            "factor": f"{at('norm_ratio', int(sizes[-1]), 0.01):.1f}",
            "limit": f"{at('limit_norm_ratio', int(sizes[-1]), 0.01):.1f}",
        },
        "mixed": {"success": "0.01", "two": f"{at('p_mixed', 2, 0.01):.3f}", "size": "16",
                  "many": f"{at('p_mixed', 16, 0.01):.3f}"},
    }  # fmt: skip


def budget(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return what a larger group costs at a fixed number of rollouts, and what a filter changes."""
    material = told["exact-budget"]
    sizes = [int(size) for size in material.values(SIZE)]
    first, last = sizes[0], sizes[-1]

    def at(row: str, column: str, size: int) -> float:
        return _value(material, row, column, {SIZE: size})

    gains = [
        abs(at("group-std", "gain_per_rollout", size) - at("group-std--drop", "gain_per_rollout", size))
        for size in sizes
    ]
    noise = {size: at("leave-one-out", "noise_per_rollout", size) for size in sizes}
    least = min(noise, key=noise.__getitem__)
    after = [noise[size] for size in sizes if size >= least]
    if not first < least < last or after != sorted(after):
        raise UserError(
            f"{material.experiment.path}: the paper says that the noise of leave-one-out falls, then grows with "
            "the group size, which the table does not."
        )
    return {
        "first": str(first),
        "last": str(last),
        "least": str(least),
        "noise_least": f"{noise[least]:.0f}",
        "filter": f"{at('group-std--drop', 'norm_ratio', first) / at('group-std', 'norm_ratio', first):.2f}",
        "filter_gap": scientific(max(gains)),
        "noise_first": f"{noise[first]:.0f}",
        "noise_last": f"{noise[last]:.0f}",
        "angle_last": f"{_degrees(at('group-std', 'cosine', last)):.0f}",
    }


def baselines(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the success probability from which on the group mean is noisier than no baseline."""
    from grpo_ablate.analysis.figures.exact.variance import raised_from

    material = told["exact-baselines"]
    small, large = material.values(SIZE)[0], material.values(SIZE)[-1]
    least = min(material.values(SUCCESS))
    starts = {size: raised_from(material, size) for size in (small, large)}
    if starts[small] != least or starts[large] is None:
        raise UserError(
            f"{material.experiment.path}: the paper says that the group mean is noisier than no baseline "
            "everywhere at the smallest group size and somewhere at the largest, which the table does not."
        )
    return {"small": f"{small:g}", "large": f"{large:g}", "from": f"{starts[large]:.2f}"}


def lengths(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return angle and noise of every reduction, and how hard 1/L pushes long wrong answers."""
    material = told["exact-length"]
    size = material.values(SIZE)[-1]

    def at(row: str, column: str) -> float:
        return _value(material, row, column, {SIZE: size})

    def push(row: str) -> float:
        return at(row, "push_classes/long-wrong") / at(row, "norm_ratio")

    rows = ("sequence-mean", "token-mean", "constant", "sequence-sum")
    return {
        "size": f"{size:g}",
        "angle": {row: f"{_degrees(at(row, 'cosine')):.0f}" for row in rows},
        "noise": {row: f"{at(row, 'noise_per_rollout'):.1f}" for row in rows},
        "push": f"{push('sequence-mean') / push('sequence-sum--leave-one-out'):.0%}".replace("%", " %"),
    }


def divergence(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return how far the gradient of k3 strays, on policy and off, and how exact the right ones are."""
    on, off = told["exact-kl"], told["exact-kl-off-policy"]
    row, moved_row = _row(on, "k3--pathwise"), _row(off, "k3--pathwise")
    distance, cosine = on.curve(row, "kl", "kl_cosine")
    near = int(abs(distance - 0.25).argmin())
    norm, moved_cosine = (off.curve(moved_row, "step", name)[1][-1] for name in ("kl_norm_ratio", "kl_cosine"))
    right = [
        *(on.lines(_row(on, name))["kl_error"].max() for name in ("k1--ratio", "k3--ratio", "k2--pathwise")),
        *(off.lines(_row(off, name))["kl_error"].max() for name in ("k1--ratio", "k3--ratio")),
    ]
    return {
        "near": f"{distance[near]:.2f}",
        "near_cosine": f"{cosine[near]:.2f}",
        "far": f"{distance[-1]:.2f}",
        "far_cosine": f"{cosine[-1]:.2f}",
        "moved_norm": f"{norm:.1f}",
        "moved_cosine": f"{moved_cosine:.2f}",
        "gap": scientific(float(max(right))),
    }


def surrogates(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the slopes of a token with a negative advantage at the largest ratio of the table."""
    material = told["exact-surrogates"]
    ratio = max(material.values("ratio"))
    rows = ("clip", "dual-clip", "soft")
    slopes = {row: _value(material, row, "slope", {"ratio": ratio, "advantage": -1.0}) for row in rows}
    return {"ratio": f"{ratio:g}", **{row: f"{abs(slope):.1f}" for row, slope in slopes.items()}}


def dynamics(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return how many updates and rollouts each advantage takes from a small success probability."""

    def updates(row: str, size: int) -> int:
        case = f"{row}, G = {size}, from p = 0.01, learning rate 1"
        return round(_finding(findings, "dynamics", case, "updates to p >= 0.9"))

    def overtaken(row: str) -> str:
        said = f"from exact KL with beta = {PENALTY}, p = pi_ref = 0.01, to 1000 rollouts"
        case = f"{row}, G = {large} beside G = {small}, {said}"
        return str(round(_finding(findings, "dynamics", case, f"G = {large} overtakes at rollout")))

    small, large = 2, 8
    rows = ("group-std", "leave-one-out", "mean only")
    return {
        "start": "0.01",
        "beta": PENALTY,
        "overtaken": {row: overtaken(row) for row in ("group-std", "mean only")},
        "goal": "0.9",
        "small": str(small),
        "large": str(large),
        "updates": {row: str(updates(row, large)) for row in rows},
        "rollouts_small": str(small * updates("group-std", small)),
        "rollouts_large": str(large * updates("group-std", large)),
    }


def process(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the cosine between the expected updates of process and of outcome supervision."""
    case = "token tree, sequence-sum, G = 2"
    return {"cosine": f"{_finding(findings, 'process', case, 'cosine of process and outcome updates'):.2f}"}


def pairs(told: Told, findings: pd.DataFrame) -> dict[str, Any]:
    """Return the weight of a pair under group-std, and DPO's at both ends of the margin."""
    material = told["exact-pairs"]
    lines = material.lines(_row(material, "group-std")).sort_values("margin")
    weights = material.lines(_row(material, "group-std"))["pair_weight"]
    return {
        "weight": f"{weights.iloc[0]:g}",
        "spread": scientific(float(weights.max() - weights.min())),
        "margin": f"{lines['margin'].iloc[-1]:.1f}",
        "low": f"{lines['dpo_weight/1'].iloc[-1]:.2f}",
        "high": f"{lines['dpo_weight/1'].iloc[0]:.2f}",
    }


TOPICS: dict[str, Callable[[Told, pd.DataFrame], dict[str, Any]]] = {
    "mean": mean,
    "direction": direction,
    "factor": factor,
    "budget": budget,
    "baselines": baselines,
    "lengths": lengths,
    "divergence": divergence,
    "surrogates": surrogates,
    "dynamics": dynamics,
    "process": process,
    "pairs": pairs,
}


def _findings(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.exists():
        raise UserError(f"{path}: the table is missing; make it with: grpo-ablate propositions")
    return pd.read_csv(path, keep_default_na=False)


def _finding(findings: pd.DataFrame, proposition: str, case: str, quantity: str) -> float:
    found = findings[
        (findings["proposition"] == proposition) & (findings["case"] == case) & (findings["quantity"] == quantity)
    ]
    if not len(found):
        raise UserError(f"{PROPOSITIONS}: the paper tells of '{quantity}' of {case}, which {proposition} lacks.")
    return float(found["value"].iloc[0])


def _row(material: ExactMaterial, name: str) -> Any:
    for row in material.experiment.rows:
        if row.id == name:
            return row
    raise UserError(f"{material.experiment.path}: the paper tells of row '{name}', which the file lacks.")


def _value(material: ExactMaterial, row: str, column: str, held: Mapping[str, float]) -> float:
    lines = material.lines(_row(material, row), held)
    if column not in lines or not len(lines):
        where = ", ".join(f"{name} = {value:g}" for name, value in held.items())
        raise UserError(
            f"{material.experiment.path}: the paper tells of {column} of row '{row}' at {where}, which the table "
            "lacks."
        )
    return float(lines[column].iloc[0])


def _degrees(cosine: float) -> float:
    return math.degrees(math.acos(min(1.0, cosine)))


def _listed(parts: Sequence[str]) -> str:
    """Return words as a list in prose.

    >>> _listed(["2", "4", "8"])
    '2, 4 and 8'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
