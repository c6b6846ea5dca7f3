# The paper's LaTeX source with its figures, ready for upload; compiled as well where latexmk is installed.
rule arxiv:
    input:
        plan=plan("arxiv", "arxiv"),
        numbers="results/paper/numbers.json",
        results=GRID.paper_inputs,
    output:
        source="results/arxiv/arxiv.tar.gz",
        made=made("arxiv", "arxiv"),
    log:
        "results/logs/arxiv.log",
    message:
        "pack the paper for arXiv: {output.source}"
    shell:
        "python -m grpo_ablate arxiv --results results > {log} 2>&1 && cp {input.plan} {output.made}"
