"""What the paper says of each compared experiment: its rows, claims, controls and figures, from the comparison.

The paper has a section per switch: its experiments stand here, its words in ``paper/switches.typ``.
An experiment that stands nowhere gets a section of its own, under its own name and without words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis import figures
from grpo_ablate.analysis.comparison import (
    VERDICTS,
    ClaimResult,
    Comparison,
    Difference,
    RowResult,
    read_comparison,
)

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

# Section -> its experiments, in the order of the paper.
SECTIONS: dict[str, tuple[str, ...]] = {
    "normalization": (
        "normalization", "normalization-translation", "normalization-mixed", "normalization-mixed-sgd",
        "normalization-per-seed",
    ),
    "reward-transforms": ("reward-transforms",),
    "reduction": ("reduction",),
    "clipping": ("clipping",),
    "surrogates": ("surrogates",),
    "inner-steps": ("inner-steps",),
    "kl": ("kl", "selection-kl"),
    "group-size": ("group-size",),
    "dynamic-sampling": ("dynamic-sampling",),
    "supervision": ("supervision",),
    "length": ("length",),
    "recipes": ("recipes",),
}  # fmt: skip
ELSEWHERE = ("selection", "selection-group-size")  # told in sections of their own
# The figures of an experiment that the paper shows, of those that its file asks for.
SHOWN: dict[str, tuple[str, ...]] = {
    "normalization": ("differences",),
    "normalization-mixed": ("breakdown", "differences"),
    "reduction": ("differences", "breakdown"),
    "clipping": ("differences", "clipping"),
    "inner-steps": ("differences", "costs"),
    "kl": ("differences", "tradeoff"),
    "selection-kl": ("grid",),
    "group-size": ("sweep", "mixed"),
    "dynamic-sampling": ("differences", "costs"),
    "length": ("differences", "lengths"),
}
OTHERWISE = ("differences",)
NARROW = ("differences",)  # kinds that stand within one column
CLAIMS = 13  # of one table
NAMED = 4  # rows that a sentence names


def files(experiments: Sequence[Experiment]) -> list[str]:
    """Return the comparisons and figures that these experiments lend the paper, relative to the results folder."""
    found = []
    for experiment in experiments:
        found.append(f"tables/{experiment.name}-comparison.json")
        found += [f"figures/{experiment.name}-{name}.pdf" for name in shown(experiment)]
    return found


def shown(experiment: Experiment) -> list[str]:
    """Return the figures of an experiment that the paper shows beside its words, by name."""
    if experiment.name in ELSEWHERE:
        return []
    named = figures.named(experiment)
    return [name for name in SHOWN.get(experiment.name, OTHERWISE) if name in named]


def compared(experiments: Sequence[Experiment], results: Path) -> dict[str, Comparison]:
    """Return the comparison of each experiment by its name."""
    return {e.name: read_comparison(results / f"tables/{e.name}-comparison.json") for e in experiments}


def sections(experiments: Sequence[Experiment], found: Mapping[str, Comparison]) -> list[dict[str, Any]]:
    """Return the sections that have an experiment, each with what it prints of its experiments."""
    known = {experiment.name: experiment for experiment in experiments}
    placed = {name for names in SECTIONS.values() for name in names} | set(ELSEWHERE)
    every = SECTIONS | {name: (name,) for name in known if name not in placed}
    return [
        {"name": section, "experiments": [told(known[name], found[name]) for name in names if name in known]}
        for section, names in every.items()
        if any(name in known for name in names)
    ]


@dataclass(frozen=True)
class Numbers:
    """How differences of one experiment are printed: all with the same decimals."""

    digits: int

    def signed(self, value: float) -> str:
        """Return a difference with its sign."""
        from grpo_ablate.analysis.notation import signed

        return "" if math.isnan(value) else signed(value, self.digits)

    def interval(self, low: float, high: float) -> str:
        """Return an interval in brackets."""
        from grpo_ablate.analysis.tables import number, shown_apart

        digits = shown_apart(self.digits, low, high)
        return "" if math.isnan(low) else f"[{number(low, digits)}, {number(high, digits)}]"

    def difference(self, found: Difference | None) -> str:
        """Return a mean difference and its interval."""
        return "" if found is None else f"{self.signed(found.mean)} {self.interval(found.low, found.high)}".strip()

    def between(self, least: float, most: float) -> str:
        """Return a range of positive numbers."""
        low, high = f"{least:.{self.digits}f}", f"{most:.{self.digits}f}"
        return low if low == high else f"{low} to {high}"


def numbers_of(comparison: Comparison) -> Numbers:
    """Return how the differences of an experiment are printed: two digits of their spread, or more."""
    from grpo_ablate.analysis.tables import decimals

    spreads = [row.difference.sd for row in comparison.rows if row.difference is not None]
    return Numbers(max(3, decimals(spreads, significant=2)))


def told(experiment: Experiment, comparison: Comparison) -> dict[str, Any]:
    """Return what a section prints of one experiment."""
    from grpo_ablate.analysis.tables import STALE

    show = numbers_of(comparison)
    baseline = comparison.row(comparison.baseline)
    # One pair has no interval, and says nothing of where the row stands.
    others = [row for row in comparison.rows if row.twin_of is None and not math.isnan(_low(row))]
    above = sorted((row for row in others if _low(row) > 0), key=lambda row: (-_mean(row), row.row))
    below = sorted((row for row in others if _high(row) < 0), key=lambda row: (_mean(row), row.row))
    seen = [row.difference.detectable for row in others if row.difference and row.difference.detectable > 0]
    return {
        "name": experiment.name,
        "question": comparison.question,
        "testbed": comparison.testbed,
        "baseline": baseline.label,
        "score": f"{baseline.mean:.{show.digits}f}",
        "interval": show.interval(baseline.low, baseline.high),
        "seeds": str(comparison.seeds),
        "margin": "" if math.isnan(comparison.margin) else f"{comparison.margin:g}",
        "floor": show.difference(comparison.noise_floor),
        "others": str(len(others)),
        "above": [_named(row, show) for row in above[:NAMED]],
        "above_count": str(len(above)),
        "below": [_named(row, show) for row in below[:NAMED]],
        "below_count": str(len(below)),
        "unclear_count": str(len(others) - len(above) - len(below)),
        "detectable": "" if not seen else show.between(min(seen), max(seen)),
        "failures": [f"{row.label}: {len(row.failed)}" for row in comparison.rows if row.failed],
        "failed": "left out, as no score is the worst" if math.isnan(comparison.floor) else "counted as worst",
        "twins": [f"{row.label} is {comparison.row(row.twin_of).label}" for row in comparison.rows if row.twin_of],
        "identical": [
            f"{row.label} and {', '.join(comparison.row(name).label for name in row.identical_to)}"
            for row in comparison.rows
            if row.identical_to and all(row.row < name for name in row.identical_to)
        ],
        "tuned": [
            f"{tuned.result.label.partition('@')[0].strip()} {show.difference(tuned.result.difference)} "
            f"at {tuned.best:g}"
            for tuned in comparison.tuned
            if tuned.result.difference is not None
        ],
        "figures": [
            {"name": f"{experiment.name}-{name}", "narrow": figures.named(experiment)[name][0].kind in NARROW}
            for name in shown(experiment)
        ],
        "rows": [_line(row, comparison.baseline, show) for row in comparison.rows],
        "notes": [
            *([comparison.partial] if comparison.partial else []),
            *([STALE] if any(row.stale for row in comparison.rows) else []),
            *comparison.notes,
        ],
    }


def _mean(row: RowResult) -> float:
    return row.difference.mean if row.difference else math.nan


def _low(row: RowResult) -> float:
    return row.difference.low if row.difference else math.nan


def _high(row: RowResult) -> float:
    return row.difference.high if row.difference else math.nan


def _named(row: RowResult, show: Numbers) -> str:
    return f"{row.label} ({show.difference(row.difference)})"


def _line(row: RowResult, baseline: str, show: Numbers) -> dict[str, str]:
    found = row.difference
    pairs = 0 if found is None else len(found.values)
    return {
        "label": row.label + (" (baseline)" if row.row == baseline else "") + (" †" if row.stale else ""),
        "score": f"{row.mean:.{show.digits}f}" + ("" if math.isnan(row.sd) else f" ± {row.sd:.{show.digits}f}"),
        "difference": "" if found is None else show.signed(found.mean),
        "interval": "" if found is None else show.interval(found.low, found.high),
        "won": "" if found is None or not pairs else f"{found.won * pairs:g}/{pairs}",
        "tokens": f"{row.spent.tokens:,.0f}",
        "updates": f"{row.spent.updates:,.0f}",
        "seconds": f"{row.spent.seconds:.3g}",
        "verdict": "" if found is None else row.verdict,
    }


def verdicts(found: Mapping[str, Comparison]) -> dict[str, Any]:
    """Return every claim of every experiment with its verdict, in tables of a page's length, and the counts."""
    placed = [*ELSEWHERE, *(name for names in SECTIONS.values() for name in names)]
    names = sorted(found, key=lambda name: placed.index(name) if name in placed else len(placed))
    lines = [_claim(name, claim) for name in names for claim in found[name].claims]
    counts = {verdict: sum(line["kind"] == verdict for line in lines) for verdict in VERDICTS}
    parts = math.ceil(len(lines) / CLAIMS)
    size = math.ceil(len(lines) / parts) if parts else 0
    return {
        "count": str(len(lines)),
        "late": str(sum(bool(claim.decided) for comparison in found.values() for claim in comparison.claims)),
        "counts": {verdict: str(count) for verdict, count in counts.items()},
        "tables": [lines[start : start + size] for start in range(0, len(lines), size or 1)],
    }


def partial(found: Mapping[str, Comparison]) -> list[str]:
    """Return the experiments of which runs are missing, with how many there are."""
    return [
        f"{name}: {comparison.partial.removeprefix('Partial: ').rstrip('.')}"
        for name, comparison in found.items()
        if comparison.partial
    ]


def late(found: Mapping[str, Comparison]) -> list[str]:
    """Return what was decided after a look at results, each sentence with the experiment that it speaks of."""
    return [f"{name}: {note.rstrip('.')}" for name, comparison in found.items() for note in comparison.notes]


def _claim(experiment: str, claim: ClaimResult) -> dict[str, str]:
    from grpo_ablate.analysis.compare_tables import asked, measured, verdict
    from grpo_ablate.analysis.words import p_value

    return {
        "experiment": experiment,
        "statement": claim.statement,
        "source": claim.source,
        "test": asked(claim),
        "measured": "" if claim.kind == "exact" else measured(claim),
        "p": "" if claim.kind == "exact" else p_value(claim.p),
        "verdict": verdict(claim),
        "kind": claim.verdict,
    }


def controls(found: Mapping[str, Comparison]) -> dict[str, Any]:
    """Return per control how often it was judged and held, and every failure in words.

    The controls that hold exactly are judged once, however many experiments print them.
    """
    lines: dict[str, dict[str, Any]] = {}
    for comparison in found.values():
        for control in comparison.controls:
            line = lines.setdefault(control.id, {"label": control.label, "judged": 0, "holding": 0})
            if not control.id.startswith("control."):  # no run of the experiment's own: the same one everywhere
                line |= {"judged": 0, "holding": 0}
            line["judged"] += control.holds is not None
            line["holding"] += control.holds is True
    floors = [abs(c.noise_floor.mean) for c in found.values() if c.noise_floor is not None]
    show = Numbers(3)
    return {
        "rows": [
            {"label": line["label"], "judged": str(line["judged"]), "holding": str(line["holding"])}
            for line in lines.values()
            if line["judged"]
        ],
        "judged": str(sum(line["judged"] for line in lines.values())),
        "failed": [
            f"{name}: {control.label}: {control.words}"
            for name, comparison in found.items()
            for control in comparison.failed_controls
        ],
        "floor": "" if not floors else show.between(min(floors), max(floors)),
    }
