"""What a figure is drawn from: the experiment, its tidy table, and the summaries that figures share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from grpo_ablate.analysis.comparison import Comparison, read_comparison
from grpo_ablate.analysis.published import Published, published_of
from grpo_ablate.analysis.summary import scores
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import Experiment, Row
from grpo_ablate.spec.schema import Reward

COST_LABELS = {"updates": "updates", "rollouts": "rollouts", "tokens": "generated tokens", "seconds": "seconds"}
METRIC_LABELS = {
    "eval/reward": "expected reward",
    "eval/quality": "expected quality",
    "eval/kl": "KL to the reference (nats)",
    "eval/entropy": "entropy (nats)",
    "eval/accuracy": "share of right answers",
    "eval/greedy_accuracy": "greedy accuracy",
    "eval/length": "length (tokens)",
    "eval/truncated": "truncated share",
    "train/entropy": "entropy per token (nats)",
    "train/clip_fraction_high": "share of tokens clipped",
    "train/clip_fraction_low": "share of tokens clipped",
    "train/length_right": "length (tokens)",
    "train/length_wrong": "length (tokens)",
    "train/truncated": "share of answers",
    "train/kl_reference_exact": "KL to the reference per token (nats)",
}
AXIS_SYMBOLS = {"sampling.group_size": "$G$", "kl.beta": r"$\beta$"}
AXIS_LABELS = {"sampling.group_size": "group size $G$", "kl.beta": r"KL coefficient $\beta$"}


@dataclass(frozen=True)
class Material:
    """An experiment and its runs, one line per row, seed and evaluation."""

    experiment: Experiment
    runs: pd.DataFrame
    results: Path | None = None  # where the comparison lies, for the figures that show it

    @property
    def rows(self) -> list[Row]:
        """The rows of the experiment that have runs, in the order of the file."""
        present = set(self.runs["row"])
        return [row for row in self.experiment.rows if row.id in present]

    @cached_property
    def comparison(self) -> Comparison:
        """What `grpo-ablate compare` found of the experiment, from its file."""
        name = f"tables/{self.experiment.name}-comparison.json"
        return read_comparison((self.results or Path()) / name)

    def metric(self, options: dict[str, object]) -> str:
        """The metric a figure shows: its own option or the experiment's."""
        name = str(options.get("metric") or self.experiment.metric)
        if name not in self.runs.columns:
            raise UserError(f"{self.experiment.path}: figures: the runs have no metric '{name}'.")
        return name

    def curve(self, row: str, metric: str, x: str = "updates") -> tuple[np.ndarray, np.ndarray]:
        """Return where a row was evaluated, ``[evaluations]``, and what was found, ``[seeds, evaluations]``.

        The first is the mean over seeds at each evaluation: seconds differ between seeds, and so do rollouts where
        groups are resampled. NaN where a metric does not apply, or has not been measured at all.
        """
        lines = self.runs[self.runs["row"] == row]
        if metric not in lines:
            lines = lines.assign(**{metric: np.nan})
        values = lines.pivot(index="seed", columns="round", values=metric).to_numpy(dtype=np.float64)
        places = lines.pivot(index="seed", columns="round", values=x).to_numpy(dtype=np.float64)
        return np.nanmean(places, axis=0), values

    def final(self, row: Row, metric: str) -> np.ndarray:
        """Return each seed's own final value, ``[seeds]``; NaN where a run diverged, which tables score worst."""
        lines = self.runs[self.runs["row"] == row.id]
        if metric not in lines:
            return np.full(lines["seed"].nunique(), np.nan)
        return scores(lines, [metric], row.spec.evaluation.last)[metric].to_numpy()

    def published(self, metric: str) -> list[Published]:
        """Return the published numbers of the rows that have runs; none unless the figure shows their metric."""
        if self.experiment.published is None or metric != self.experiment.metric:
            return []
        present = {row.id for row in self.rows}
        return [line for line in published_of(self.experiment) if {line.row, line.other} <= {*present, ""}]

    def seeds(self, rows: Iterable[Row] | None = None) -> str:
        """Say on how many seeds the rows stand: "n = 40 seeds", or a range where they differ."""
        shown = self.rows if rows is None else list(rows)
        finals = [self.final(row, self.experiment.metric) for row in shown]
        least, most = (choose(len(final) for final in finals) for choose in (min, max))
        text = f"n = {most} seed{'s' * (most != 1)}" if least == most else f"n = {least} to {most} seeds"
        diverged = sum(int((~np.isfinite(final)).sum()) for final in finals)
        return f"{text}, {diverged} diverged runs left out" if diverged else text


def load(experiment: Experiment, results: Path) -> Material:
    """Read the tidy table of an experiment.

    Raises:
        UserError: the table is missing or holds no runs of the experiment's rows.
    """
    path = results / "tables" / f"{experiment.name}-runs.parquet"
    if not path.exists():
        raise UserError(f"{path}: the table is missing; make it with: grpo-ablate collect {experiment.path}")
    found = Material(experiment, pd.read_parquet(path), results)
    if not found.rows:
        raise UserError(f"{path}: the table holds no run of {experiment.path}.")
    return found


def interval(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the finite values and the half width of its 95 % t interval; NaN for a single value.

    The same numbers as the summary's, for a whole curve at once.

    >>> mean, half = interval(np.array([1.0, 2.0, 3.0]))
    >>> round(float(mean), 3), round(float(half), 3)
    (2.0, 2.484)
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    count = np.isfinite(values).sum(axis=axis)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # no or one finite value: NaN
        mean, sd = np.nanmean(finite, axis=axis), np.nanstd(finite, axis=axis, ddof=1)
        return mean, stats.t.ppf(0.975, count - 1) * sd / np.sqrt(count)


def levels(experiment: Experiment, row: Row) -> dict[str, str]:
    """Return the level of each axis that a crossed row stands on; nothing for a row written singly."""
    names = row.id.split("--")
    if len(names) != len(experiment.axes):
        return {}
    found = dict(zip(experiment.axes, names, strict=True))
    return found if all(level in experiment.axes[axis] for axis, level in found.items()) else {}


def hue_axis(experiment: Experiment) -> str | None:
    """Return the axis that colours tell apart: the one with the most levels."""
    return max(experiment.axes, key=lambda axis: len(experiment.axes[axis]), default=None)


def axis_values(experiment: Experiment, axis: str) -> tuple[str | None, dict[str, float]]:
    """Return the numeric switch that an axis moves and its value at each level, or (None, ranks).

    The switch is one whose number is settled by the level alone and differs between all levels.
    """
    by_level: dict[str, list[dict[str, float]]] = {}
    for row in experiment.rows:
        level = levels(experiment, row).get(axis)
        if level is not None:
            by_level.setdefault(level, []).append(_numbers(row))
    stated = [set(numbers) for rows in by_level.values() for numbers in rows]
    keys = sorted(set.intersection(*stated)) if stated else []
    for key in keys:
        found = {level: {numbers[key] for numbers in rows} for level, rows in by_level.items()}
        values = {level: next(iter(numbers)) for level, numbers in found.items()}
        if all(len(numbers) == 1 for numbers in found.values()) and len(set(values.values())) == len(values) > 1:
            return key, values
    return None, {level: float(rank) for rank, level in enumerate(experiment.axes[axis])}


def _numbers(row: Row) -> dict[str, float]:
    return {
        f"{section}.{key}": float(value)
        for section, keys in row.stated.items()
        for key, value in keys.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def axis_label(axis: str, key: str | None) -> str:
    """Return what to write beside an axis of the experiment, from the switch it moves or from its own name."""
    return AXIS_LABELS.get(key or "", (key.split(".")[1] if key else axis).replace("_", " ").replace("-", " "))


def metric_label(experiment: Experiment, metric: str) -> str:
    """Return what to call a metric; the reward of a selection task is its candidates' quality."""
    if metric == "eval/reward" and experiment.rows[0].spec.task.name == "selection":
        metric = "eval/quality"
    return METRIC_LABELS.get(metric, metric)


def reward_formula(reward: Reward) -> str | None:
    """Return the training reward as a formula in mathtext, or None where it has none worth printing.

    >>> reward_formula(Reward(transform="affine", scale=10, shift=3))
    '$10\\\\,r+3$'
    >>> reward_formula(Reward(transform="affine", scale=1e-9))
    '$10^{-9}\\\\,r$'
    """
    if reward.transform == "identity":
        return "$r$"
    if reward.transform == "power":
        return f"$r^{{{reward.power:g}}}$"
    if reward.transform == "affine":
        shift = f"{reward.shift:+g}" if reward.shift else ""
        return rf"${_factor(reward.scale)}r{shift}$"
    return None


def _factor(scale: float) -> str:
    exponent = math.log10(scale) if scale > 0 else math.nan
    if scale == 1:
        return ""
    if math.isfinite(exponent) and exponent == round(exponent) and abs(exponent) > 3:
        return rf"10^{{{round(exponent)}}}\,"
    return rf"{scale:g}\,"


def row_name(experiment: Experiment, row: Row, without: Iterable[str] = ()) -> str:
    """Return a short name of a row: its levels, those of the axes in ``without`` left out, or its label.

    A level that moves only the reward also shows the reward's formula.
    """
    found = {axis: level for axis, level in levels(experiment, row).items() if axis not in set(without)}
    if not found:
        return row.label
    names = []
    for axis, level in found.items():
        key, values = axis_values(experiment, axis)
        if key in AXIS_SYMBOLS:
            names.append(f"{AXIS_SYMBOLS[key]} = {values[level]:g}")
            continue
        formula = reward_formula(row.spec.reward) if _moves_reward_only(experiment, axis) else None
        names.append(f"{level}, {formula}" if formula else level)
    return "; ".join(names) if any("," in name for name in names) else ", ".join(names)


def _moves_reward_only(experiment: Experiment, axis: str) -> bool:
    others = [other for other in experiment.axes if other != axis]
    rewards: dict[str, set[str]] = {}
    for row in experiment.rows:
        found = levels(experiment, row)
        if found:
            rewards.setdefault(found[axis], set()).add(row.spec.reward.model_dump_json())
    settled = all(len(kinds) == 1 for kinds in rewards.values())
    return bool(others) and settled and len({next(iter(kinds)) for kinds in rewards.values()}) == len(rewards) > 1
