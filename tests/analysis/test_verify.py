"""Verification: tampering is named by file, honest reruns agree, real differences do not."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from fabricated import write_record

from grpo_ablate.analysis.archive import references
from grpo_ablate.analysis.reference import publish, read_reference, reference_bytes, reference_table
from grpo_ablate.analysis.study import run_verify
from grpo_ablate.analysis.verify import LEVEL, Sample, allowed_difference, as_json, as_text, verify
from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment, load_experiment


@pytest.fixture
def published(recorded: Experiment, results: Path) -> Path:
    """Reference tables of the records as they are."""
    publish([recorded], results, results / "published")
    return results / "published"


def edited(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def test_the_same_records_agree_in_every_cell(recorded: Experiment, results: Path, published: Path) -> None:
    found = verify([recorded], results, references(published))
    assert found.holds
    assert {cell.state for cell in found.cells} == {"agrees"}
    assert {(cell.row, cell.metric) for cell in found.cells} >= {
        (row, "eval/reward") for row in ("base", "twin", "mean-only")
    }
    assert all(cell.difference == 0 for cell in found.cells if math.isfinite(cell.difference))
    assert "of" in as_text(found).splitlines()[-1]
    assert json.loads(as_json(found))["holds"] is True


@pytest.mark.parametrize("key", ["budget", "digest"])
def test_an_edit_of_budget_or_digest_is_named(
    recorded: Experiment, results: Path, published: Path, key: str
) -> None:
    path = results / cells([recorded])[0].folder / "run.json"
    stated = json.loads(path.read_text())
    other = {"digest": "0" * 16, "budget": {name: [0] * len(own) for name, own in stated["budget"].items()}}[key]
    path.write_text(json.dumps(stated | {key: other}))
    found = verify([recorded], results, references(published))
    assert not found.holds and [fault.partition(";")[0] for fault in found.faults] == [
        f"{path}: differs from the checksum in it"
    ]


@pytest.mark.parametrize("file", ["samples.jsonl", "metrics.parquet", "parameters.safetensors"])
def test_tampering_is_named_by_file(recorded: Experiment, results: Path, published: Path, file: str) -> None:
    path = results / cells([recorded])[-1].folder / file
    if file == "samples.jsonl":
        edited(path, b'"reward": 1.0', b'"reward": 2.0')
    else:
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(bytes(content))
    found = verify([recorded], results, references(published))
    assert not found.holds
    assert found.faults == (
        f"{path}: differs from the checksum in run.json; remove {path.parent} to train it again.",
    )
    assert str(path) in as_text(found)
    assert "small: not compared: its records are damaged" in as_text(found)
    with pytest.raises(UserError, match=r"differs from the checksum in run\.json"):
        reference_table(recorded, results)


def test_a_reward_edited_together_with_its_checksum_differs_from_the_published_table(
    recorded: Experiment, results: Path, published: Path
) -> None:
    def richer(columns: dict[str, list[float]]) -> None:
        columns["eval/reward"] = [value + 5.0 for value in columns["eval/reward"]]

    for cell in cells([recorded]):
        if cell.hash == recorded.row("base").hash:
            write_record(results, cell, change=richer)
    found = verify([recorded], results, references(published))
    assert not found.holds
    differing = {(cell.row, cell.metric) for cell in found.cells if cell.state == "differs"}
    assert differing == {("base", "eval/reward"), ("twin", "eval/reward")}
    assert "differs  base  eval/reward" in as_text(found)


def test_the_allowed_difference_is_that_of_welchs_test() -> None:
    numbers = np.random.default_rng(3)
    for n, m in [(5, 8), (40, 3)]:
        one, other = numbers.normal(size=n), 0.5 + 2 * numbers.normal(size=m)
        samples = [Sample(len(x), float(x.mean()), float(x.std(ddof=1))) for x in (one, other)]
        p = scipy.stats.ttest_ind(one, other, equal_var=False).pvalue
        assert allowed_difference(*samples, p) == pytest.approx(abs(one.mean() - other.mean()), rel=1e-9)


def test_honest_reruns_are_told_apart_as_rarely_as_the_level_says() -> None:
    """Of 1,000 studies of 20 cells each, both machines drawing from one law, about LEVEL differ anywhere."""
    numbers, cells_of_a_study, studies = np.random.default_rng(7), 20, 1000
    draws = numbers.normal(size=(studies, cells_of_a_study, 2, 8))
    means, sds = draws.mean(-1), draws.std(-1, ddof=1)
    wrong = 0
    for study in range(studies):
        wrong += any(
            abs(means[study, cell, 0] - means[study, cell, 1])
            > allowed_difference(
                Sample(8, means[study, cell, 0], sds[study, cell, 0]),
                Sample(8, means[study, cell, 1], sds[study, cell, 1]),
                LEVEL / cells_of_a_study,
            )
            for cell in range(cells_of_a_study)
        )
    error = math.sqrt(LEVEL * (1 - LEVEL) / studies)
    assert wrong / studies <= LEVEL + 4 * error
    assert wrong > 0


def test_means_without_spread_must_be_equal_up_to_rounding() -> None:
    for sample in (Sample(1, 0.5, math.nan), Sample(4, 0.5, 0.0)):
        assert allowed_difference(sample, sample, 0.01) == 1e-9


def test_a_row_of_another_spec_and_rows_of_one_side_are_told(
    recorded: Experiment, results: Path, published: Path
) -> None:
    path = published / "small.csv"
    base = recorded.row("base").hash[:16]
    lines = path.read_text().splitlines(keepends=True)
    changed = [line.replace(base, "0" * 16) if line.startswith("base,") else line for line in lines]
    path.write_text("".join([*changed, f"gone,{base},eval/reward,3,0.5,0.1,0.2,0.8\n"]))
    found = verify([recorded], results, references(published))
    states = {(cell.row, cell.state) for cell in found.cells}
    assert states == {("base", "other spec"), ("twin", "agrees"), ("mean-only", "agrees"), ("gone", "missing")}
    assert not found.holds


def test_a_partly_finished_grid_is_verified_as_far_as_it_goes(
    recorded: Experiment, results: Path, published: Path
) -> None:
    for cell in cells([recorded]):
        if cell.hash == recorded.row("mean-only").hash:
            (results / cell.folder / "run.json").unlink()
    found = verify([recorded], results, references(published))
    assert found.holds
    assert {cell.row for cell in found.cells if cell.state == "missing"} == {"mean-only"}


def test_a_reference_table_is_read_back_bit_for_bit(recorded: Experiment, results: Path, published: Path) -> None:
    table = reference_table(recorded, results)
    again = read_reference(reference_bytes(table), "small.csv")
    assert list(again.columns) == list(table.columns)
    for name in ("mean", "sd", "ci_low", "ci_high"):
        assert again[name].to_numpy().tobytes() == table[name].to_numpy().tobytes()
    first = (published / "small.csv").read_bytes()
    publish([recorded], results, published)
    assert (published / "small.csv").read_bytes() == first


@pytest.mark.parametrize("content", [b"", b"row,metric\na,b\n", b"\xff\xfe", b"statement,row\nfinal,x\n"])
def test_what_is_no_reference_table_is_a_sentence(content: bytes) -> None:
    with pytest.raises(UserError, match="is not a reference table"):
        read_reference(content, "x.csv")


def test_nothing_to_compare_is_a_sentence(experiment: Experiment, results: Path) -> None:
    with pytest.raises(UserError, match="no such folder or archive"):
        run_verify([experiment.path], results, results / "nowhere", False)
    (results / "published").mkdir()
    (results / "published" / "other.csv").write_text("row\n")
    with pytest.raises(UserError, match="holds no reference table of this experiment"):
        run_verify([experiment.path], results, results / "published", False)


def test_the_exit_code_says_whether_it_holds(recorded: Experiment, results: Path, published: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grpo_ablate", "verify", "experiments/small.yaml"]
        return subprocess.run(
            [*command, "--against", "results/published"], cwd=results.parent, capture_output=True, text=True
        )

    assert run().returncode == 0
    path = results / cells([recorded])[0].folder / "samples.jsonl"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    edited(path, b'"reward": 1.0', b'"reward": 0.5')
    assert hashlib.sha256(path.read_bytes()).hexdigest() != before
    done = run()
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "samples.jsonl: differs from the checksum in run.json" in done.stdout


def test_compare_names_the_edited_file_too(experiment: Experiment, results: Path) -> None:
    whole = load_experiment(experiment.path)  # the command judges the controls, too
    for cell in cells([whole]):
        write_record(results, cell)
    path = results / cells([whole])[0].folder / "samples.jsonl"
    edited(path, b'"reward": 1.0', b'"reward": 0.5')
    done = subprocess.run(
        [sys.executable, "-m", "grpo_ablate", "compare", "experiments/small.yaml"],
        cwd=results.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    named = path.relative_to(results.parent)
    assert f"grpo-ablate: error: {named}: differs from the checksum in run.json" in done.stderr
    assert not (results / "tables" / "small-comparison.csv").exists()


@pytest.mark.parametrize("numbers", ["-3,1,1,0,1", "3,inf,1,0,1", "3,1,-1,0,1", "3,,1,0,1"])
def test_a_reference_without_sound_numbers_is_refused_by_row_and_metric(numbers: str) -> None:
    text = f"row,hash,metric,n,mean,sd,ci_low,ci_high\nbase,abc,eval/reward,{numbers}\n"
    with pytest.raises(UserError, match=r"x.csv: eval/reward of row 'base' has no n"):
        read_reference(text.encode(), "x.csv")
