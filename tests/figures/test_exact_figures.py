"""Figures of exact experiments: all of them drawn, the table's numbers in them, stable bytes, captions."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import os
import pickle
import re
import subprocess
import sys
import warnings
from math import comb

import invented
import matplotlib
import numpy as np
import pytest
import thinned
from matplotlib.figure import Figure

from grpo_ablate.analysis import figures
from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.exact.budget import charged
from grpo_ablate.analysis.figures.exact.material import ExactMaterial, load
from grpo_ablate.analysis.figures.exact.variance import raised_from
from grpo_ablate.errors import UserError
from grpo_ablate.spec.exact_files import load_exact_experiments
from grpo_ablate.spec.resolve import FigureSpec

NAMES = sorted(thinned.experiments())
DECLARED = [(name, figure) for name in NAMES for figure in figures.named(thinned.experiments()[name])]


@pytest.fixture(autouse=True)
def themed():
    with style.theme():
        yield


def drawn(found: ExactMaterial, name: str) -> Figure:
    figure, options = figures.named(found.experiment)[name]
    module = importlib.import_module(figures.module_name(found.experiment, figure.kind))
    return module.draw(found, options)


def of(exact, name: str) -> ExactMaterial:
    return load(thinned.experiments()[name], exact)


def lines_of(axes) -> list[np.ndarray]:
    """The drawn curves, without straight guides of two points."""
    return [
        np.column_stack([line.get_xdata(), line.get_ydata()]) for line in axes.lines if len(line.get_xdata()) > 2
    ]


def test_every_exact_experiment_has_a_figure_and_every_kind_is_used():
    shipped = load_exact_experiments(invented.ROOT / "experiments")
    assert all(experiment.figures for experiment in shipped)
    assert {figure.kind for experiment in shipped for figure in experiment.figures} == set(figures.EXACT_KINDS)


def test_every_figure_that_was_declared_is_drawn_and_no_other(exact):
    promised = {file for name in NAMES for file in figures.outputs(thinned.experiments()[name])}
    assert {f"figures/{path.name}" for path in (exact / "figures").iterdir()} == promised


def test_bytes_do_not_depend_on_the_process_or_a_user_s_settings(exact, tmp_path):
    names = ("exact-direction", "exact-length", "exact-surrogates")
    (tmp_path / "tables").mkdir()
    for name in names:
        (tmp_path / "tables" / f"{name}.csv").write_bytes((exact / "tables" / f"{name}.csv").read_bytes())
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\nfigure.dpi: 33\n")
    (tmp_path / "experiments").write_bytes(pickle.dumps([thinned.experiments()[name] for name in names]))
    code = (
        "import pickle; from pathlib import Path; from grpo_ablate.analysis import figures\n"
        "for e in pickle.loads(Path('experiments').read_bytes()): figures.draw(e, Path('.'))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )
    again = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert len(again) == 2 * len(names)
    assert again == {name: (exact / "figures" / name).read_bytes() for name in again}


@pytest.mark.parametrize("name", NAMES)
def test_a_caption_says_what_is_exact_and_what_is_assumed_and_travels_in_the_files(exact, name):
    experiment = thinned.experiments()[name]
    for figure, caption in figures.captions(experiment, of(exact, name)).items():
        assert " Exact: " in caption, figure
        assert " Assumed: " in caption, figure
        for stated in (experiment.exact, experiment.assumed):
            assert " ".join(stated.split())[1:] in caption, figure
        assert caption.count("$") % 2 == 0, "the paper sets what stands between dollars as a formula"
        content = (exact / "figures" / f"{name}-{figure}.png").read_bytes()
        assert caption[:60].encode("latin-1") in content


@pytest.mark.parametrize(("name", "figure"), DECLARED)
def test_axes_are_labelled_and_labels_stay_apart_and_inside_the_figure(exact, name, figure):
    with warnings.catch_warnings(action="error"):
        found = drawn(of(exact, name), figure)
        found.draw_without_rendering()
    shown = [axes for axes in found.axes if axes.axison]
    assert any(axes.get_ylabel() or axes.get_title() for axes in shown)
    assert any(axes.get_xlabel() for axes in shown)
    renderer = found.canvas.get_renderer()
    for axes in shown:
        boxes = [matplotlib.text.Text.get_window_extent(text, renderer) for text in axes.texts if text.get_text()]
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)
        for box in boxes:
            assert found.bbox.x0 <= box.x0
            assert box.x1 <= found.bbox.x1 + 1


def test_the_factor_and_the_chance_of_a_mixed_group_are_their_closed_forms(exact):
    found = of(exact, "exact-factor")
    factors, chances = (lines_of(drawn(found, kind).axes[0]) for kind in ("factor", "mixed"))
    sizes = [int(size) for size in found.values("sampling.group_size")]
    assert len(factors) == len(sizes) + 1, "the limit is drawn too"
    for size, factor, chance in zip(sizes, factors[:-1], chances, strict=True):
        for (p, value), (_, mixed) in zip(factor, chance, strict=True):
            spread = sum(
                comb(size, k) * p**k * (1 - p) ** (size - k) * math.sqrt(k * (size - k)) / size
                for k in range(size + 1)
            )
            assert value == pytest.approx(spread / (p * (1 - p)), rel=1e-12)
            assert mixed == pytest.approx(1 - p**size - (1 - p) ** size, abs=1e-12)
    np.testing.assert_allclose(factors[-1][:, 1], [1 / math.sqrt(p * (1 - p)) for p in factors[-1][:, 0]])


def test_the_angle_of_the_counterexample_is_its_closed_form(exact):
    angles = lines_of(drawn(of(exact, "exact-direction"), "direction").axes[1])
    expected = math.degrees(math.acos((22 + 38) / math.sqrt((4 + 4) * (121 + 64 + 361))))
    assert max(line[0, 1] for line in angles) == pytest.approx(expected, abs=1e-9)
    assert min(line[:, 1].max() for line in angles) < 1e-5, "leave-one-out never turns"


def test_every_surrogate_has_the_slope_of_its_formula(exact):
    found = of(exact, "exact-surrogates")
    figure = drawn(found, "slope")
    # Away from where a line jumps; the pieces of a line are drawn one by one.
    formulas = {
        "clip": (lambda u: u * (u <= 1.2), lambda u: -u * (u >= 0.8)),
        "dual-clip": (lambda u: u * (u <= 1.2), lambda u: -u * (0.8 <= u <= 3)),
        "cispo": (lambda u: min(u, 5), lambda u: -min(u, 5)),
        "reinforce": (lambda u: 1, lambda u: -1),
    }
    for axes, row in zip(figure.axes, found.experiment.rows, strict=True):
        points = [tuple(point) for line in axes.lines if line.get_linestyle() == "-" for point in
                  zip(line.get_xdata(), line.get_ydata(), strict=True)]  # fmt: skip
        for ratio, sign in itertools.product(found.values("ratio"), (0, 1)):
            if row.id in formulas:
                slope = formulas[row.id][sign](ratio)
                assert any(p[0] == ratio and p[1] == pytest.approx(slope, abs=1e-9) for p in points), (
                    row.id,
                    ratio,
                )


def test_pushes_are_scaled_to_the_gradient_s_length_and_the_constant_reduction_keeps_them(exact):
    found = of(exact, "exact-length")
    bars = [patch.get_width() for patch in drawn(found, "push").axes[0].patches]
    gradient, mean, _, constant, total = (bars[4 * place : 4 * place + 4] for place in range(5))
    np.testing.assert_allclose(constant, gradient, rtol=1e-9)
    np.testing.assert_allclose(total, gradient, rtol=1e-9)
    assert not np.allclose(mean, gradient, rtol=0.05), "sequence-mean pushes in another direction"


def test_shading_starts_where_leave_one_out_exceeds_no_baseline(exact):
    found = of(exact, "exact-baselines")
    successes = found.values("success")
    # Leave-one-out, and with it the group mean rescaled, has the larger variance where p > (2G - 4)/(3G - 5).
    for size in (2, 8):
        bound = (2 * size - 4) / (3 * size - 5)
        assert raised_from(found, size) == min(p for p in successes if p > bound)
    # Groups of two: the group mean has variance q (1 - 2 q) / 4 with q = p (1 - p), no baseline q (1 - p)^2.
    assert raised_from(found, 2, "variance_per_rollout") == min(
        p for p in successes if (1 - 2 * p * (1 - p)) / 4 > (1 - p) ** 2
    )


def test_the_weight_of_a_pair_is_constant_and_dpo_s_is_its_sigmoid(exact):
    axes = drawn(of(exact, "exact-pairs"), "weight").axes[0]
    for line in lines_of(axes):
        if line[:, 1].max() - line[:, 1].min() > 1e-9:
            beta = 2 * float(np.interp(0.0, line[:, 0], line[:, 1]))
            np.testing.assert_allclose(line[:, 1], beta / (1 + np.exp(beta * line[:, 0])), rtol=1e-9)
    constants = {round(float(line[0, 1]), 9) for line in lines_of(axes) if np.ptp(line[:, 1]) < 1e-9}
    assert constants == {0.5, 0.25, 2.5}


def test_curves_of_success_end_where_the_table_does(exact):
    found = of(exact, "exact-dynamics")
    for name, beta in (("success", 0.0), ("success-kl", 0.1)):
        rows = {row.id for row in found.experiment.rows if row.switches.kl.beta == beta}
        last = found.table[found.table["row"].isin(rows)].groupby(["row", "sampling.group_size", "success"]).last()
        figure = drawn(found, name)
        columns = len(found.values("success"))
        for panels in (figure.axes[:columns], figure.axes[columns : 2 * columns]):
            ends = sorted(line[-1, 1] for axes in panels for line in lines_of(axes))
            np.testing.assert_allclose(ends, sorted(last["expected_reward"]), atol=1e-12)


def test_curves_per_rollout_begin_with_the_first_group(exact):
    found = of(exact, "exact-dynamics")
    columns = len(found.values("success"))
    for axes in drawn(found, "success").axes[columns : 2 * columns]:
        assert {line[0, 0] for line in lines_of(axes)} == set(found.values("sampling.group_size"))


def test_the_noise_of_filtered_rows_charges_rejected_rollouts(exact):
    """Accepted groups have E / a and S / a for E and S of all, and one of them costs G / a rollouts."""
    found = of(exact, "exact-budget")
    rows = {row.id: row for row in found.experiment.rows}
    sizes, noise = charged(found, rows["mean-only--drop"], "noise_per_rollout")
    _, every = charged(found, rows["mean-only"], "noise_per_rollout")
    _, accepted = found.curve(rows["mean-only--drop"], "sampling.group_size", "accepted")
    np.testing.assert_allclose(noise, every + sizes * (1 - 1 / accepted), rtol=1e-9)
    assert max(accepted) < 1


def test_labels_spread_along_a_logarithmic_axis():
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(3, 2), layout="constrained")
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1e3)
    style.label_ends(figure, [(axes, [(1.0, "one", "black"), (1.1, "two", "black"), (500.0, "three", "black")])])
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    boxes = [matplotlib.text.Text.get_window_extent(text, renderer) for text in axes.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    assert all(axes.bbox.y0 - 8 < box.y0 and box.y1 < axes.bbox.y1 + 8 for box in boxes)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (FigureSpec("factors"), "no kind 'factors'; did you mean 'factor'?"),
        (FigureSpec("curves"), "no kind 'curves'"),
        (FigureSpec("success", {"k1": True}), "success has no option 'k1'; "),
    ],
)
def test_a_figure_that_is_not_well_stated_is_refused_in_one_sentence(spec, sentence):
    shown = dataclasses.replace(thinned.experiments()["exact-factor"], figures=(spec,))
    with pytest.raises(UserError, match=re.escape(sentence)):
        figures.outputs(shown)


def test_a_table_that_is_missing_or_lacks_a_row_or_column_is_one_sentence(exact, tmp_path):
    shown = thinned.experiments()["exact-factor"]
    with pytest.raises(UserError, match="the table is missing; make it with: grpo-ablate exact-table"):
        figures.draw(shown, tmp_path)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "exact-factor.csv"
    whole = of(exact, "exact-factor").table
    whole.drop(columns="norm_ratio").to_csv(path, index=False)
    with pytest.raises(
        UserError, match="factor draws the column 'norm_ratio', which the table lacks; did you mean"
    ):
        figures.draw(shown, tmp_path)
    whole[whole["row"] != "group-std"].to_csv(path, index=False)
    with pytest.raises(UserError, match="no line of row 'group-std'; make it anew"):
        figures.draw(shown, tmp_path)
