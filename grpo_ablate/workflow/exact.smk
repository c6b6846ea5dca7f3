# What needs no training: the table of every exact experiment, and the propositions.
rule exact_table:
    input:
        plan=plan("exact", "{exact}"),
    output:
        table=report(
            "results/tables/{exact}.csv",
            caption="report/exact.rst",
            category="exact",
            subcategory="tables",
            labels={"what": "{exact}", "format": "csv"},
        ),
        made=made("exact", "{exact}"),
    log:
        "results/logs/exact/{exact}.log",
    localrule: True
    threads: 1
    message:
        "enumerate {wildcards.exact}"
    shell:
        "python -m grpo_ablate exact-table experiments/{wildcards.exact}.yaml --results results"
        " 2> {log} && cp {input.plan} {output.made}"


rule propositions:
    input:
        plan=plan("exact", "propositions"),
    output:
        table=report(
            "results/tables/propositions.csv",
            caption="report/exact.rst",
            category="exact",
            subcategory="tables",
            labels={"what": "propositions", "format": "csv"},
        ),
        printed=multiext("results/tables/propositions", ".md", ".tex", ".typ"),
        made=made("exact", "propositions"),
    log:
        "results/logs/exact/propositions.log",
    localrule: True
    threads: 1
    message:
        "check the propositions"
    shell:
        "python -m grpo_ablate propositions --results results 2> {log} && cp {input.plan} {output.made}"
