"""The paper: every number from tables and records, equal bytes for equal results, honest about disagreement."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import invented
import language
import pandas as pd
import pytest
import thinned

from grpo_ablate.analysis import figures, paper, theory
from grpo_ablate.analysis.arxiv import content
from grpo_ablate.analysis.bibliography import read_bibliography
from grpo_ablate.analysis.comparison import as_json, read_comparison
from grpo_ablate.analysis.prose import translate
from grpo_ablate.errors import UserError
from grpo_ablate.exact.propositions import examine
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import FigureSpec

SOURCES = invented.ROOT / "paper"
TRAINED = [invented.experiment(name) for name in invented.NAMES]
EXPERIMENTS = [*TRAINED, *thinned.experiments().values()]


def build(place: Path) -> tuple[dict, bytes]:
    paper.build(place / "results", place / "paper", EXPERIMENTS)
    found = json.loads((place / "results" / "paper" / "numbers.json").read_text())
    return found, (place / "paper" / "paper.pdf").read_bytes()


def change(place: Path, row: str, add: float) -> None:
    path = place / "results" / "tables" / "selection-runs.parquet"
    table = pd.read_parquet(path)
    table.loc[(table["row"] == row) & (table["round"] > 0), "eval/reward"] += add
    table.to_parquet(path)


def mathematics_and_prose(source: str, *, markup: bool = True) -> tuple[list[str], str]:
    """Split a Typst source into its formulas and its words, without comments, strings, labels and code.

    Words are what stands in brackets [] and, where the file is ``markup``, outside of all of them.
    """
    source = re.sub(r"//.*", "", source)
    source = re.sub(r'"[^"$]*"' if markup else r'"[^"\n]*"', "", source)
    source = re.sub(r"[@<][a-z][\w-]*>?", "", source)
    formulas = re.findall(r"\$([^$]*)\$", source)
    source = re.sub(r"\$[^$]*\$", "", source)
    source = re.sub(r"\b(if|for) [^\[{]*(?=[\[{])", "", source)
    open_brackets, words = [], []
    for character in source:
        if character in "([{":
            open_brackets.append(character)
        elif character in ")]}":
            open_brackets.pop()
        elif (open_brackets[-1] == "[") if open_brackets else markup:
            words.append(character)
    return formulas, "".join(words)


def test_no_number_is_typed_where_a_generated_one_belongs():
    """Words hold no digit at all; formulas need 0, 1 and 2, and the third KL estimator its index."""
    found = 0
    for path in sorted(SOURCES.glob("*.typ")):
        formulas, words = mathematics_and_prose(path.read_text(), markup=path.name == "main.typ")
        assert re.findall(r".*\d.*", words) == [], path
        for formula in formulas:
            assert set(re.findall(r"[\d.]*\d", formula.replace("k_3", "k"))) <= {"0", "1", "2"}, formula
        found += len(formulas)
    assert found > 60
    formulas, words = mathematics_and_prose('It gained 17 % as $x = 0.3$ #row("g-2").mean <fig-2> says.')
    assert (formulas, re.findall(r"\d+", words)) == (["x = 0.3"], ["17"]), "the check would see one"
    _, words = mathematics_and_prose("#let x = table(columns: 3, [Of 12 rows #if n > 4 [all 5]])", markup=False)
    assert re.findall(r"\d+", words) == ["12", "5"], "and one in the words between code"


def test_every_reference_is_cited_and_every_citation_resolves():
    text = "".join((SOURCES / name).read_text() for name in ("main.typ", "switches.typ"))
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
        "import pickle, sys; from pathlib import Path; from grpo_ablate.analysis import paper\n"
        "paper.build(Path('results'), Path('paper'), pickle.loads(Path(sys.argv[1]).read_bytes()))"
    )
    (other / "experiments").write_bytes(pickle.dumps(EXPERIMENTS))
    subprocess.run(
        [sys.executable, "-c", code, "experiments"],
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
        for cell in cells(TRAINED):
            folder = place / "results" / cell.folder
            folder.mkdir(parents=True, exist_ok=True)
            content = {
                "commit": commit,
                "dirty": False,
                "versions": {"python": "3.11.9", "torch": "2.13.0"},
                "processor": "A processor",
                "threads": 1,
                "started": started,
                "interrupted": [],
            }
            (folder / "provenance.json").write_text(json.dumps(content))

    record("0123456789abcdef", "2025-01-02T03:04:05+00:00")
    found, first = build(place)
    assert found["provenance"]["commits"] == ["0123456789ab"]
    assert found["provenance"]["versions"] == ["python 3.11.9", "torch 2.13.0"]
    # Of blocks of seeds that an experiment does not fill, only its own seeds count; shared rows count once.
    told = TRAINED
    asked = {(row.hash, seed) for e in told for row in e.rows for seed in range(e.seeds)}
    assert found["provenance"]["runs"] == f"{len(asked):,}"
    specs = {row.hash for e in told for row in e.rows}
    short = [replace(e, seeds=3) for e in told]
    assert paper.provenance(short, place / "results")["runs"] == f"{3 * len(specs):,}"
    # A damaged record is named.
    damaged = place / "results" / cells(told)[0].folder / "provenance.json"
    damaged.write_text("{}")
    with pytest.raises(UserError, match=r"provenance\.json: the key 'commit' is missing; remove"):
        paper.provenance(told, place / "results")
    record("0123456789abcdef", "2025-01-03T03:04:05+00:00")
    assert build(place)[1] == first
    record("fedcba9876543210", "2025-01-03T03:04:05+00:00")
    assert build(place)[1] != first


def test_every_declared_input_is_needed_and_its_absence_named(place):
    declared = paper.inputs(EXPERIMENTS)
    # Runs and comparisons of three experiments, exact tables, propositions, figures.
    assert len(declared) == 3 + 3 + len(theory.TOLD) + 1 + len(theory.FIGURES) + 2 + 1
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


def test_numbers_of_expected_updates_follow_the_exact_tables(place):
    before, _ = build(place)
    told = before["theory"]
    # The closed forms: c_8(0.1), 1 - 0.99^16 - 0.01^16, the cosine of (-2, 0, 2) with (-11, -8, 19).
    assert told["factor"]["some"]["factor"] == "2.33"
    assert told["factor"]["mixed"]["many"] == "0.149"
    assert told["direction"]["cosines"].startswith("0.9078, ")
    path = place / "results" / "tables" / "exact-direction.csv"
    table = pd.read_csv(path)
    table.loc[table["sampling.group_size"] == 2, "cosine"] = 0.5
    table.to_csv(path, index=False)
    after, _ = build(place)
    assert after["theory"]["direction"]["cosines"].startswith("0.5000, ")
    assert after["theory"]["direction"]["angle"] == "60"


def test_the_paper_says_so_when_a_proposition_fails(place):
    before, holding = build(place)
    assert before["theory"]["propositions"]["all"]
    path = place / "results" / "tables" / "propositions.csv"
    table = thinned.findings()
    table.loc[2, "verdict"] = "fails"
    table.to_csv(path, index=False)
    found, failing = build(place)
    propositions = found["theory"]["propositions"]
    assert (propositions["all"], propositions["holding"]) == (False, str(len(table) - 1))
    assert [line["all"] for line in propositions["rows"]] == [True, True, False, True]
    assert failing != holding


def test_the_gap_of_a_proposition_is_the_largest_of_its_exact_equalities():
    table = thinned.findings()
    table.loc[3, "difference"] = -5e-15
    table.loc[4, ["difference", "tolerance"]] = (3e-5, 5e-5)  # a printed value
    table.loc[5, ["difference", "relation"]] = (0.4, "exceeds")
    rows = theory.propositions(table)["rows"]
    assert rows[-1]["title"] == "Dynamics"
    assert rows[-1]["gap"] == "9.0 times 10^(-15)"


def test_a_finding_or_a_row_that_the_text_needs_is_named_when_it_is_missing(place):
    path = place / "results" / "tables" / "propositions.csv"
    whole = thinned.findings()
    whole[whole["proposition"] != "process"].to_csv(path, index=False)
    with pytest.raises(UserError, match="tells of 'cosine of process and outcome updates'"):
        build(place)
    whole.to_csv(path, index=False)
    path = place / "results" / "tables" / "exact-factor.csv"
    table = pd.read_csv(path)
    table[table["success"] != 0.1].to_csv(path, index=False)
    with pytest.raises(UserError, match=r"tells of norm_ratio of row 'group-std' at .* success = 0\.1"):
        build(place)


def test_an_exact_experiment_that_the_text_needs_is_named_when_it_is_missing(place):
    known = [experiment for experiment in EXPERIMENTS if experiment.name != "exact-kl"]
    with pytest.raises(UserError, match="tells of the experiment exact-kl, which does not exist"):
        paper.build(place / "results", place / "paper", known)


@pytest.mark.slow
def test_the_propositions_have_every_finding_that_the_text_tells_of():
    found = {
        (name, finding.case, finding.quantity): finding.value[0]
        for name in ("population-limit", "process", "dynamics")
        for finding in examine(name).findings
    }
    for name, case, quantity, value in thinned.FINDINGS[1:]:
        assert found[name, case, quantity] == pytest.approx(value, abs=2e-3), (case, quantity)


def test_all_that_the_paper_reads_is_something_that_the_workflow_makes():
    shipped = [*TRAINED, *language.experiments().values(), *thinned.experiments().values()]
    made = {path for e in shipped for path in (*figures.outputs(e), *figures.inputs(e))}
    made |= {f"tables/{e.name}-comparison.json" for e in shipped} | {theory.PROPOSITIONS}
    made |= {f"tables/{e.name}-runs.parquet" for e in shipped}
    assert set(paper.inputs(shipped)) <= made
    quick = paper.told(shipped, paper.QUICK)
    assert {e.name for e in quick} == {*invented.NAMES, *thinned.experiments()}
    assert set(paper.inputs(quick)) < set(paper.inputs(shipped))
    assert not set(paper.WHOLE.files) & set(paper.QUICK.files), "neither edition writes over the other"
    assert paper.WHOLE.pdf != paper.QUICK.pdf


def with_languages(place: Path, *names: str) -> list:
    """Add language-model experiments with tables of their own and somebody else's pictures."""
    shown = []
    for name in names:
        experiment = replace(language.experiments()[name], figures=(FigureSpec("differences"),))
        language.write(place / "results", name)
        for path in figures.outputs(experiment):
            example = place / "results" / f"figures/selection-final{Path(path).suffix}"
            shutil.copy(example, place / "results" / path)
        shown.append(experiment)
    return shown


def built(place: Path, experiments: list, edition: paper.Edition = paper.WHOLE) -> tuple[dict, bytes]:
    paper.build(place / "results", place / "paper", experiments, edition)
    return json.loads((place / "results" / edition.numbers).read_text()), (
        place / "paper" / edition.pdf
    ).read_bytes()


def test_a_switch_has_a_section_where_its_experiment_exists_and_claims_are_counted(place):
    without, first = built(place, EXPERIMENTS)
    languages = with_languages(place, "supervision", "reduction")
    other = replace(languages[0], name="my-own", claims=())
    for path in (*(f"tables/supervision{part}" for part in ("-runs.parquet", "-comparison.json")),):
        shutil.copy(place / "results" / path, place / "results" / path.replace("supervision", "my-own"))
    for path in figures.outputs(other):
        shutil.copy(place / "results/figures/selection-final.pdf", place / "results" / path)
    found, second = built(place, [*EXPERIMENTS, *languages, other])
    assert [section["name"] for section in without["sections"]] == ["kl"]
    assert [section["name"] for section in found["sections"]] == ["reduction", "kl", "supervision", "my-own"]
    assert not without["testbeds"]
    assert {line["testbed"] for line in found["testbeds"]} == {"arithmetic", "translation"}
    stated = sum(len(e.claims) for e in (*TRAINED, *languages)) + len(languages[0].claims)
    claims = [line for table in found["claims"]["tables"] for line in table]
    assert int(found["claims"]["count"]) == len(claims) == stated
    assert sum(map(int, found["claims"]["counts"].values())) == stated
    assert first != second
    # The quick edition tells of none of them, and building it leaves the whole one alone.
    quick, _ = built(place, [*EXPERIMENTS, *languages, other], paper.QUICK)
    assert quick == without | {"figures": quick["figures"]}
    assert (place / "paper" / "paper.pdf").read_bytes() == second


def test_what_a_section_says_follows_the_comparison(place):
    languages = with_languages(place, "reduction")
    found, _ = built(place, [*EXPERIMENTS, *languages])
    (told,) = next(section for section in found["sections"] if section["name"] == "reduction")["experiments"]
    comparison = read_comparison(place / "results/tables/reduction-comparison.json")
    gaps = {row.label: row.difference for row in comparison.rows if row.difference is not None}
    assert int(told["above_count"]) == sum(gap.low > 0 for gap in gaps.values())
    assert int(told["below_count"]) == sum(gap.high < 0 for gap in gaps.values())
    assert int(told["unclear_count"]) == sum(gap.low <= 0 <= gap.high for gap in gaps.values())
    for line in (*told["above"], *told["below"]):
        label, mean = re.fullmatch(r"(.*) \((\S+) \[.*\]\)", line).groups()
        assert float(mean.replace("\N{MINUS SIGN}", "-")) == pytest.approx(gaps[label].mean, abs=6e-4)


def test_the_paper_says_first_when_a_control_failed(place):
    languages = with_languages(place, "supervision")
    holding, first = built(place, [*EXPERIMENTS, *languages])
    assert holding["controls"]["failed"] == []
    path = place / "results/tables/supervision-comparison.json"
    comparison = read_comparison(path)
    failed = replace(comparison.controls[0], holds=False, words="told apart, p = .0001")
    path.write_bytes(as_json(replace(comparison, controls=(failed, *comparison.controls[1:]))))
    found, second = built(place, [*EXPERIMENTS, *languages])
    assert found["controls"]["failed"] == ["supervision: the baseline again: told apart, p = .0001"]
    assert second != first


def test_missing_runs_and_what_was_decided_after_a_look_are_said_in_the_paper(place):
    told = [*EXPERIMENTS, *with_languages(place, "reduction")]
    whole, first = built(place, told)
    assert whole["partial"] == whole["late"] == [] and whole["claims"]["late"] == "0"
    path = place / "results/tables/selection-comparison.json"
    kept = read_comparison(path)
    partial, late = "Partial: 3 of 4 runs.", "2 of 6 seeds were added after a look at results."
    path.write_bytes(as_json(replace(kept, partial=partial, notes=(late,))))
    inner = place / "results/tables/reduction-comparison.json"
    found = read_comparison(inner)
    claims = tuple(replace(claim, decided="added after a look at results") for claim in found.claims)
    inner.write_bytes(as_json(replace(found, claims=claims, partial=partial)))
    numbers, second = built(place, told)
    assert numbers["partial"] == ["selection: 3 of 4 runs", "reduction: 3 of 4 runs"]
    assert numbers["late"] == ["selection: 2 of 6 seeds were added after a look at results"]
    assert numbers["claims"]["late"] == str(len(claims)) != "0" and first != second
    for table in numbers["claims"]["tables"]:
        for line in table:
            marked = line["verdict"].endswith("(the claim was added after a look at results)")
            assert marked == (line["experiment"] == "reduction")
    prose = translate(
        content(place / "results", place / "paper", "paper/numbers.json"),
        frozenset(read_bibliography(place / "paper" / "references.bib")),
    )
    abstract, body = (" ".join(text.split()) for text in (prose.abstract, prose.body))
    missing = "selection: 3 of 4 runs; reduction: 3 of 4 runs"
    assert f"Preliminary: runs are missing ({missing})" in abstract
    assert f"Runs are missing: {missing}." in body
    assert "Not as planned before anything was seen: selection: 2 of 6 seeds were added" in body
    assert body.count("Partial: 3 of 4 runs.") == 1, "and below the appendix's table of the section's experiment"


@pytest.mark.slow
def test_the_paper_of_the_whole_grid_builds_and_is_the_same_twice(place):
    languages = with_languages(place, *language.experiments())
    found, first = built(place, [*EXPERIMENTS, *languages])
    told = [e["name"] for section in found["sections"] for e in section["experiments"]]
    assert sorted(told) == sorted([*language.experiments(), "selection-kl"])
    assert all(len(table) <= 13 for table in found["claims"]["tables"])
    assert built(place, [*EXPERIMENTS, *languages])[1] == first
