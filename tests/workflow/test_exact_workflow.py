"""Exact experiments in the workflow: what is built, and what reruns after each kind of change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from project import Project, build

pytestmark = pytest.mark.slow

GAMMA = """
question: By what factor?
exact: Everything.
assumed: Nothing.
policy: {prompts: [{responses: [{probability: 0.5, reward: 1}, {probability: 0.5, reward: 0}]}]}
rows:
  group-std: {}
vary: {"sampling.group_size": [2, 8], success: [0.1, 0.5]}
quantities: [norm_ratio]
"""


@pytest.fixture(scope="module")
def enumerated(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with an exact experiment whose target `exact` has been made. Not to be changed."""
    project = build(tmp_path_factory.mktemp("exact") / "project")
    (project.path / "experiments/exact-gamma.yaml").write_text(GAMMA)
    project.run("--cores", "2", "exact")
    return project


@pytest.fixture
def changed(enumerated: Project, tmp_path: Path) -> Project:
    """A copy that may be changed."""
    return enumerated.copied(tmp_path / "project")


def exact_jobs(project: Project) -> dict[str, int]:
    """What would be enumerated anew for the target `exact`, its figures apart."""
    jobs = project.planned("exact")
    return {name: n for name, n in jobs.items() if name != "exact" and not name.startswith("draw-")}


def test_the_target_makes_tables_and_propositions_and_trains_nothing(enumerated: Project) -> None:
    tables = {path.name for path in (enumerated.path / "results/tables").iterdir()}
    assert tables == {"exact-gamma.csv", *(f"propositions.{ending}" for ending in ("csv", "md", "tex", "typ"))}
    assert not (enumerated.path / "results/runs").exists()
    text = (enumerated.path / "results/tables/propositions.csv").read_text()
    assert ",holds," in text
    assert ",fails," not in text
    assert exact_jobs(enumerated) == {}


def test_all_and_quick_ask_for_them(enumerated: Project) -> None:
    for target in ("all", "quick"):
        jobs = enumerated.planned("--forceall", target)
        assert (jobs["exact_table"], jobs["propositions"]) == (1, 1)


def test_a_changed_range_remakes_that_table_alone(changed: Project) -> None:
    changed.edit("experiments/exact-gamma.yaml", "[0.1, 0.5]", "[0.1, 0.4]")
    assert exact_jobs(changed) == {"exact_table": 1}


def test_words_and_figures_of_a_file_remake_no_table(changed: Project) -> None:
    changed.edit("experiments/exact-gamma.yaml", "By what factor?", "By which factor?")
    (changed.path / "experiments/exact-gamma.yaml").open("a").write("propositions: [binary-factor]\n")
    assert exact_jobs(changed) == {}


def test_a_changed_figure_remakes_no_table(changed: Project) -> None:
    changed.edit("grpo_ablate/analysis/figures/style.py", "from __future__ import annotations", "CHANGED = 1")
    assert exact_jobs(changed) == {}


def test_a_changed_library_remakes_tables_and_propositions(changed: Project) -> None:
    changed.edit("grpo_ablate/exact/update.py", "MULTISETS = 2_000_000", "MULTISETS = 2_000_001")
    assert exact_jobs(changed) == {"exact_table": 1, "propositions": 1}


def test_a_changed_advantage_remakes_them_too(changed: Project) -> None:
    old = "torch.where(member, values - smallest, 0.0)"
    changed.edit("grpo_ablate/algorithm/advantages.py", old, old.replace("0.0", "0.0 * 1"))
    assert exact_jobs(changed) == {"exact_table": 1, "propositions": 1}


def test_a_changed_proposition_remakes_the_propositions_alone(changed: Project) -> None:
    changed.edit("grpo_ablate/exact/propositions/group_mean.py", "RANDOM = 5", "RANDOM = 6")
    assert exact_jobs(changed) == {"propositions": 1}


def test_a_clone_with_results_has_nothing_to_do(changed: Project, tmp_path: Path) -> None:
    clone = changed.cloned(tmp_path / "clone")
    shutil.copytree(changed.path / "results", clone.path / "results")
    assert exact_jobs(clone) == {}


def test_a_mistake_in_an_exact_file_is_one_sentence(changed: Project) -> None:
    changed.edit("experiments/exact-gamma.yaml", "quantities: [norm_ratio]", "quantites: [norm_ratio]")
    said = changed.run("-n", "exact", check=False)
    assert said.returncode == 2
    (sentence,) = [line for line in said.stderr.splitlines() if line.startswith("grpo-ablate: error:")]
    assert "exact-gamma.yaml: unknown key 'quantites'; did you mean 'quantities'?" in sentence
    assert "Traceback" not in said.stderr
