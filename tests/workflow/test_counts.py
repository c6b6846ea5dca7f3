"""What Snakemake would run after each kind of change: training jobs and everything downstream of them.

``snakemake -n`` in a copy of a finished project: alpha has two rows of two blocks, beta (which keeps results
of older code) two rows of one; each has two controls besides.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from project import Project

pytestmark = pytest.mark.slow

NOTHING: Counter[str] = Counter()
# The exact controls train with every surrogate: they are judged again when any part of the algorithm changes.
JUDGED_AGAIN = Counter({"controls": 1, "compare": 2, "across": 1})
AFTER_ALPHA = {"log": 1, "collect": 1, "compare": 1, "across": 1, "draw-alpha": 1, "paper": 1}
AFTER_BOTH = {"log": 2, "collect": 2, "compare": 2, "across": 1, "draw-alpha": 1, "draw-beta": 1, "paper": 1}


def trains(number: int, then: dict[str, int]) -> Counter[str]:
    return Counter({"train": number, **then})


def test_a_finished_project_has_nothing_to_do(project: Project) -> None:
    assert project.planned() == NOTHING
    assert project.planned("alpha", "beta", "paper") == NOTHING


def test_a_row_added_trains_its_blocks_and_remakes_its_experiment(project: Project) -> None:
    alpha = project.experiment("alpha")
    alpha["rows"]["leave-one-out"] = {"advantage": {"baseline": "leave-one-out", "scale": "none"}}
    project.write("alpha", alpha)
    assert project.planned() == trains(2, AFTER_ALPHA)


def test_a_row_edited_trains_its_blocks_alone(project: Project) -> None:
    project.edit("experiments/alpha.yaml", "clip_high: 0.3", "clip_high: 0.4")
    assert project.planned() == trains(2, AFTER_ALPHA)


def test_swapping_two_values_of_a_row_trains_its_blocks(project: Project) -> None:
    project.edit("experiments/alpha.yaml", "clip_low: 0.1, clip_high: 0.3", "clip_low: 0.3, clip_high: 0.1")
    assert project.planned() == trains(2, AFTER_ALPHA)


def test_reordering_rows_and_keys_trains_nothing(project: Project) -> None:
    alpha = project.experiment("alpha")
    alpha["rows"] = {name: alpha["rows"][name] for name in reversed(alpha["rows"])}
    project.write("alpha", dict(reversed(alpha.items())))
    planned = project.planned()
    assert planned["train"] == 0
    assert set(planned) <= set(AFTER_ALPHA)


def test_reordering_the_keys_inside_a_row_changes_nothing(project: Project) -> None:
    old = "update: {clip_low: 0.1, clip_high: 0.3, inner_passes: 2}"
    project.edit("experiments/alpha.yaml", old, "update: {inner_passes: 2, clip_high: 0.3, clip_low: 0.1}")
    assert project.planned() == NOTHING


def test_a_row_renamed_remakes_its_experiment(project: Project) -> None:
    project.edit("experiments/alpha.yaml", "  clipped:", "  narrow:")
    assert project.planned() == trains(0, AFTER_ALPHA) - Counter()


def test_a_seed_block_added_trains_that_block_of_every_row_and_control(project: Project) -> None:
    project.edit("experiments/alpha.yaml", "seeds: 4", "seeds: 6")
    assert project.planned() == trains(4, AFTER_ALPHA)


def test_a_baseline_edited_trains_its_controls_as_well(project: Project) -> None:
    project.edit("experiments/alpha.yaml", "group-std: {}", "group-std: {advantage: {eps: 1e-3}}")
    assert project.planned() == trains(2 + 4, AFTER_ALPHA)


def test_a_neutral_switch_added_to_the_schema_changes_nothing(project: Project) -> None:
    project.edit(
        "grpo_ablate/spec/schema.py",
        "    ddof: Literal[0, 1] = 0\n",
        "    ddof: Literal[0, 1] = 0\n    new: int = 0\n",
    )
    assert project.planned() == NOTHING


def test_an_alternative_added_to_a_registry_trains_nothing(project: Project) -> None:
    project.edit(
        "grpo_ablate/algorithm/surrogates.py", '    "clip": clip,\n', '    "clip": clip,\n    "new": soft,\n'
    )
    project.edit("grpo_ablate/spec/schema.py", 'surrogate: Literal["clip", ', 'surrogate: Literal["clip", "new", ')
    assert project.planned() == JUDGED_AGAIN


@pytest.mark.parametrize("name", ["metrics.parquet", "run.json", "timing.json"])
def test_a_result_touched_changes_nothing(project: Project, name: str) -> None:
    for path in (project.path / "results/runs").rglob(name):
        os.utime(path)
    assert project.planned() == NOTHING


def test_a_table_or_figure_touched_changes_nothing(project: Project) -> None:
    for path in [*(project.path / "results/tables").iterdir(), *(project.path / "results/figures").iterdir()]:
        os.utime(path)
    assert project.planned() == NOTHING


def test_the_folder_moved_with_its_results_changes_nothing(project: Project) -> None:
    moved = project.path.rename(project.path.with_name("elsewhere"))
    assert Project(moved).planned() == NOTHING


def test_a_fresh_clone_trains_everything(finished: Project, tmp_path: Path) -> None:
    assert finished.cloned(tmp_path / "clone").planned() == trains(12, {**AFTER_BOTH, "controls": 1})


@pytest.mark.parametrize("copy_dates", [True, False], ids=["dates kept", "dates lost"])
def test_a_clone_with_results_copied_in_does_nothing_and_then_notices_an_edited_row(
    finished: Project, tmp_path: Path, copy_dates: bool
) -> None:
    clone = finished.cloned(tmp_path / "clone")
    copy = shutil.copy2 if copy_dates else shutil.copyfile
    # figures before runs before tables: with the dates lost, the order of copying is no order of making
    for folder in (
        "figures", "made", "paper", "tables", "runs", "planned", "plans", "digests", "mlflow-artifacts",
    ):  # fmt: skip
        shutil.copytree(finished.path / "results" / folder, clone.path / "results" / folder, copy_function=copy)
        time.sleep(0.02)
    copy(finished.path / "results/mlflow.db", clone.path / "results/mlflow.db")
    copy(finished.path / "paper/paper.pdf", clone.path / "paper/paper.pdf")
    assert clone.planned() == NOTHING
    clone.edit("experiments/alpha.yaml", "clip_high: 0.3", "clip_high: 0.4")
    assert clone.planned() == trains(2, AFTER_ALPHA)


@pytest.mark.parametrize("name", ["metrics.parquet", "run.json", "samples.jsonl", "parameters.safetensors"])
def test_a_file_of_a_run_deleted_trains_its_block(project: Project, name: str) -> None:
    next((project.path / "results/runs/tiny").rglob(name)).unlink()
    assert project.planned() == trains(1, AFTER_ALPHA)


def test_docstrings_comments_and_formatting_change_nothing(project: Project) -> None:
    for file in (
        "algorithm/objective.py",
        "analysis/collect.py",
        "analysis/figures/curves.py",
        "runs/mlflow_writer.py",
    ):
        path = project.path / "grpo_ablate" / file
        _, _, rest = path.read_text().partition('"""')[2].partition('"""')
        path.write_text('"""Another docstring."""\n\n# and a comment\n' + rest)
    assert project.planned() == NOTHING


def test_a_training_function_edited_retrains_what_reruns_and_marks_what_is_kept(project: Project) -> None:
    path = project.path / "grpo_ablate/policies/tabular.py"
    path.write_text(
        path.read_text().replace(
            "    def step(", "    def added(self) -> int:\n        return 0\n\n    def step(", 1
        )
    )
    # alpha: two rows and two controls of two blocks. beta keeps its runs; its tables are made anew to say so
    after = {"log": 1, "collect": 2, "draw-alpha": 1, "draw-beta": 1, "paper": 1, **JUDGED_AGAIN}
    assert project.planned() == trains(8, after)
    states = project.status()["counts"]
    assert (states["stale"], states["done"]) == (12, 0)


def test_a_training_function_edited_back_before_a_run_changes_nothing(project: Project) -> None:
    path = project.path / "grpo_ablate/policies/tabular.py"
    before = path.read_text()
    path.write_text(
        before.replace("    def step(", "    def added(self) -> int:\n        return 0\n\n    def step(", 1)
    )
    assert project.planned()["train"] == 8
    path.write_text(before)
    assert project.planned() == NOTHING


def test_a_training_function_edited_back_after_a_run_retrains(project: Project) -> None:
    path = project.path / "grpo_ablate/policies/tabular.py"
    before = path.read_text()
    path.write_text(
        before.replace("    def step(", "    def added(self) -> int:\n        return 0\n\n    def step(", 1)
    )
    block = next((project.path / "results/runs/tiny").rglob("run.json"))
    project.run("--cores", "2", str(block.relative_to(project.path)))
    assert project.planned()["train"] == 7
    path.write_text(before)
    assert project.planned() == trains(1, AFTER_ALPHA)


def test_a_surrogate_that_no_row_uses_may_change(project: Project) -> None:
    path = project.path / "grpo_ablate/algorithm/surrogates.py"
    before, name, after = path.read_text().partition("def cispo(")
    assert name
    path.write_text(before + name + after.replace("    return ", "    print()\n    return ", 1))
    assert project.planned() == JUDGED_AGAIN


def test_a_plot_edited_redraws_figures_and_paper(project: Project) -> None:
    path = project.path / "grpo_ablate/analysis/figures/curves.py"
    path.write_text(path.read_text() + "\n\nADDED = 1\n")
    assert project.planned() == Counter({"draw-alpha": 1, "draw-beta": 1, "paper": 1})


def test_the_words_of_the_paper_edited_rebuild_the_paper(project: Project) -> None:
    path = project.path / "paper/main.typ"
    path.write_text(path.read_text() + "\nMore.\n")
    assert project.planned() == Counter({"paper": 1})


def test_a_plan_whose_history_is_lost_is_marked_in_every_table_and_nothing_is_drawn(project: Project) -> None:
    for path in (project.path / "results/planned").iterdir():
        path.unlink()
    assert project.planned() == Counter({"compare": 2, "across": 1})
    project.run("--cores", "2")
    for ending in (".md", "-comparison.md", "-claims.md"):
        text = (project.path / f"results/tables/alpha{ending}").read_text()
        assert "The plan was first recorded when " in text
    assert project.planned() == NOTHING


def test_another_number_of_cores_changes_nothing(project: Project) -> None:
    assert project.planned("--cores", "1") == NOTHING
    assert project.planned("--cores", "7") == NOTHING


def test_an_experiment_of_known_rows_trains_nothing(project: Project) -> None:
    alpha = project.experiment("alpha")
    project.write("gamma", alpha | {"rows": {"same": {}}, "baseline": "same", "figures": ["curves"]})
    planned = project.planned()
    assert planned == Counter({"log": 1, "collect": 1, "compare": 1, "across": 1, "draw-gamma": 1, "paper": 1})


def test_an_experiment_target_makes_that_experiment_alone(finished: Project, tmp_path: Path) -> None:
    clone = finished.cloned(tmp_path / "clone")
    after = {"log": 1, "collect": 1, "compare": 1, "draw-alpha": 1, "controls": 1}
    assert clone.planned("alpha") == trains(8, after)
