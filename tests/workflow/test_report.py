"""The report of a finished project, and verification as a target: what a user sees of both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, environment

pytestmark = pytest.mark.slow


def shown(page: Path) -> tuple[dict, dict]:
    """The categories and the results that a report holds."""
    text = page.read_text()
    found = []
    for name in ("categories", "results"):
        start = re.search(rf"var {name} = (?={{)", text)
        assert start is not None
        found.append(json.JSONDecoder().raw_decode(text, start.end())[0])
    return found[0], found[1]


def grpo_ablate(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grpo_ablate", *arguments],
        cwd=project.path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_report_shows_each_figure_once_and_the_tables_with_captions(project: Project) -> None:
    project.run("--cores", "2", "report")
    categories, results = shown(project.path / "results/report.html")
    assert {"alpha", "beta", "paper"} <= set(categories)
    for name in ("alpha", "beta"):
        # Under one heading, two formats of the same labels: Snakemake shows one entry with a switch.
        figures = [results[path]["labels"] for path in categories[name]["figures"]]
        assert sorted(label["format"] for label in figures) == ["pdf", "png"] * (len(figures) // 2)
        assert [list(label) for label in figures] == [["what", "format"]] * len(figures)
        tables = {results[path]["labels"]["what"]: results[path] for path in categories[name]["tables"]}
        assert set(tables) == {
            "table of every row", "rows beside the baseline", "claims and verdicts", "rows, comparison and claims",
        }  # fmt: skip
        for entry in tables.values():
            assert len(re.sub("<.*?>", "", entry["caption"]).split()) > 8
        assert tables["rows, comparison and claims"]["mime_type"] == "text/html"
    page = (project.path / "results/tables/alpha.html").read_text()
    assert "<h2>Against the baseline</h2>" in page
    assert "Does dividing by the spread matter?" in page
    assert results["paper/paper.pdf"]["labels"]["what"] == "the paper"


def test_what_is_not_finished_is_left_out_and_not_trained_for_the_report(project: Project) -> None:
    kept = project.path / "experiments/testbeds/kept.yaml"
    kept.write_text(kept.read_text().replace("quick: true", "quick: false"))
    project.edit("experiments/beta.yaml", "seeds: 2", "seeds: 6")
    assert "train" not in project.planned("report")
    project.run("--cores", "2", "report")
    categories, _ = shown(project.path / "results/report.html")
    assert "alpha" in categories
    assert "beta" not in categories


def test_verify_passes_on_the_published_run_and_names_an_edited_file(project: Project) -> None:
    done = project.run("--cores", "1", "verify", check=False)
    assert done.returncode != 0
    assert "results/published: no such folder or archive" in done.stdout + done.stderr
    assert grpo_ablate(project, "publish").returncode == 0
    for _ in range(2):  # it is checked each time
        done = project.run("--cores", "1", "verify")
        assert "damaged records: 0" in done.stdout + done.stderr
    path = next((project.path / "results/runs").rglob("samples.jsonl"))
    path.write_text(path.read_text().replace('"reward": ', '"reward": 1', 1))
    done = project.run("--cores", "1", "verify", check=False)
    assert done.returncode != 0
    named = path.relative_to(project.path)
    assert f"damaged: {named}: differs from the checksum in run.json" in done.stdout + done.stderr


def test_the_workflow_records_what_is_planned_before_it_trains(finished: Project, tmp_path: Path) -> None:
    clone = finished.cloned(tmp_path / "clone")
    history = clone.path / "results/planned/alpha.json"
    clone.run("-n")
    assert not history.exists(), "a dry run plans nothing"
    clone.run("--cores", "2", "results/plans/train/none.txt", check=False)  # starts, and has nothing to train
    entries = json.loads(history.read_text())
    assert [(entry["seeds"], entry["looked"]) for entry in entries] == [(4, False)]


def test_seeds_added_after_a_look_are_marked_in_the_comparison(project: Project) -> None:
    table = project.path / "results/tables/beta-comparison.md"
    assert "after a look" not in table.read_text()
    project.edit("experiments/beta.yaml", "seeds: 2", "seeds: 4")
    project.run("--cores", "2", "beta")
    assert "2 of 4 seeds were added after a look at results." in table.read_text()
    entries = json.loads((project.path / "results/planned/beta.json").read_text())
    assert [(entry["seeds"], entry["looked"]) for entry in entries] == [(2, False), (4, True)]


def test_archive_and_merge_rebuild_a_finished_project_elsewhere(project: Project, tmp_path: Path) -> None:
    (project.path / "requirements.lock").write_text("")
    assert grpo_ablate(project, "archive", "--to", "study.tar.gz").returncode == 0
    other = project.cloned(tmp_path / "other")
    subprocess.run(["tar", "xf", project.path / "study.tar.gz", "-C", tmp_path], check=True)
    done = grpo_ablate(other, "merge", str(tmp_path / "grpo-ablate-archive"))
    assert done.returncode == 0, done.stderr
    assert other.records() == project.records()
    assert other.planned()["train"] == 0, "merged runs are not trained again"
    other.run("--cores", "2", "alpha")
    for ending in (".md", "-runs.csv", "-comparison.md"):
        made = f"results/tables/alpha{ending}"
        assert (other.path / made).read_bytes() == (project.path / made).read_bytes()
    done = grpo_ablate(other, "verify", "--against", str(project.path / "study.tar.gz"))
    assert done.returncode == 0, done.stdout + done.stderr
