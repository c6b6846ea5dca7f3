from grpo_ablate.workflow.reporting import reported


# Tables of an experiment as a page, for the report: a browser does not show CSV.
rule page:
    input:
        plan=plan("page", "{experiment}"),
        tables=lambda wildcards: GRID.page_inputs(wildcards.experiment),
    output:
        page=report(
            "results/tables/{experiment}.html",
            caption="report/page.rst",
            category="{experiment}",
            subcategory="tables",
            labels={"what": "rows, comparison and claims", "format": "html"},
        ),
        made=made("page", "{experiment}"),
    log:
        "results/logs/page/{experiment}.log",
    localrule: True
    params:
        question=lambda wildcards: GRID.experiments[wildcards.experiment].question,
    message:
        "lay out the tables of {wildcards.experiment}"
    shell:
        "python -m grpo_ablate page experiments/{wildcards.experiment}.yaml --results results"
        " 2> {log} && cp {input.plan} {output.made}"


# One page of everything that is finished; the quick experiments are finished for it. Without outputs, so that it is
# made anew each time: what is finished changes.
rule report:
    input:
        lambda wildcards: reported(GRID),
    log:
        "results/logs/report.log",
    localrule: True
    message:
        "gather what is finished: results/report.html"
    shell:
        "python -m grpo_ablate report --to results/report.html > {log} 2>&1"
