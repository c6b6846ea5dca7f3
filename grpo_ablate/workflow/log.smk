# Every run of an experiment into MLflow, by one writer at a time.
rule log:
    input:
        plan=plan("log", "{experiment}"),
        runs=lambda wildcards: GRID.runs(wildcards.experiment),
    output:
        made("log", "{experiment}"),
    log:
        "results/logs/log/{experiment}.log",
    priority: 10  # the writers queue: the first should not wait for tables and figures
    localrule: True
    resources:
        mlflow=1,
    params:
        uri=f"--tracking-uri {GRID.tracking_uri}" if GRID.tracking_uri else "",
    message:
        "log {wildcards.experiment} to MLflow"
    shell:
        "python -m grpo_ablate log experiments/{wildcards.experiment}.yaml --results results"
        " {params.uri} 2> {log} && cp {input.plan} {output}"
