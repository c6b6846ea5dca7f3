"""The paper as it stands can be put into LaTeX, prints the PDF's numbers there, and typesets."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from test_paper import EXPERIMENTS, SOURCES

from grpo_ablate.analysis import arxiv, paper
from grpo_ablate.errors import UserError


@pytest.mark.parametrize(("edition", "target"), [(arxiv.WHOLE, "paper"), (arxiv.QUICK, "paper-quick")])
def test_a_paper_that_was_not_built_is_named_with_the_target_of_its_edition(
    tmp_path: Path, edition: str, target: str
) -> None:
    with pytest.raises(
        UserError, match=rf"numbers{edition}\.json: .* make it with: snakemake --cores all {target}$"
    ):
        arxiv.build(tmp_path, SOURCES, edition)


def test_the_paper_is_translated_whole_and_typesets(place: Path) -> None:
    paper.build(place / "results", place / "paper", EXPERIMENTS)
    written = arxiv.build(place / "results", place / "paper")
    assert len(written) == (1 if shutil.which("latexmk") is None else 2)
    with tarfile.open(written[0]) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    source = files["paper.tex"].decode()
    text = (SOURCES / "main.typ").read_text()
    # Every heading and every citation of the source arrives, and those of the sections that are computed.
    headings = re.findall(r"^=+ ([^\[\]#]+?)(?: <[\w-]+>)?$", text, re.MULTILINE)
    assert len(headings) > 5
    for heading in headings:
        assert f"section{{{heading}}}" in source
    keys = set(re.findall(r"@\w+\{(\w+),", (SOURCES / "references.bib").read_text()))
    listed = re.findall(r"\\bibitem\{(\w+)\}", source)
    assert len(listed) > 10
    assert set(re.findall(r"\\cite(?:\[.*?\])?\{(\w+)\}", source)) == set(listed) <= keys
    numbers = json.loads((place / "results/paper/numbers.json").read_text())
    assert numbers["rows"]["leave-one-out"]["mean"] in source
    assert {name for name in files if name.startswith("figures/")} == {
        f"figures/{name}.pdf" for name in numbers["figures"]
    }
    assert "grpo-ablate" in source
    assert not re.search(r"[^\x00-\x7f\u00c0-\u017f]", source), "characters that LaTeX does not set"
