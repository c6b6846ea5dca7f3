"""The paper: every number from tables and records, equal bytes for equal results, honest about disagreement."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import invented
import pandas as pd
import pytest

from grpo_ablate.analysis import paper
from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import cells

SOURCES = invented.ROOT / "paper"
EXPERIMENTS = [invented.experiment(name) for name in invented.NAMES]


@pytest.fixture
def place(results, tmp_path) -> Path:
    """A folder with the paper's sources and results of its own."""
    shutil.copytree(results, tmp_path / "results")
    shutil.copytree(SOURCES, tmp_path / "paper", ignore=shutil.ignore_patterns("*.pdf"))
    return tmp_path


def build(place: Path) -> tuple[dict, bytes]:
    paper.build(place / "results", place / "paper", EXPERIMENTS)
    found = json.loads((place / "results" / "paper" / "numbers.json").read_text())
    return found, (place / "paper" / "paper.pdf").read_bytes()


def change(place: Path, row: str, add: float) -> None:
    path = place / "results" / "tables" / "selection-runs.parquet"
    table = pd.read_parquet(path)
    table.loc[(table["row"] == row) & (table["round"] > 0), "eval/reward"] += add
    table.to_parquet(path)


def mathematics_and_prose(source: str) -> tuple[list[str], str]:
    """Split a Typst source into its formulas and its words, without comments, strings, labels and references."""
    source = re.sub(r"//.*", "", source)
    source = re.sub(r'"[^"$]*"', "", source)
    source = re.sub(r"[@<][a-z][\w-]*>?", "", source)
    return re.findall(r"\$([^$]*)\$", source), re.sub(r"\$[^$]*\$", "", source)


def test_no_number_is_typed_where_a_generated_one_belongs():
    """Words hold no digit at all; formulas need 0, 1 and 2, and the third KL estimator its index."""
    formulas, words = mathematics_and_prose((SOURCES / "main.typ").read_text())
    assert re.findall(r".*\d.*", words) == []
    assert len(formulas) > 50
    for formula in formulas:
        assert set(re.findall(r"[\d.]*\d", formula.replace("k_3", "k"))) <= {"0", "1", "2"}, formula
    formulas, words = mathematics_and_prose('It gained 17 % as $x = 0.3$ #row("g-2").mean <fig-2> says.')
    assert (formulas, re.findall(r"\d+", words)) == (["x = 0.3"], ["17"]), "the check would see one"


def test_every_reference_is_cited_and_every_citation_resolves():
    text = (SOURCES / "main.typ").read_text()
    keys = set(re.findall(r"@\w+\{(\w+),", (SOURCES / "references.bib").read_text()))
    labels = set(re.findall(r"<([a-z-]+)>", text))
    used = set(re.findall(r"@([a-z]+)", text))
    assert keys <= used
    assert used <= keys | labels


def test_equal_results_give_an_equal_paper_in_another_process_and_place(place, tmp_path_factory):
    _, first = build(place)
    other = tmp_path_factory.mktemp("elsewhere") / "deeper"
    shutil.copytree(place, other)
    (other / "paper" / "paper.pdf").unlink()
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.analysis import paper\n"
        "from grpo_ablate.spec.resolve import load_experiments\n"
        "paper.build(Path('results'), Path('paper'), load_experiments(Path(sys.argv[1])))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(invented.ROOT / "experiments")],
        check=True,
        cwd=other,
        env={**os.environ, "PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo"},
    )
    assert (other / "paper" / "paper.pdf").read_bytes() == first
    assert first.startswith(b"%PDF")
    assert not list(place.rglob(".*")), "no temporary file is left"


def test_a_number_in_the_paper_follows_the_table(place):
    before, first = build(place)
    change(place, "leave-one-out", 0.01)
    after, second = build(place)
    assert float(after["rows"]["leave-one-out"]["mean"]) == pytest.approx(
        float(before["rows"]["leave-one-out"]["mean"]) + 0.01, abs=1.01e-4
    )
    assert first != second


def test_the_paper_says_so_when_a_comparison_disagrees(place):
    # The invented seeds are spread as no published row is: count the means.
    agreeing = build(place)[0]["reproduction"]
    change(place, "power--mean-only", 0.01)
    found, _ = build(place)
    reproduction = found["reproduction"]
    assert int(reproduction["agreeing"]) < int(agreeing["agreeing"])
    assert not reproduction["all"]
    line = next(line for line in reproduction["rows"] if line["row"] == "power--mean-only")
    assert not line["agrees"]
    assert line["difference"].startswith("+0.0")


def test_best_group_size_follows_the_table(place):
    assert build(place)[0]["sweep"]["sizes"] == ["2", "4", "8", "16", "32"]
    path = place / "results" / "tables" / "selection-group-size-runs.parquet"
    table = pd.read_parquet(path)
    for size in (4, 16):
        row = f"fixed-rollouts--g{size}--mean-only"
        table.loc[table["row"] == row, "eval/reward"] = 0.99 + size / 10000
        table.to_parquet(path)
        assert build(place)[0]["sweep"]["rows"]["fixed-rollouts--mean-only"]["best_size"] == str(size)


def test_code_and_versions_come_from_the_records_and_times_do_not_matter(place):
    def record(commit: str, started: str) -> None:
        for cell in cells(EXPERIMENTS):
            folder = place / "results" / cell.folder
            folder.mkdir(parents=True, exist_ok=True)
            content = {
                "commit": commit,
                "dirty": False,
                "versions": {"python": "3.11.9", "torch": "2.13.0"},
                "processor": "A processor",
                "started": started,
            }
            (folder / "provenance.json").write_text(json.dumps(content))

    record("0123456789abcdef", "yesterday")
    found, first = build(place)
    assert found["provenance"]["commits"] == ["0123456789ab"]
    assert found["provenance"]["versions"] == ["python 3.11.9", "torch 2.13.0"]
    record("0123456789abcdef", "today")
    assert build(place)[1] == first
    record("fedcba9876543210", "today")
    assert build(place)[1] != first


def test_every_declared_input_is_needed_and_its_absence_named(place):
    declared = paper.inputs(EXPERIMENTS)
    assert len(declared) == 4
    for name in declared:
        path = place / "results" / name
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match=re.escape(name)):
            build(place)
        path.write_bytes(content)
    for path in (place / "results").rglob("*"):
        if path.is_file() and str(path.relative_to(place / "results")) not in declared:
            path.unlink()
    build(place)


def test_a_row_that_the_text_needs_and_the_table_lacks_is_named(place):
    path = place / "results" / "tables" / "selection-runs.parquet"
    table = pd.read_parquet(path)
    table[table["row"] != "ddof-1"].to_parquet(path)
    with pytest.raises(UserError, match="the paper tells of ddof-1, which has no runs"):
        build(place)
