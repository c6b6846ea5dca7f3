"""Main effects and two-way interactions of the axes of a crossed experiment, with the seeds as blocks.

The model is score = cell + seed + noise, fitted by least squares to the whole cross (statsmodels); an effect is a
contrast of cell means (Montgomery, Design and Analysis of Experiments, chapters 4 and 5). Its interval assumes one
spread for all cells, so the t interval of the same contrast taken seed by seed, which does not, stands beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo_ablate.analysis.comparison import Effect
from grpo_ablate.analysis.statistics import LEVEL, Numbers, mean_of

if TYPE_CHECKING:
    from grpo_ablate.analysis.scores import Scored, Scores
    from grpo_ablate.spec.resolve import Experiment

Levels = Mapping[str, tuple[str, ...]]


def effects(experiment: Experiment, scores: Scores) -> tuple[Effect, ...]:
    """Return the effects of every axis and pair of axes; none where fewer than two are crossed or a row lacks."""
    axes = {name: levels for name, levels in experiment.axes.items() if len(levels) > 1}
    cells = [*itertools.product(*experiment.axes.values())]
    ids = ["--".join(cell) for cell in cells]
    if len(axes) < 2 or not all(scores.has(row) for row in ids):
        return ()
    table = _table([scores.of(experiment.row(row), experiment.metric) for row in ids])
    if not len(table):
        return ()
    references = _references(experiment)
    contrasts = [
        (names, levels, _contrast(experiment.axes, cells, dict(zip(names, levels, strict=True)), references))
        for size in (1, 2)
        for names in itertools.combinations(axes, size)
        for levels in itertools.product(
            *([one for one in axes[name] if one != references[name]] for name in names)
        )
    ]
    fitted = fit(table, np.array([contrast for _, _, contrast in contrasts]))
    found = []
    for (names, levels, contrast), (estimate, low, high) in zip(contrasts, fitted, strict=True):
        apart = mean_of(table @ contrast)
        found.append(
            Effect(
                names,
                levels,
                tuple(references[name] for name in names),
                estimate,
                low,
                high,
                apart.low,
                apart.high,
            )
        )
    return tuple(found)


def _table(rows: list[Scored]) -> Numbers:
    """Return the scores [seeds, cells] of the seeds that every cell has."""
    seeds = sorted(set.intersection(*(set(row.seeds.tolist()) for row in rows)))
    table = np.array([[row.final[row.seeds == seed][0] for row in rows] for seed in seeds]).reshape(-1, len(rows))
    return table[np.isfinite(table).all(axis=1)]


def _references(experiment: Experiment) -> dict[str, str]:
    """Return each axis's level in the baseline, or its first where the baseline is not crossed."""
    parts = experiment.baseline.split("--")
    crossed = experiment.baseline in {"--".join(cell) for cell in itertools.product(*experiment.axes.values())}
    chosen = parts if crossed else [levels[0] for levels in experiment.axes.values()]
    return dict(zip(experiment.axes, chosen, strict=True))


def _contrast(
    axes: Levels, cells: Sequence[tuple[str, ...]], levels: Mapping[str, str], reference: Mapping[str, str]
) -> Numbers:
    """Return the weights of the cells of one effect: a difference along its axes, a mean along the others."""
    weights = []
    for cell in cells:
        weight = 1.0
        for (axis, options), level in zip(axes.items(), cell, strict=True):
            if axis not in levels:
                weight /= len(options)
            else:
                weight *= float(level == levels[axis]) - float(level == reference[axis])
        weights.append(weight)
    return np.array(weights)


def fit(table: Numbers, contrasts: Numbers) -> list[tuple[float, float, float]]:
    """Return the contrasts' estimates and intervals; ``table`` [seeds, cells], ``contrasts`` [effects, cells].

    The seeds' own means are taken out beforehand, and their degrees of freedom with them: the fit with one dummy
    a seed (Frisch and Waugh 1933) at a fraction of its size. A parameter is a cell's distance from the last cell,
    which loses nothing, since the weights of a contrast sum to 0.
    """
    import statsmodels.api as sm

    seeds, cells = table.shape
    estimates = contrasts @ table.mean(axis=0)
    if seeds < 2:
        return [(float(estimate), float("nan"), float("nan")) for estimate in estimates]
    within = (table - table.mean(axis=1, keepdims=True)).ravel()
    design = np.tile((np.eye(cells) - 1 / cells)[:, :-1], (seeds, 1))
    model = sm.OLS(within, design)
    model.df_resid = (seeds - 1) * (cells - 1)
    intervals = model.fit().t_test(contrasts[:, :-1]).conf_int(alpha=1 - LEVEL)
    return [
        (float(estimate), float(low), float(high))
        for estimate, (low, high) in zip(estimates, intervals, strict=True)
    ]
