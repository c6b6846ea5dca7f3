"""The LaTeX of the paper: Typst's text translated whole, numbers and all, into equal bytes that typeset."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from grpo_ablate.analysis import arxiv
from grpo_ablate.analysis.bibliography import read_bibliography, references
from grpo_ablate.errors import UserError

HEAD = """
#let paper(title: [], authors: [], abstract: [], body) = {
  [#metadata((title: title, authors: authors, abstract: abstract, body: body)) <paper>]
  set heading(numbering: "1.1")
  set math.equation(numbering: "(1)")
  body
}
#let n = json("/results/paper/numbers.json")
#show: paper.with(title: [A & B], authors: [We], abstract: [It is #n.value.])
"""
TAIL = """
#bibliography("references.bib")
"""
BIBLIOGRAPHY = r"""
@article{curie, author = {Curie, Marie and {\"U}st{\"u}n, Ahmet}, title = {On {Radium}}, journal = "Annals",
  volume = 8, pages = {1--9}, year = {1903}}
@misc{plain, title = {No author}, howpublished = {A page}, url = {https://example.org/a_b}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A paper's folder, with results that hold a number and a figure."""
    for name in ("paper", "results/paper", "results/figures"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "results/paper/numbers.json").write_text('{"value": "17.5 %", "formula": "10^(-8)"}')
    (tmp_path / "paper/references.bib").write_text(BIBLIOGRAPHY)
    figure = plt.figure(figsize=(2, 1))
    figure.savefig(tmp_path / "results/figures/a-curve.pdf", metadata={"CreationDate": None})
    plt.close(figure)
    return tmp_path


def latex(place: Path, text: str) -> str:
    """The body of the LaTeX that a Typst text becomes."""
    (place / "paper/main.typ").write_text(HEAD + text + TAIL)
    files = unpacked(arxiv.build(place / "results", place / "paper", compiled=False)[0])
    source = files["paper.tex"].decode()
    return source.partition(r"\end{abstract}")[2].partition(r"\begin{thebibliography}")[0].strip()


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("*bold* and _leaning_, 5 % of x_y", r"\textbf{bold} and \emph{leaning}, 5 \% of x\_y"),
        ('"Yes" -- he said', "``Yes'' -- he said"),
        ("don't", "don't"),
        ("G~=~2", "G~=~2"),
        ("`a_b`", r"\texttt{a\_b}"),
        ("one \\ two", r"one \\ two"),
        ("one\n\ntwo", "one\n\ntwo"),
        ("#n.value of them", r"17.5 \% of them"),
        ("#if n.value == [x] [no] else [yes]", "yes"),
        ("$#eval(n.formula, mode: \"math\")$", "$10^{-8}$"),
        ("= Head <head>\nSee @head.", "\\section{Head}\\label{head}\nSee Section~\\ref{head}."),
        ("As @curie and @plain say.", r"As \cite{curie} and \cite{plain} say."),
        ('#link("https://a.b/c#d")[there]', r"\href{https://a.b/c\#d}{there}"),
        ("#footnote[Low.]", r"\footnote{Low.}"),
        ("- one\n- two", "\\begin{itemize}\n\\item one\n\\item two\n\\end{itemize}"),
        ("#quote(block: true)[_Why?_]", "\\begin{quote}\n\\emph{Why?}\n\\end{quote}"),
        ("#text(size: 8pt)[small]", "small"),
    ],
)  # fmt: skip
def test_words_are_translated(place: Path, written: str, expected: str) -> None:
    assert latex(place, written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("x / (1 + y)", r"\frac{x}{1+y}"),
        ("pi_theta (y_(i t) | h)", r"\pi_{\theta} (y_{i t} | h)"),
        ("(a / b)^2", r"\left( \frac{a}{b} \right)^{2}"),
        ("sum_(i = 1)^n x_i", r"\sum_{i = 1}^{n} x_{i}"),
        ("sqrt(G - 1) >= root(3, x)", r"\sqrt{G-1} \ge \sqrt[3]{x}"),
        ('epsilon_"lo" != oo', r"\varepsilon_{\text{lo}} \ne \infty"),
        ("EE[R] - overline(R)", r"\mathbb{E}[R]-\overline{R}"),
        ("hat(x) x'", r"\hat{x} x'"),
        ("nabla V \\/ sigma", r"\nabla V / \sigma"),
        ("max_a log p", r"\max_{a} \log p"),
        ('op("argmax", limits: #true)_a', r"\operatorname*{argmax}_{a}"),
        ("KL", None),
        ('"KL"(p || q)', r"\text{KL}(p \Vert q)"),
        ("cases(1 & x, 0 & y)", r"\begin{cases} 1 & x \\ 0 & y \end{cases}"),
        ("binom(n, k) quad Gamma Alpha", r"\binom{n}{k} \quad \Gamma A"),
        ("{a, b}", r"\{a, b\}"),
    ],
)
def test_formulas_are_translated(place: Path, written: str, expected: str | None) -> None:
    if expected is None:  # Typst itself knows no such name
        with pytest.raises(UserError, match="unknown variable: KL"):
            latex(place, f"${written}$")
        return
    found = latex(place, f"${written}$")
    assert re.sub(r" *([-+=]) *", r"\1", found) == re.sub(r" *([-+=]) *", r"\1", f"${expected}$").replace(
        "  ", " "
    )


def test_a_block_has_one_number_and_its_label(place: Path) -> None:
    text = latex(place, "By @sum,\n$ a &= b \\\n  &= c $ <sum>\nand $ d $")
    assert text == (
        "By \\eqref{sum},\n\\begin{equation}\\label{sum}\n\\begin{aligned}\na & = b \\\\\n& = c\n\\end{aligned}\n"
        "\\end{equation}\nand\n\\begin{equation}\nd\n\\end{equation}"
    )


TABLE = """
#figure(table(columns: (1fr, auto), align: (left, right), table.hline(), table.header([row], [mean]),
  table.hline(), [a], [#n.value], [\\[b\\]], [1], table.cell(colspan: 2, align: center)[both], table.hline()),
  caption: [Numbers.]) <numbers>
#figure(image("/results/figures/a-curve.pdf"), caption: [A curve, $x^2$.], scope: "parent", placement: top) <curve>
@numbers, @curve
"""


def test_tables_and_figures_keep_captions_labels_and_places(place: Path) -> None:
    text = latex(place, TABLE)
    assert "\\begin{table}[tbp]\n\\small\n\\caption{Numbers.}\\label{numbers}\n\\centering" in text
    assert (
        "\\begin{tabularx}{\\linewidth}{>{\\raggedright\\arraybackslash}Xr}\n"
        "\\toprule\nrow & mean \\\\\n\\midrule\na & 17.5 \\% \\\\\n"
        "{[}b{]} & 1 \\\\\n\\multicolumn{2}{c}{both} \\\\\n\\bottomrule\n\\end{tabularx}"
    ) in text
    assert "\\begin{figure*}[tbp]" in text
    assert "\\includegraphics[width=\\linewidth]{figures/a-curve.pdf}" in text
    assert text.endswith("Table~\\ref{numbers}, Figure~\\ref{curve}")


def test_columns_share_the_free_width_as_typst_shares_it(place: Path) -> None:
    text = latex(place, "#table(columns: (3fr, auto, 1fr), align: (left, right, center), [a], [b], [c])")
    assert (
        r"{>{\raggedright\arraybackslash\hsize=1.5\hsize}Xr>{\centering\arraybackslash\hsize=0.5\hsize}X}" in text
    )


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("#context here().page()", "context cannot be put into LaTeX"),
        ("#grid(columns: 2, [a], [b])", "grid cannot be put into LaTeX"),
        ("$cancel(x)$", "a formula uses cancel"),
        ("$ℵ$", "a formula uses the character"),
        ("#figure(image(\"/results/figures/b.pdf\"))", "Typst says"),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_a_sentence(place: Path, written: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        latex(place, written)


def test_references_stand_in_the_order_of_citation(place: Path) -> None:
    known = read_bibliography(place / "paper/references.bib")
    text = references(known, ["plain", "curie"])
    assert text.splitlines()[1:3] == [
        r"\bibitem{plain} No author. A page. \url{https://example.org/a_b}.",
        r"\bibitem{curie} M.~Curie and A.~{\"U}st{\"u}n. On {Radium}. \emph{Annals} 8:1--9. 1903.",
    ]
    (place / "paper/references.bib").write_text("@misc{open, title = {never closed}")
    with pytest.raises(UserError, match=r"references\.bib: line 1: a brace is not closed"):
        read_bibliography(place / "paper/references.bib")


def test_equal_papers_give_an_equal_tarball_without_paths_or_times(place: Path, tmp_path_factory) -> None:
    latex(place, TABLE)
    first = (place / "results/arxiv/arxiv.tar.gz").read_bytes()
    other = tmp_path_factory.mktemp("elsewhere") / "deep"
    shutil.copytree(place, other)
    arxiv.build(other / "results", other / "paper", compiled=False)
    assert (other / "results/arxiv/arxiv.tar.gz").read_bytes() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["anc/numbers.json", "figures/a-curve.pdf", "paper.tex"]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}
    assert str(place).encode() not in unpacked(place / "results/arxiv/arxiv.tar.gz")["paper.tex"]


@pytest.mark.skipif(shutil.which("latexmk") is None, reason="needs latexmk")
def test_the_source_typesets_to_equal_bytes(place: Path) -> None:
    text = TABLE + "= Head\nAs @curie says: $ sum_i x_i / (1 + x) $\n- one\n- two\n"
    latex(place, text)
    pages = []
    for _ in range(2):
        written = arxiv.build(place / "results", place / "paper")
        assert [path.name for path in written] == ["arxiv.tar.gz", "arxiv.pdf"]
        pages.append(written[1].read_bytes())
    assert pages[0] == pages[1]
    assert pages[0].startswith(b"%PDF")


@pytest.mark.skipif(shutil.which("latexmk") is None, reason="needs latexmk")
def test_what_latex_refuses_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"paper\.tex: LaTeX says: Undefined control sequence"):
        arxiv.compile_source({"paper.tex": rb"\documentclass{article}\begin{document}\nothing\end{document}"})
