# The paper's LaTeX source with its figures, ready for upload, of either edition; compiled as well where latexmk is
# installed.
for edition, option, needed in (
    ("", "", GRID.paper_inputs),
    ("-quick", "--quick", GRID.quick_paper_inputs),
):

    rule:
        name:
            f"arxiv{edition}"
        input:
            plan=plan("arxiv", f"arxiv{edition}"),
            numbers=f"results/paper/numbers{edition}.json",
            results=needed,
        output:
            source=f"results/arxiv/arxiv{edition}.tar.gz",
            made=made("arxiv", f"arxiv{edition}"),
        log:
            f"results/logs/arxiv{edition}.log",
        localrule: True
        params:
            option=option,
        message:
            "pack the paper for arXiv: {output.source}"
        shell:
            "python -m grpo_ablate arxiv {params.option} --results results > {log} 2>&1"
            " && cp {input.plan} {output.made}"
