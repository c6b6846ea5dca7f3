# What is known of every experiment's rows and claims; the controls that hold exactly come first, once for all.
rule controls:
    input:
        plan=plan("controls", "controls"),
    output:
        table=report(
            "results/tables/controls.csv",
            caption="report/controls.rst",
            category="controls",
            labels={"what": "controls that hold exactly", "format": "csv"},
        ),
        printed=multiext("results/tables/controls", ".md", ".tex", ".typ"),
        made=made("controls", "controls"),
    log:
        "results/logs/controls.log",
    priority: 30  # takes seconds, and every table waits for it
    localrule: True
    threads: 1
    message:
        "judge the controls"
    shell:
        "python -m grpo_ablate controls --results results > {log} 2>&1 && cp {input.plan} {output.made}"


rule compare:
    input:
        plan=plan("compare", "{experiment}"),
        runs="results/tables/{experiment}-runs.parquet",
        controls=rules.controls.output.table,
    output:
        rows=report(
            "results/tables/{experiment}-comparison.csv",
            caption="report/comparison.rst",
            category="{experiment}",
            subcategory="tables",
            labels={"what": "rows beside the baseline", "format": "csv"},
        ),
        claims=report(
            "results/tables/{experiment}-claims.csv",
            caption="report/claims.rst",
            category="{experiment}",
            subcategory="tables",
            labels={"what": "claims and verdicts", "format": "csv"},
        ),
        printed=expand(
            "results/tables/{{experiment}}{part}.{ending}",
            part=["", "-comparison", "-claims"],
            ending=["md", "tex", "typ"],
        ),
        everything="results/tables/{experiment}-comparison.json",
        made=made("compare", "{experiment}"),
    log:
        "results/logs/compare/{experiment}.log",
    localrule: True
    threads: 1
    message:
        "compare the rows of {wildcards.experiment}"
    shell:
        "python -m grpo_ablate compare experiments/{wildcards.experiment}.yaml --results results --source table"
        " > {log} 2>&1 && cp {input.plan} {output.made}"


rule across:
    input:
        plan=plan("across", "across"),
        comparisons=expand(
            "results/tables/{experiment}-comparison.json", experiment=GRID.standing
        ),
    output:
        table=report(
            "results/tables/across.csv",
            caption="report/across.rst",
            category="across",
            labels={"what": "rows over several testbeds", "format": "csv"},
        ),
        printed=multiext("results/tables/across", ".md", ".tex", ".typ"),
        made=made("across", "across"),
    log:
        "results/logs/across.log",
    localrule: True
    threads: 1
    message:
        "compare over testbeds"
    shell:
        "python -m grpo_ablate across --results results > {log} 2>&1 && cp {input.plan} {output.made}"
