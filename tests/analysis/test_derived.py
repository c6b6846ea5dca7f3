"""Tables are made anew from the records and set beside those on disk: an edited one is named in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from fabricated import changed, train

from grpo_ablate.analysis.across import write_across
from grpo_ablate.analysis.collect import collect
from grpo_ablate.analysis.compare_command import compared, write_compared
from grpo_ablate.analysis.derived import alike, altered_across, altered_exact
from grpo_ablate.analysis.exact_controls import write_exact_controls
from grpo_ablate.analysis.page import write_page
from grpo_ablate.analysis.planned import record_plan
from grpo_ablate.analysis.reference import publish
from grpo_ablate.analysis.verify import Verification, as_json, as_text, verify
from grpo_ablate.cli import main
from grpo_ablate.exact.tabulate import write_table
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.exact_files import load_exact_experiment
from grpo_ablate.spec.resolve import Experiment

ROOT = Path(__file__).parents[2]
CLAIM = {
    "id": "no-scale", "statement": "It matters.", "source": "us",
    "test": {"is": "better", "row": "mean-only", "than": "base"},
}  # fmt: skip


@pytest.fixture
def study(experiment: Experiment, results: Path) -> Experiment:
    """An experiment with a claim, recorded and tabulated whole: summary, comparison, page, controls."""
    whole = changed(experiment, claims=[CLAIM])
    record_plan(whole, results)
    train(whole, results)
    write_exact_controls(results)
    collect(whole, results)
    write_compared(whole, results, "table")
    write_page(whole, results)
    publish([whole], results, results / "published")
    return whole


def checked(study: Experiment, results: Path) -> Verification:
    return verify([study], results, {"small": (results / "published/small.csv").read_bytes()})


def flipped_digit(path: Path) -> None:
    """Change the last digit before the last point: of a number, whatever the format."""
    text = path.read_text()
    place = text.rindex(".", 0, text.rindex("."))
    digit = next(here for here in range(place + 1, len(text)) if text[here].isdigit())
    path.write_text(f"{text[:digit]}{(int(text[digit]) + 1) % 10}{text[digit + 1 :]}")


def better_reward(path: Path) -> None:
    table = pd.read_parquet(path)
    table["eval/reward"] += 1e-6
    table.to_parquet(path, index=False)


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def test_tables_as_they_were_made_hold(study: Experiment, results: Path) -> None:
    found = checked(study, results)
    assert found.altered == () and found.holds
    assert "altered tables: 0" in as_text(found)


@pytest.mark.parametrize(
    ("file", "edit", "command"),
    [
        ("small.csv", flipped_digit, "collect experiments/small.yaml"),
        ("small.md", replaced("mean-only", "mean-and-spread"), "collect experiments/small.yaml"),
        ("small.tex", flipped_digit, "collect experiments/small.yaml"),
        ("small-runs.csv", flipped_digit, "collect experiments/small.yaml"),
        ("small-runs.parquet", better_reward, "collect experiments/small.yaml"),
        ("small-comparison.json", replaced('"verdict": "inconclusive"', '"verdict": "supported"'),
         "compare experiments/small.yaml"),
        ("small-comparison.csv", flipped_digit, "compare experiments/small.yaml"),
        ("small-claims.csv", replaced("inconclusive", "supported"), "compare experiments/small.yaml"),
        ("small-claims.typ", replaced("inconclusive", "supported"), "compare experiments/small.yaml"),
        ("small.html", replaced("inconclusive", "supported"), "page experiments/small.yaml"),
        ("controls.csv", replaced("True", "False"), "controls"),
        ("controls.md", replaced("yes", "NO"), "controls"),
    ],
)  # fmt: skip
def test_an_edited_table_is_named_with_what_makes_it_anew(
    study: Experiment, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    file: str, edit: Callable[[Path], None], command: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(results.parent)
    path = Path("results", "tables", file)
    edit(path)
    with pytest.raises(SystemExit) as ended:
        main(["verify", "experiments/small.yaml"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    sentence = f"altered: {path}: differs from what the records, files and code give now; make it anew with: "
    assert f"{sentence}grpo-ablate {command}\n" in said
    assert said.count("altered: ") == 1 and "altered tables: 1" in said


def test_made_anew_as_it_says_the_table_holds_again(
    study: Experiment, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped_digit(results / "tables" / "small-comparison.csv")
    (said,) = checked(study, results).altered
    arguments = said.rpartition(": grpo-ablate ")[2].split()
    monkeypatch.chdir(results.parent)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (0, None)
    assert checked(study, results).holds


def test_a_table_that_is_cut_or_no_table_is_altered(study: Experiment, results: Path) -> None:
    for name in ("small-runs.parquet", "small-comparison.json"):
        path = results / "tables" / name
        path.write_bytes(path.read_bytes()[:-40])
    assert [sentence.partition(": ")[0] for sentence in checked(study, results).altered] == [
        str(results / "tables" / name) for name in ("small-runs.parquet", "small-comparison.json")
    ]


def test_runs_that_came_later_leave_the_tables_behind(study: Experiment, results: Path) -> None:
    """A table of fewer runs, made with --partial, is no longer what the records give."""
    gone = cells([study])[0].folder
    shutil.move(results / gone, results / "aside")
    collect(study, results, partial=True)
    write_compared(study, results, partial=True)
    write_page(study, results)
    assert checked(study, results).altered == ()
    shutil.move(results / "aside", results / gone)
    found = checked(study, results)
    assert len(found.altered) == 6 + 9 + 1 and not found.holds
    assert json.loads(as_json(found))["altered"] == list(found.altered)


def test_tables_without_any_record_are_named(study: Experiment, results: Path) -> None:
    shutil.rmtree(results / "runs")
    found = checked(study, results).altered
    assert len(found) == 6 + 9 + 1
    assert all("no run of" in sentence and "to support it" in sentence for sentence in found)


def test_a_comparison_that_the_records_do_not_allow_is_named(study: Experiment, results: Path) -> None:
    for cell in cells([study]):
        if cell.hash == study.row("base").hash:
            shutil.rmtree(results / cell.folder)
    found = [sentence for sentence in checked(study, results).altered if "comparison.json" in sentence]
    assert "cannot be made of the records: " in found[0]
    assert "the baseline 'base' has no runs to compare with." in found[0]


def test_the_table_over_testbeds_is_checked_where_every_experiment_is_known(
    study: Experiment, results: Path
) -> None:
    found = compared(study, results)
    write_across([found], results)
    assert altered_across([found], results) == []
    path = results / "tables" / "across.md"
    replaced("not corrected", "corrected")(path)
    (said,) = altered_across([found], results)
    assert said.startswith(f"{path}: differs") and said.endswith("grpo-ablate across")
    assert altered_across([found, None], results) == [], "it cannot be made, and is not judged"


def test_an_edited_table_of_an_exact_experiment_is_named(results: Path) -> None:
    experiment = load_exact_experiment(ROOT / "experiments" / "exact-surrogates.yaml")
    path = write_table(experiment, results)
    assert altered_exact([experiment], results) == []
    flipped_digit(path)
    (said,) = altered_exact([experiment], results)
    assert said.endswith(f"grpo-ablate exact-table {experiment.path}")


def test_rounding_is_no_alteration_and_everything_else_is() -> None:
    assert alike("a,3,0.1234567890123,x", "a,3,0.1234567890124,x")
    assert alike("1e-17", "-3e-17"), "below what is computed"
    for one, other in (
        ("0.1235", "0.1234"), ("3", "4"), ("1,234", "12,34"), ("12,345", "12345"), ("0.5 a", "0.5 b"),
        ("1.0", "1"), ("-0.5", "0.5"), ("supported", "contradicted"), ("9e999", "8e999"),
    ):  # fmt: skip
        assert not alike(one, other), (one, other)
