# The runs of an experiment as one tidy table, and their summary; `compare` prints it with all that must stand above.
rule collect:
    input:
        plan=plan("collect", "{experiment}"),
        runs=lambda wildcards: GRID.runs(wildcards.experiment),
        logged=lambda wildcards: GRID.logged(wildcards.experiment),
    output:
        runs=multiext("results/tables/{experiment}-runs", ".parquet", ".csv"),
        summary=report(
            "results/tables/{experiment}.csv",
            caption="report/table.rst",
            category="{experiment}",
            subcategory="tables",
            labels={"what": "table of every row", "format": "csv"},
        ),
        made=made("collect", "{experiment}"),
    log:
        "results/logs/collect/{experiment}.log",
    localrule: True
    params:
        source=GRID.source,
    message:
        "tabulate {wildcards.experiment}"
    shell:
        "python -m grpo_ablate collect experiments/{wildcards.experiment}.yaml --results results"
        " --source {params.source:q} 2> {log} && cp {input.plan} {output.made}"
