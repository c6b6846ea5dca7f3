"""The arXiv upload: LaTeX source of the paper with its figures in one tarball, the same bytes for the same paper.

Text, numbers and tables are those of the PDF: `prose` translates what Typst made of ``main.typ`` and the numbers
that `paper.build` wrote. Where latexmk is installed the source is also compiled, so that what is uploaded is
known to typeset.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_ablate.analysis.bibliography import read_bibliography, references
from grpo_ablate.analysis.prose import Prose, translate
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

WHOLE, QUICK = "", "-quick"  # which edition of the paper, as its files and targets are called
_MAKE = "snakemake --cores all paper"

_SOURCE = r"""% Made from paper/main.typ by `snakemake arxiv`; edits belong there.
\documentclass[10pt,twocolumn]{article}
\ifdefined\pdfinfoomitdate\pdfinfoomitdate=1\fi
\ifdefined\pdftrailerid\pdftrailerid{}\fi
\ifdefined\pdfsuppressptexinfo\pdfsuppressptexinfo=-1\fi
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{amsmath,amssymb,booktabs,graphicx,tabularx}
\usepackage[hidelinks]{hyperref}
\frenchspacing
\emergencystretch=2em
\newsavebox{\fittedbox}
% A table that is wider than its column is scaled down to it.
\newcommand{\fitted}[1]{\sbox{\fittedbox}{#1}%
  \ifdim\wd\fittedbox>\linewidth\resizebox{\linewidth}{!}{\usebox{\fittedbox}}\else\usebox{\fittedbox}\fi}
\title{@title@}
\author{@authors@}
\date{}
\begin{document}
\maketitle
\begin{abstract}
@abstract@
\end{abstract}

@body@

@references@
\end{document}
"""


def build(results: Path, folder: Path, edition: str = WHOLE, *, compiled: bool | None = None) -> list[Path]:
    """Write ``arxiv/arxiv.tar.gz`` below ``results``, and ``arxiv/arxiv.pdf`` where latexmk is installed.

    ``edition`` is part of the files' names.

    Args:
        results: where `paper.build` has left the numbers, and where the figures are.
        folder: where ``main.typ`` lies.
        compiled: whether to run latexmk; default: where there is one.

    Raises:
        UserError: the paper was not built, the text has no translation, a figure is missing, or LaTeX refuses.
    """
    numbers = f"paper/numbers{edition}.json"
    if not (results / numbers).exists():
        raise UserError(f"{results / numbers}: the paper was not built; make it with: {_MAKE}{edition}")
    paper = content(results, folder, numbers)
    bibliography = read_bibliography(folder / "references.bib")
    prose = translate(paper, frozenset(bibliography))
    files = {"paper.tex": source(prose, references(bibliography, prose.cited)).encode()}
    files |= _images(prose, results, edition)
    files["anc/numbers.json"] = (results / numbers).read_bytes()
    written = [results / "arxiv" / f"arxiv{edition}.tar.gz"]
    if compiled if compiled is not None else shutil.which("latexmk") is not None:
        pdf = compile_source(files)
        written.append(results / "arxiv" / f"arxiv{edition}.pdf")
        write_whole(written[-1], pdf)
    write_whole(written[0], tarball(files))
    return written


def content(results: Path, folder: Path, numbers: str) -> dict[str, Any]:
    """Return title, authors, abstract and body of the paper as Typst's content, filled in from ``numbers``."""
    import typst

    root = Path(os.path.commonpath([results.resolve(), folder.resolve()]))
    try:
        found = typst.query(
            folder.resolve() / "main.typ",
            "<paper>",
            field="value",
            one=True,
            root=root,
            ignore_system_fonts=True,
            sys_inputs={"results": "/" + results.resolve().relative_to(root).as_posix(), "numbers": numbers},
        )
    except RuntimeError as error:
        raise UserError(f"{folder / 'main.typ'}: Typst says: {error}.") from None
    paper: dict[str, Any] = json.loads(found)
    return paper


def source(prose: Prose, bibliography: str) -> str:
    """Return the whole LaTeX file."""
    text = _SOURCE
    parts = {
        "title": prose.title,
        "authors": prose.authors,
        "abstract": prose.abstract,
        "references": bibliography,
        "body": prose.body,
    }
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _images(prose: Prose, results: Path, edition: str) -> dict[str, bytes]:
    found = {}
    for image in prose.images:
        name = Path(image).name
        path = results / "figures" / name
        if not path.exists():
            raise UserError(f"{path}: the paper shows this figure; make it with: {_MAKE}{edition}")
        found[f"figures/{name}"] = path.read_bytes()
    return found


def tarball(files: Mapping[str, bytes]) -> bytes:
    """Return the files as .tar.gz whose bytes depend on names and contents only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), compresslevel=9, mtime=0)


def compile_source(files: Mapping[str, bytes]) -> bytes:
    """Return the PDF that latexmk makes of the files, in a folder of their own.

    Raises:
        UserError: LaTeX refuses, with its first complaint.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        done = subprocess.run(
            ["latexmk", "-pdf", "-norc", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
            cwd=folder,
            env={**os.environ, "SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1"},
            capture_output=True,
            text=True,
            errors="replace",
        )
        pdf = folder / "paper.pdf"
        if done.returncode or not pdf.exists():
            said = next((line for line in done.stdout.splitlines() if line.startswith("!")), "no PDF was made")
            raise UserError(f"paper.tex: LaTeX says: {said.removeprefix('! ').rstrip('.')}.")
        return pdf.read_bytes()
