"""The paper as it stands can be put into LaTeX, prints the PDF's numbers there, and typesets."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

from test_paper import EXPERIMENTS, SOURCES, place  # noqa: F401  # the fixture `place` is used by its name

from grpo_ablate.analysis import arxiv, paper


def test_the_paper_is_translated_whole_and_typesets(place: Path) -> None:  # noqa: F811  # the same fixture
    paper.build(place / "results", place / "paper", EXPERIMENTS)
    written = arxiv.build(place / "results", place / "paper")
    assert len(written) == (1 if shutil.which("latexmk") is None else 2)
    with tarfile.open(written[0]) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    source = files["paper.tex"].decode()
    text = (SOURCES / "main.typ").read_text()
    # Every heading, formula block and citation of the source arrives.
    assert len(re.findall(r"\\(?:sub)*section\{", source)) == len(re.findall(r"^=+ ", text, re.MULTILINE))
    keys = set(re.findall(r"@\w+\{(\w+),", (SOURCES / "references.bib").read_text()))
    assert set(re.findall(r"\\bibitem\{(\w+)\}", source)) == keys
    numbers = json.loads((place / "results/paper/numbers.json").read_text())
    assert numbers["rows"]["leave-one-out"]["mean"] in source
    assert {name for name in files if name.startswith("figures/")} == {
        f"figures/{name}.pdf" for name in numbers["figures"]
    }
    assert "grpo-ablate" in source
    assert not re.search(r"[^\x00-\x7f\u00c0-\u017f]", source), "characters that LaTeX does not set"
