"""Figures: files known beforehand, every seed visible, the summary's numbers, stable bytes, readable labels."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import warnings

import invented
import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from grpo_ablate.analysis import figures
from grpo_ablate.analysis.figures import curves, final, grid, lines, published, style, sweep
from grpo_ablate.analysis.figures.material import Material, interval, load
from grpo_ablate.analysis.summary import estimate
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import Experiment, FigureSpec

MODULES = {"curves": curves, "final": final, "published": published, "sweep": sweep, "grid": grid}


@pytest.fixture(autouse=True)
def themed():
    with style.theme():
        yield


def drawn(found: Material, kind: str):
    """Return a figure of the experiment's, and its options."""
    name = next(n for n, (figure, _) in figures.named(found.experiment).items() if figure.kind == kind)
    options = figures.named(found.experiment)[name][1]
    return MODULES[kind].draw(found, options), options


def with_figures(shown: Experiment, *specs: FigureSpec) -> Experiment:
    return dataclasses.replace(shown, figures=specs)


def test_the_files_are_known_without_importing_anything_that_draws():
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.spec.resolve import load_experiment\n"
        "from grpo_ablate.analysis import figures\n"
        f"print(figures.outputs(load_experiment(Path({str(invented.ROOT / 'experiments/selection.yaml')!r}))))\n"
        "print(sorted({'pandas', 'matplotlib', 'seaborn', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['figures/selection-curves.pdf', 'figures/selection-curves.png', 'figures/selection-final.pdf', "
        "'figures/selection-final.png', 'figures/selection-published.pdf', 'figures/selection-published.png']",
        "[]",
    ]


def test_every_file_that_was_promised_is_written_and_no_other(results):
    promised = {file for name in invented.NAMES for file in figures.outputs(invented.experiment(name))}
    assert {f"figures/{path.name}" for path in (results / "figures").iterdir()} == promised


def test_bytes_do_not_depend_on_the_process_its_folder_or_a_user_s_settings(results, tmp_path):
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.spec.resolve import load_experiment\n"
        "from grpo_ablate.analysis import figures\n"
        "figures.draw(load_experiment(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    source = results / "tables" / "selection-runs.parquet"
    (tmp_path / "results" / "tables").mkdir(parents=True)
    (tmp_path / "results" / "tables" / source.name).write_bytes(source.read_bytes())
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\nfigure.dpi: 33\n")
    subprocess.run(
        [sys.executable, "-c", code, str(invented.ROOT / "experiments/selection.yaml"), "results"],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )
    again = {path.name: path.read_bytes() for path in (tmp_path / "results" / "figures").iterdir()}
    assert len(again) == 6
    assert again == {name: (results / "figures" / name).read_bytes() for name in again}


def test_fonts_are_embedded_as_outlines_and_no_date_is_written(results):
    for path in sorted((results / "figures").glob("selection-*.pdf")):
        content = path.read_bytes()
        assert b"/CIDFontType2" in content, path
        assert b"/Type3" not in content, path
        assert not re.search(rb"/(CreationDate|ModDate|Producer)", content), path


def test_curves_show_every_seed_of_every_row(results):
    found = load(invented.experiment("selection"), results)
    figure, _ = drawn(found, "curves")
    lines = [c for axes in figure.axes for c in axes.collections if isinstance(c, LineCollection)]
    assert [len(line.get_segments()) for line in lines] == [4] * 18
    ends = sorted(segment[-1, 1] for line in lines for segment in line.get_segments())
    finals = found.runs.groupby(["row", "seed"])["eval/reward"].last()
    np.testing.assert_allclose(ends, sorted(finals), rtol=0, atol=1e-15)


def test_the_dot_plot_shows_every_seed_of_every_row(results):
    found = load(invented.experiment("selection"), results)
    figure, _ = drawn(found, "final")
    clouds = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    shown = sorted(x for cloud in clouds for x in cloud.get_offsets()[:, 0])
    np.testing.assert_allclose(shown, sorted(found.runs.groupby(["row", "seed"])["eval/reward"].last()))


def test_the_sweep_shows_every_seed_and_both_measures_of_cost(results):
    found = load(invented.experiment("selection-group-size"), results)
    figure, _ = drawn(found, "sweep")
    clouds = [c for axes in figure.axes for c in axes.collections if isinstance(c, PathCollection)]
    assert sum(len(cloud.get_offsets()) for cloud in clouds) == 20 * 4
    reach = []
    for axes in figure.axes:
        seeds = [c.get_segments() for c in axes.collections if isinstance(c, LineCollection)]
        if any(len(lines) == 4 for lines in seeds):
            assert [len(lines) for lines in seeds] == [4] * 5
            reach.append(round(max(line[-1, 0] for lines in seeds for line in lines)))
    # 12,800 rollouts make 400 updates of 32, or 1,600 of four prompts with G = 2.
    assert sorted(reach) == [400] * 2 + [1600] * 2 + [12800] * 4


def test_mean_and_interval_are_those_of_the_summary():
    values = np.array([[0.2, 0.9, np.nan], [0.4, np.nan, np.nan], [0.9, 0.7, 0.3]])
    mean, half = interval(values)
    for column in range(3):
        theirs = estimate(values[:, column])
        assert mean[column] == pytest.approx(theirs.mean, nan_ok=True)
        assert mean[column] - half[column] == pytest.approx(theirs.low, nan_ok=True)


def test_a_row_has_one_colour_in_every_figure_and_no_two_in_a_panel_share_one(results):
    for name in invented.NAMES:
        found = load(invented.experiment(name), results)
        styles = style.row_styles(found.experiment)
        assert style.row_styles(dataclasses.replace(found.experiment)) == styles
        for _, rows in lines.groups(found):
            colours = [styles[row.id].colour for row in rows]
            assert len(set(colours)) == len(colours), rows
    figure, _ = drawn(load(invented.experiment("selection"), results), "final")
    clouds = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    used = [matplotlib.colors.to_hex(cloud.get_facecolor()[0]).upper() for cloud in clouds]
    assert used == [look.colour.upper() for look in style.row_styles(invented.experiment("selection")).values()]


def test_labels_of_lines_stay_apart_and_inside_the_figure(results):
    for name, kind in (("selection", "curves"), ("selection-group-size", "sweep"), ("selection-kl", "curves")):
        figure, _ = drawn(load(invented.experiment(name), results), kind)
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        for axes in figure.axes:
            # The text alone, without the line that leads to it.
            boxes = [matplotlib.text.Text.get_window_extent(text, renderer) for text in axes.texts]
            for one, other in itertools.combinations(boxes, 2):
                assert not one.overlaps(other), (name, kind)
            for box in boxes:
                assert figure.bbox.x0 <= box.x0, (name, kind)
                assert box.x1 <= figure.bbox.x1 + 1, (name, kind)


def test_coincident_lines_are_drawn_so_that_each_shows():
    dashes = [style.interleaved(index, 4) for index in range(4)]
    covered = [
        {int(offset + place) % 12 for place in range(3)}
        for offset, _ in (pattern for pattern in dashes if not isinstance(pattern, str))
    ]
    assert dashes[0] == "-"
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(covered, 2))
    assert len(set.union(*covered)) == 9, "the solid line shows through in the rest"


def test_captions_say_seeds_and_interval_and_travel_in_the_files(results):
    for name in invented.NAMES:
        shown = invented.experiment(name)
        for figure, caption in figures.captions(shown, load(shown, results)).items():
            assert "n = 4 seeds" in caption, figure
            assert "95 % t" in caption or figure == "published", figure
    content = (results / "figures" / "selection-final.png").read_bytes()
    assert b"Final expected quality of every row" in content


def test_a_diverged_run_is_left_out_of_the_mean_and_the_caption_says_so():
    shown = invented.experiment("selection")
    table = invented.runs(shown)
    last = (table["row"] == "ddof-1") & (table["seed"] == 2) & (table["round"] > 100)
    table.loc[last, "eval/reward"] = np.nan
    found = Material(shown, table)
    with warnings.catch_warnings(action="error"):
        figure, options = drawn(found, "final")
    assert "1 diverged runs left out" in final.caption(found, options)
    clouds = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    assert sum(len(cloud.get_offsets()) for cloud in clouds) == 18 * 4 - 1


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_few_rows_and_seeds_suffice_for_every_kind_of_figure(tmp_path, seeds):
    for name in invented.NAMES:
        invented.write(tmp_path, name, seeds=seeds, evaluations=3)
        path = tmp_path / "tables" / f"{name}-runs.parquet"
        found = load(invented.experiment(name), tmp_path)
        kept = [row.id for row in found.experiment.rows][:2]
        found.runs[found.runs["row"].isin(kept)].to_parquet(path)
        with warnings.catch_warnings(action="error"):
            figures.draw(found.experiment, tmp_path)
        assert all((tmp_path / file).stat().st_size for file in figures.outputs(found.experiment))


def test_twins_are_marked_in_the_grid(results):
    found = load(invented.experiment("selection-kl"), results)
    figure, _ = drawn(found, "grid")
    panels = len(found.experiment.axes["place"])
    texts = [text for axes in figure.axes[:panels] for text in axes.texts]
    assert len(texts) == 48
    assert sum(text.get_fontstyle() == "normal" for text in texts) == len(
        {row.hash for row in found.experiment.rows}
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (FigureSpec("curve"), "no kind 'curve'; did you mean 'curves'?"),
        (FigureSpec("curves", {"metrics": "eval/kl"}), "curves has no option 'metrics'; did you mean 'metric'?"),
        (
            FigureSpec("grid", {"x": "rewards", "by": "reward", "panel": "advantage"}),
            "x 'rewards' is no axis; did",
        ),
        (FigureSpec("sweep", {"axis": "reward"}), "sweep needs the option 'by', the name of an axis"),
    ],
)
def test_a_figure_that_is_not_well_stated_is_refused_in_one_sentence(spec, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        figures.outputs(with_figures(invented.experiment("selection"), spec))


def test_two_figures_of_one_name_are_refused_and_a_name_tells_them_apart():
    shown = invented.experiment("selection")
    twice = (FigureSpec("curves"), FigureSpec("curves", {"x": "rollouts"}))
    with pytest.raises(UserError, match="two are called 'curves'"):
        figures.outputs(with_figures(shown, *twice))
    named = with_figures(shown, twice[0], FigureSpec("curves", {"x": "rollouts", "name": "costs"}))
    assert "figures/selection-costs.pdf" in figures.outputs(named)


def test_a_figure_of_what_is_not_there_is_refused_in_one_sentence(results, tmp_path):
    shown = invented.experiment("selection")
    with pytest.raises(UserError, match="the table is missing; make it with: grpo-ablate collect"):
        figures.draw(shown, tmp_path)
    for options, sentence in (
        ({"metric": "eval/rewards"}, "no metric 'eval/rewards'"),
        ({"x": "update"}, "x 'update' is no counter; did you mean 'updates'?"),
        ({"rows": ["ddof"]}, "no row 'ddof'; did you mean 'ddof-1'?"),
    ):
        with pytest.raises(UserError, match=re.escape(sentence)):
            figures.draw(with_figures(shown, FigureSpec("curves", options)), results)
    plain = dataclasses.replace(with_figures(shown, FigureSpec("published")), published=None)
    with pytest.raises(UserError, match="name it under 'published'"):
        figures.outputs(plain)


def test_a_folder_that_cannot_be_written_to_is_one_sentence(results, tmp_path):
    (tmp_path / "tables").symlink_to(results / "tables")
    (tmp_path / "figures").write_text("a file where a folder belongs")
    with pytest.raises(UserError, match=r"figures/selection-kl-grid\.pdf: cannot be written: "):
        figures.draw(invented.experiment("selection-kl"), tmp_path)


@pytest.mark.parametrize(("mean", "marker"), [([np.nan, 0.5, np.nan], "o"), ([0.1, 0.5, 0.7], "None")])
def test_a_curve_of_one_point_is_that_point(mean: list[float], marker: str) -> None:
    axes = Figure().subplots()
    style.draw_curve(axes, np.arange(3.0), np.array([mean]), "black")
    line = axes.lines[-1]
    assert line.get_marker() == marker
    assert marker == "None" or line.get_markevery() == [1]
