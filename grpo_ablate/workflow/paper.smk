# The paper; every number in it is read from the results.
rule paper:
    input:
        plan=plan("paper", "paper"),
        results=GRID.paper_inputs,
    output:
        paper=report(
            "paper/paper.pdf",
            caption="report/paper.rst",
            category="paper",
            labels={"what": "the paper", "format": "pdf"},
        ),
        numbers="results/paper/numbers.json",
        made=made("paper", "paper"),
    log:
        "results/logs/paper.log",
    message:
        "typeset paper/paper.pdf"
    shell:
        "python -m grpo_ablate paper --results results 2> {log} && cp {input.plan} {output.made}"
