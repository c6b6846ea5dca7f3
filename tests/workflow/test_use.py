"""What a user sees of the workflow: mistakes in one sentence, lint, the report, other sources, smoke, status."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from project import ROOT, Project

pytestmark = pytest.mark.slow


def replaced(file: str, old: str, new: str) -> Callable[[Project], object]:
    return lambda project: project.edit(file, old, new)


def broken_record(project: Project) -> None:
    next((project.path / "results/runs/tiny").rglob("run.json")).write_text("{")


def results_is_a_file(project: Project) -> None:
    (project.path / "results").rename(project.path / "kept")
    (project.path / "results").write_text("")


def named_like_a_target(project: Project) -> None:
    (project.path / "experiments/alpha.yaml").rename(project.path / "experiments/smoke.yaml")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (replaced("experiments/alpha.yaml", "clip_low", "cliplow"), "did you mean 'clip_low'"),
        (replaced("experiments/alpha.yaml", "testbed: tiny", "testbed: tinny"), "did you mean 'tiny'"),
        (replaced("experiments/alpha.yaml", "seeds: 4", "seeds: 0"), "seeds is 0"),
        (replaced("experiments/alpha.yaml", "rows:", "rows: ["), "experiments/alpha.yaml: line"),
        (replaced("experiments/alpha.yaml", "figures: [curves]", "figures: [curve]"), "did you mean 'curves'"),
        (replaced("experiments/beta.yaml", "baseline: mean", "baseline: meen"), "did you mean 'mean'"),
        (broken_record, "run.json: is not JSON; remove results/runs/tiny"),
        (results_is_a_file, "results"),
        (named_like_a_target, "'smoke' is the name of a target"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_no_traceback(
    project: Project, mistake: Callable[[Project], object], words: str
) -> None:
    mistake(project)
    done = project.run("--cores", "2", check=False)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("Using workflow specific profile")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("grpo-ablate: error: ")
    assert words in said[0]


def test_a_misspelt_option_is_refused(project: Project) -> None:
    done = project.run("-n", "--config", "sorce=mlflow", check=False)
    assert done.returncode != 0
    assert "--config sorce: no such option; did you mean 'source'?" in done.stderr


def test_tables_read_back_from_mlflow_are_the_same(project: Project) -> None:
    table = project.path / "results/tables/alpha-runs.parquet"
    summary = project.path / "results/tables/alpha.csv"
    before, text = table.read_bytes(), summary.read_text()
    assert project.planned("alpha", "--config", "source=mlflow") == Counter(
        {"collect": 1, "compare": 1, "draw-alpha": 1}
    )
    table.unlink()
    project.run("--cores", "2", "alpha", "--config", "source=mlflow")
    assert table.read_bytes() == before
    assert summary.read_text() == text


def test_a_database_deleted_is_logged_anew(project: Project) -> None:
    (project.path / "results/mlflow.db").unlink()
    assert project.planned() == Counter({"log": 2})
    project.run("--cores", "2")
    assert (project.path / "results/mlflow.db").exists()
    assert project.planned() == Counter()


def test_a_failed_exact_control_stands_above_every_table_and_no_run_is_read_again(project: Project) -> None:
    """The tables that show it wait for it, so that it is there whatever was made first."""
    project.edit("grpo_ablate/analysis/exact_controls.py", "COSINE = 0.9999\n", "COSINE = 2.0\n")
    judged_again = Counter({"controls": 1, "compare": 2, "across": 1})
    assert project.planned() == judged_again
    project.run("--cores", "2")
    for name in ("alpha", "beta"):
        for part in ("", "-comparison", "-claims"):
            text = (project.path / f"results/tables/{name}{part}.md").read_text()
            assert text.startswith("**CONTROL FAILED: ten times the reward"), (name, part)
    assert project.planned() == Counter()
    project.edit("grpo_ablate/analysis/exact_controls.py", "COSINE = 2.0\n", "COSINE = 0.9999\n")
    project.run("--cores", "2")
    assert "CONTROL FAILED" not in (project.path / "results/tables/alpha.md").read_text()


def test_an_unreachable_server_is_one_sentence_and_loses_nothing(project: Project) -> None:
    before = project.records()
    done = project.run("--cores", "2", "alpha", "--config", "tracking_uri=http://127.0.0.1:9", check=False)
    assert done.returncode != 0
    assert "grpo-ablate: error: MLflow at http://127.0.0.1:9" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert project.records() == before


def test_the_report_shows_captions_categories_and_labels(project: Project) -> None:
    project.run("--report", "report.html")
    page = (project.path / "report.html").read_text()
    assert "Does dividing by the spread matter?" in page
    for words in ('"alpha"', '"beta"', '"curves"', '"table of every row"', '"the paper"'):
        assert words in page, words


def test_lint_has_one_remark_that_is_accepted(project: Project) -> None:
    done = project.run("--lint", check=False)
    remarks = {line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip().startswith("* ")}
    # One locked environment, made by `make`, runs every rule and Snakemake itself: a second description
    # of it in conda's terms would be tested by nobody.
    assert remarks == {"* Specify a conda environment or container for each rule.:"}


def test_the_rules_are_formatted() -> None:
    snakefmt = Path(sys.executable).parent / "snakefmt"
    subprocess.run([snakefmt, "--check", "Snakefile", "grpo_ablate/workflow"], cwd=ROOT, check=True)


def test_smoke_makes_tables_and_figures_of_every_experiment_apart(project: Project) -> None:
    before = project.records()
    project.run("--cores", "2", "smoke")
    smoke = project.path / "results/smoke"
    for name in ("alpha", "beta"):
        runs = pyarrow.parquet.read_table(smoke / f"tables/{name}-runs.parquet").to_pandas()
        # two rows and the two controls
        assert (runs["row"].nunique(), runs["seed"].nunique(), runs["round"].max()) == (4, 2, 2)
        assert (smoke / f"figures/{name}-curves.pdf").exists()
    assert project.records() == before
    assert project.planned() == project.planned("smoke") == Counter()


def test_status_tells_every_state(project: Project) -> None:
    assert project.status()["counts"] == {"done": 12, "stale": 0, "running": 0, "failed": 0, "missing": 0}
    project.edit("experiments/alpha.yaml", "clip_high: 0.3", "clip_high: 0.4")
    assert project.status()["counts"]["missing"] == 2
    broken_record(project)
    next((project.path / "results/runs/kept").rglob("metrics.parquet")).unlink()
    counts = project.status()["counts"]
    assert (counts["failed"], counts["missing"], counts["done"]) == (2, 2, 8)
    broken = [cell for cell in project.status()["cells"] if cell["state"] == "failed"]
    assert {cell["detail"] for cell in broken} >= {"without metrics.parquet"}
    cut = next((project.path / "results/runs/kept").rglob("metrics.parquet"))
    cut.write_bytes(cut.read_bytes()[:-100])
    counts = project.status()["counts"]
    assert (counts["failed"], counts["done"]) == (3, 7)
    details = {cell["detail"] for cell in project.status()["cells"] if cell["state"] == "failed"}
    assert any("metrics.parquet: differs from the checksum in run.json; remove" in detail for detail in details)


def test_a_kept_run_of_older_code_is_marked_in_its_table(project: Project) -> None:
    path = project.path / "grpo_ablate/policies/tabular.py"
    path.write_text(
        path.read_text().replace(
            "    def step(", "    def added(self) -> int:\n        return 0\n\n    def step(", 1
        )
    )
    project.run("--cores", "2", "beta")
    runs = pyarrow.parquet.read_table(project.path / "results/tables/beta-runs.parquet").to_pandas()
    assert runs["stale"].all()
    assert project.planned("beta") == Counter()


def test_a_testbed_that_streams_logs_while_it_trains_and_its_server_may_change(
    finished: Project, tmp_path: Path
) -> None:
    clone = finished.cloned(tmp_path / "clone")
    (clone.path / "experiments/alpha.yaml").unlink()
    testbed = clone.path / "experiments/testbeds/kept.yaml"
    testbed.write_text(testbed.read_text() + "stream: true\n")
    clone.run("--cores", "2")
    assert clone.planned("--config", "tracking_uri=sqlite:///other.db")["train"] == 0
    with sqlite3.connect(clone.path / "results/mlflow.db") as store:
        states = store.execute(
            "SELECT status, count(*) FROM runs WHERE lifecycle_stage = 'active' GROUP BY status"
        ).fetchall()
    assert states == [("FINISHED", 8)]
