"""The printed tables: what they say, and that each dialect's own compiler or grammar accepts them."""

from __future__ import annotations

import re
import shutil
import subprocess

import pandas as pd
import pytest
import typst

from grpo_ablate.analysis.summary import COLUMNS
from grpo_ablate.analysis.tables import DASH, MINUS, decimals, number, render

NAN = float("nan")
AWKWARD = 'β = .05 & "50 %" _x_ [y] #z $w$ a--b *c* \\n <d> | `e` ~f ^g {h} @i // j'


def summary(*lines: tuple) -> pd.DataFrame:
    defaults = dict.fromkeys(COLUMNS, 0) | {"experiment": "x", "metric": "eval/reward", "seconds": 0.0231}
    defaults |= {"rollouts": 12800.0, "tokens": 12790.5, "updates": 400.0}
    names = ("row", "label", "n", "mean", "sd", "ci_low", "ci_high", "failed", "stale")
    return pd.DataFrame([defaults | dict(zip(names, line, strict=False)) for line in lines])[list(COLUMNS)]


PUBLISHED = summary(
    ("a", "r", 40, 0.99212, 0.00052, 0.99196, 0.99229),
    ("b", "1e-9 r", 40, 0.5125, 1e-10, 0.5125, 0.5125),
    ("c", AWKWARD, 38, -0.0123, 0.0013, -0.0127, -0.0119, 2, 1),
    ("d", "one seed", 1, 0.9, NAN, NAN, NAN),
)


def cells_of_markdown(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in rows]


def test_the_markdown_table_says_the_numbers():
    header, rule, first, tiny, odd, single = cells_of_markdown(render(PUBLISHED, "md", baseline="a"))
    assert header == [
        "Row", "Reward, mean ± sd", "95 % interval", "Seeds", "Failed",
        "Updates", "Rollouts", "Tokens", "Seconds",
    ]  # fmt: skip
    assert rule[0].strip("-") == "" and all(cell.endswith("-:") for cell in rule[1:])
    assert first == [
        "r (baseline)", "0.9921 ± 0.0005", "[0.9920, 0.9923]", "40", "0", "400", "12,800", "12,790", "0.023",
    ]  # fmt: skip
    assert tiny[1] == "0.5125 ± <0.0001"
    assert odd[0] == f"{AWKWARD} †" and odd[1] == f"{MINUS}0.0123 ± 0.0013" and odd[3:5] == ["38", "2"]
    assert single[1:3] == ["0.9000", DASH]


def test_columns_without_news_are_left_out():
    plain = summary(("a", "r", 40, 0.99212, 0.00052, 0.99196, 0.99229))
    text = render(plain, "md", baseline="z")
    assert "Failed" not in text and "†" not in text and "baseline" not in text


def test_every_dialect_has_the_same_cells():
    notes = ["3 of 6 seeds were added."]
    markdown = cells_of_markdown(render(PUBLISHED, "md", baseline="a"))
    typst_text = render(PUBLISHED, "typ", baseline="a", notes=notes)
    strings = [re.sub(r"\\(.)", r"\1", s) for s in re.findall(r'"((?:[^"\\]|\\.)*)"', typst_text)]
    *cells, stale, note = strings
    assert cells == [cell for row in (markdown[0], *markdown[2:]) for cell in row]
    assert note == notes[0] and stale.startswith("†")
    assert notes[0] in render(PUBLISHED, "md", baseline="a", notes=notes)
    latex = render(PUBLISHED, "tex", baseline="a", notes=notes)
    assert notes[0] in latex
    assert r"r (baseline) & 0.9921 $\pm$ 0.0005 & {[}0.9920, 0.9923{]} & 40" in latex
    assert r"$\beta$ = .05 \& ''50 \%'' \_x\_ {[}y{]} \#z \$w\$ a-{}-b *c* \textbackslash{}n" in latex


@pytest.mark.parametrize("empty", [False, True])
def test_typst_compiles_the_table(tmp_path, empty):
    (tmp_path / "table.typ").write_text(render(PUBLISHED[:0] if empty else PUBLISHED, "typ", baseline="a"))
    (tmp_path / "main.typ").write_text('#set page(width: auto, height: auto)\n#include "table.typ"\n')
    assert typst.compile(str(tmp_path / "main.typ")).startswith(b"%PDF")


@pytest.mark.skipif(shutil.which("latexmk") is None, reason="latexmk is not installed")
def test_latex_compiles_the_table(tmp_path):
    table = render(PUBLISHED, "tex", baseline="a")
    preamble = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs}"
    (tmp_path / "main.tex").write_text(f"{preamble}\\begin{{document}}\n{table}\\end{{document}}\n")
    command = ["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_decimals_show_the_small_spreads_but_not_the_vanishing():
    assert decimals([0.0005, 0.0016, 0.0003, 0.0006]) == 4
    assert decimals([0.01, 0.02]) == 2
    assert decimals([1e-12, 1e-17, 0.0005, 0.002]) == 4
    assert decimals([2e-6]) == 6
    assert decimals([0.0, NAN]) == 4


def test_a_negative_number_that_rounds_to_zero_has_no_sign():
    assert number(-1e-9, 3) == "0.000"
    assert number(-0.25, 2) == f"{MINUS}0.25"
