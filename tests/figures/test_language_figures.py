"""Figures of language-model experiments: every seed visible, the statistics' numbers, stable looks and bytes."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import compared
import invented
import language
import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from scipy import stats

from grpo_ablate.analysis import figures
from grpo_ablate.analysis.figures import differences, lines, mixed, overview, style
from grpo_ablate.analysis.figures.material import Material, load
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import FigureSpec

SHOWN = {
    "kl": ("curves", "costs", "differences", "tradeoff", "final"),
    "clipping": ("clipping", "costs", "differences"),
    "group-size": ("mixed", "differences"),
    "normalization": ("lengths", "breakdown", "mixed", "differences"),
    "reduction": ("lengths", "breakdown"),
}


def with_figures(name: str, *kinds: str):
    return dataclasses.replace(language.experiments()[name], figures=tuple(FigureSpec(kind) for kind in kinds))


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Tables and comparisons of some language-model experiments; not to be written to."""
    folder = tmp_path_factory.mktemp("language")
    language.write(folder, *SHOWN)
    return folder


@pytest.fixture(autouse=True)
def themed():
    with style.theme():
        yield


def drawn(place, name: str, kind: str, **options):
    found = load(with_figures(name, kind), place)
    chosen = figures.named(found.experiment)[kind][1] | options
    module = importlib.import_module(figures.module_name(found.experiment, kind))
    return found, module.draw(found, chosen), module.caption(found, chosen)


def clouds(axes):
    return [c for c in axes.collections if isinstance(c, PathCollection)]


def scores(found: Material) -> dict[str, np.ndarray]:
    """The mean of the last two evaluations of every seed, by row: what the testbeds state."""
    tail = (
        found.runs.sort_values("round").groupby(["row", "seed"])["eval/reward"].apply(lambda v: v.tail(2).mean())
    )
    return {row.id: tail[row.id].to_numpy() for row in found.rows}


def test_a_difference_is_every_seed_and_the_paired_t_interval(place):
    found, figure, _ = drawn(place, "normalization", "differences")
    (axes,) = figure.axes
    own = scores(found)
    rows = [row.id for row in found.rows if row.id != "group-std"]
    assert [label.get_text() for label in axes.get_yticklabels()][: len(rows)] == [
        found.experiment.row(row).label for row in rows
    ]
    bars = [bar for bar in axes.containers if isinstance(bar, matplotlib.container.ErrorbarContainer)]
    for row, cloud, bar in zip(rows, clouds(axes), bars, strict=False):
        np.testing.assert_allclose(cloud.get_offsets()[:, 0], own[row] - own["group-std"], atol=1e-12)
        theirs = stats.ttest_rel(own[row], own["group-std"]).confidence_interval(0.95)
        (segment,) = bar.lines[2][0].get_segments()
        np.testing.assert_allclose(segment[:, 0], [theirs.low, theirs.high], atol=1e-12)


def test_the_band_of_a_difference_plot_ends_at_the_margin(place):
    for name in ("kl", "normalization"):
        found, figure, caption = drawn(place, name, "differences")
        (band,) = [patch for patch in figure.axes[0].patches if patch.get_alpha() == 0.7]
        edges = band.get_extents().transformed(figure.axes[0].transData.inverted())
        margin = found.experiment.margin
        np.testing.assert_allclose([edges.x0, edges.x1], [-margin, margin], atol=1e-12)
        assert f"the margin of {margin:g}" in caption


def test_seeds_won_are_those_above_the_baseline(place):
    found, figure, _ = drawn(place, "kl", "differences")
    own = scores(found)
    texts = [text.get_text() for text in figure.axes[0].texts]
    for row, text in zip([row for row in found.rows if row.id != "off"], texts, strict=False):
        above = int((own[row.id] > own["off"]).sum())
        assert text == ("=" if row.id == "beta-0-ratio" else f"{above}/8"), row.id
    assert "n = 8 pairs per row" in drawn(place, "kl", "differences")[2]


def test_a_row_keeps_its_colour_in_every_kind_of_figure(place):
    styles = style.row_styles(language.experiments()["normalization"])
    expected = {look.colour.upper() for look in styles.values()}
    for kind in ("lengths", "mixed"):
        _, figure, _ = drawn(place, "normalization", kind)
        lines_of = [c for axes in figure.axes for c in axes.collections if isinstance(c, LineCollection)]
        seeds = [line for line in lines_of if len(line.get_segments()) == 8]
        used = {matplotlib.colors.to_hex(line.get_colors()[0]).upper() for line in seeds}
        assert used == expected, kind
    for kind in ("breakdown", "differences"):
        found, figure, _ = drawn(place, "normalization", kind)
        rows = [row.id for row in found.rows if kind == "breakdown" or row.id != "group-std"]
        used = [matplotlib.colors.to_hex(c.get_facecolor()[0]).upper() for c in clouds(figure.axes[0])]
        assert used[: len(rows)] == [styles[row].colour.upper() for row in rows], kind


def many(count: int):
    shown = language.experiments()["normalization"]
    rows = [dataclasses.replace(shown.rows[0], id=f"row-{index}", label=f"row-{index}") for index in range(count)]
    return dataclasses.replace(shown, rows=tuple(rows), baseline="row-5")


def test_no_two_of_two_dozen_rows_look_alike():
    looks = list(style.row_styles(many(24)).values())
    assert len({(look.colour, look.marker, look.dashes) for look in looks}) == 24
    assert len({look.colour for look in looks}) == len(style.PALETTE)


@pytest.mark.parametrize("count", [2, 10, 11, 24])
def test_every_row_stands_in_a_panel_that_is_not_crowded_and_the_baseline_in_each(count):
    shown = many(count) if count > 5 else dataclasses.replace(many(count), baseline="row-0")
    runs = language.runs(language.experiments()["normalization"], 1).iloc[:1]
    found = Material(shown, runs.loc[runs.index.repeat(count)].assign(row=[row.id for row in shown.rows]))
    groups = lines.groups(found)
    assert all(len(rows) <= lines.MOST for _, rows in groups)
    ids = [row.id for _, rows in groups for row in rows]
    assert ids.count(shown.baseline) == len(groups)
    assert sorted(set(ids)) == sorted(row.id for row in shown.rows)
    assert len(ids) == count + len(groups) - 1
    colours = [{style.row_styles(shown)[row.id].colour for row in rows} for _, rows in groups]
    assert [len(used) for used in colours] == [len(rows) for _, rows in groups]


def test_curves_stand_against_all_four_costs_and_end_where_the_row_spent_it(place):
    found, figure, caption = drawn(place, "clipping", "costs")
    groups = lines.groups(found)
    grid = np.array(figure.axes).reshape(len(groups), 4)
    for line, (_, rows) in zip(grid, groups, strict=True):
        for axes, cost in zip(line, ("rollouts", "tokens", "updates", "seconds"), strict=True):
            ends = [c.get_segments()[0][-1, 0] for c in axes.collections if isinstance(c, LineCollection)]
            spent = found.runs.groupby("row")[cost].max()
            means = [found.runs[found.runs["row"] == row.id].groupby("seed")[cost].max().mean() for row in rows]
            np.testing.assert_allclose(ends, means if cost != "tokens" else ends, rtol=1e-9)
            assert max(ends) <= max(spent)
    assert "rollouts, generated tokens, updates, seconds" in caption


def test_mixed_groups_are_one_minus_the_constant_ones_and_the_prediction_is_binomial(place):
    found, figure, _ = drawn(place, "group-size", "mixed")
    shares = mixed.with_shares(found)
    size = found.runs["row"].map({row.id: row.spec.sampling.group_size for row in found.rows}).dropna()
    runs = shares.runs.loc[size.index]
    runs, size = runs[runs["round"] > 0], size[runs["round"] > 0]
    p = runs["eval/reward"]  # the invented success rate of the round
    np.testing.assert_allclose(runs[mixed.PREDICTED_MIXED], 1 - p**size - (1 - p) ** size, atol=1e-12)
    np.testing.assert_allclose(runs[mixed.OBSERVED_MIXED], 1 - p**size - (1 - p) ** size - 0.05, atol=1e-12)
    last = figure.axes[-1]
    assert sum(len(cloud.get_offsets()) for cloud in clouds(last)) == 20 * 8


def test_every_end_of_a_trade_off_is_a_seed_s_score(place):
    found, figure, _ = drawn(place, "kl", "tradeoff")
    own = scores(found)
    seen = [cloud.get_offsets()[:, 1] for axes in figure.axes for cloud in clouds(axes)]
    order = [row.id for _, rows in lines.groups(found) for row in rows]
    for row, values in zip(order, seen, strict=True):
        np.testing.assert_allclose(values, own[row], atol=1e-12)


def test_groups_of_prompts_are_shown_apart(place):
    found, figure, caption = drawn(place, "reduction", "breakdown")
    assert [axes.get_title() for axes in figure.axes[:2]] == ["french", "spanish"]
    last = (
        found.runs.sort_values("round")
        .groupby(["row", "seed"])["eval/length_spanish"]
        .apply(lambda v: v.tail(2).mean())
    )
    shown = np.concatenate([cloud.get_offsets()[:, 0] for cloud in clouds(figure.axes[3])])
    np.testing.assert_allclose(shown, np.concatenate([last[row.id] for row in found.rows]), atol=1e-12)
    assert "french, spanish" in caption
    bare = Material(found.experiment, found.runs.drop(columns=["eval/reward_french", "eval/reward_spanish"]))
    with pytest.raises(UserError, match="no group of prompts was measured apart"):
        importlib.import_module("grpo_ablate.analysis.figures.breakdown").draw(bare, {"rows": None})


def test_a_metric_that_does_not_apply_leaves_a_panel_that_says_so(place):
    with warnings.catch_warnings(action="error"):
        _, figure, _ = drawn(place, "reduction", "lengths")
    said = [[text.get_text() for text in axes.texts if text.get_text() == "not measured"] for axes in figure.axes]
    assert [len(texts) for texts in said] == [1, 1, 0]


def check_texts(figure, where) -> None:
    """Every text of the figure lies inside it and beside the others of its panel."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for axes in figure.findobj(matplotlib.axes.Axes):
        texts = [*axes.texts, *axes.get_yticklabels(), axes.title, axes.xaxis.label]
        texts = [text for text in texts if text.get_text() and text.get_visible()]
        boxes = [matplotlib.text.Text.get_window_extent(text, renderer) for text in texts]
        for (one, a), (other, b) in itertools.combinations(zip(texts, boxes, strict=True), 2):
            assert not a.overlaps(b), (where, one.get_text(), other.get_text())
        for text, box in zip(texts, boxes, strict=True):
            assert box.x0 >= figure.bbox.x0 - 1, (where, text.get_text())
            assert box.x1 <= figure.bbox.x1 + 1, (where, text.get_text())


def test_labels_stay_apart_and_inside_in_every_kind_of_figure(place):
    for name, kinds in SHOWN.items():
        for kind in kinds:
            check_texts(drawn(place, name, kind)[1], (name, kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(language.experiments()))
def test_labels_stay_apart_in_every_figure_that_ships(tmp_path, name):
    shown = language.experiments()[name]
    language.write(tmp_path, name, seeds=3)
    found = load(shown, tmp_path)
    for figure, chosen in figures.named(shown).values():
        module = importlib.import_module(figures.module_name(shown, figure.kind))
        check_texts(module.draw(found, chosen), (name, figure.kind))
        assert "n = 3" in module.caption(found, chosen)


def test_bytes_are_the_same_in_another_process(place, tmp_path):
    shown = with_figures("normalization", "differences", "mixed", "lengths")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tables").symlink_to(place / "tables")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_language_figures import figures, with_figures\n"
        "figures.draw(with_figures('normalization', 'differences', 'mixed', 'lengths'), Path('results'))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "11", "PYTHONPATH": str(invented.ROOT)},
    )  # fmt: skip
    first = {path.name: path.read_bytes() for path in (tmp_path / "results/figures").iterdir()}
    figures.draw(shown, tmp_path / "results")
    assert len(first) == 6
    assert {path.name: path.read_bytes() for path in (tmp_path / "results/figures").iterdir()} == first


def test_the_overview_is_ordered_by_effect_and_fits_a_page(tmp_path):
    everything = [*language.experiments().values(), *(invented.experiment(name) for name in invented.NAMES)]
    (tmp_path / "tables").mkdir()
    for shown in everything:
        runs = language.runs(shown, 3) if shown.name in language.experiments() else invented.runs(shown)
        compared.write(tmp_path, shown, runs)
    shown = overview.blocks(everything, tmp_path)
    assert sorted(block.experiment.name for block in shown) == sorted(e.name for e in everything)
    firsts = [abs(block.rows[0].difference.mean) for block in shown]
    assert firsts == sorted(firsts, reverse=True)
    for block in shown:
        effects = [abs(row.difference.mean) for row in block.rows]
        others = {row.row for row in block.rows}
        left_out = [row for row in overview.by_effect(block.comparison) if row.row not in others]
        assert effects == sorted(effects, reverse=True)
        assert all(abs(row.difference.mean) <= effects[-1] for row in left_out)
    figure = overview.draw(shown)
    assert figure.get_size_inches()[1] <= 8.3
    seeds = sum(
        len(cloud.get_offsets()) for axes in figure.findobj(matplotlib.axes.Axes) for cloud in clouds(axes)
    )
    assert seeds == sum(len(row.difference.seeds) for block in shown for row in block.rows)
    assert "n = 3 to 4 per row" in overview.caption(shown)


def test_what_a_figure_reads_is_known_beforehand(place):
    assert figures.inputs(with_figures("kl", "curves")) == ["tables/kl-runs.parquet"]
    assert figures.inputs(with_figures("kl", "differences"))[1:] == ["tables/kl-comparison.json"]
    shown = with_figures("kl", "differences")
    with pytest.raises(UserError, match=r"kl-comparison\.json: is missing; make it with"):
        differences.draw(Material(shown, load(shown, place).runs, place / "nowhere"), {})


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (FigureSpec("mixed", {"x": "update"}), "mixed: x 'update' is no counter; did you mean 'updates'?"),
        (FigureSpec("lengths", {"x": ["updates", "tokens"]}), "lengths: x names one counter"),
        (FigureSpec("tradeoff", {"x": "eval/k"}), "no metric 'eval/k'"),
        (
            FigureSpec("sweep", {"axis": "group-size", "by": "hold", "panel": "advantage", "costs": ["second"]}),
            "costs 'second' is no counter; did you mean 'seconds'?",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_sentence(spec, sentence):
    shown = dataclasses.replace(language.experiments()["group-size"], figures=(spec,))
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        figures.named(shown)
