# One job per spec and block of seeds. The key file holds the digest of the code that this row uses.
rule train:
    input:
        "results/digests/{testbed}/{hash}/seeds-{seeds}.txt",
        # Not as `ancient`: Snakemake would then overlook a newer key of this job while the start is made again.
        lambda wildcards: GRID.start(wildcards.testbed, wildcards.hash, wildcards.seeds),
    output:
        multiext(
            "results/runs/{testbed}/{hash}/seeds-{seeds}/",
            "metrics.parquet",
            "samples.jsonl",
            "parameters.safetensors",
            "timing.json",
            "provenance.json",
            "run.json",
        ),
    log:
        "results/logs/{testbed}/{hash}/seeds-{seeds}.log",
    threads: 1
    resources:  # not parameters: another name or address must not train anything again
        row=lambda wildcards: GRID.row(wildcards.testbed, wildcards.hash),
        # In one placeholder: another shell text would train everything again.
        stream=lambda wildcards: GRID.options(wildcards.testbed),
        gpus=lambda wildcards: GRID.gpus(wildcards.testbed),  # for `--resources gpus=4`
        gpu=lambda wildcards: GRID.gpus(wildcards.testbed) or None,  # as a cluster's executor calls it
    params:
        spec=lambda wildcards: GRID.spec(wildcards.testbed, wildcards.hash),
    message:
        "train {resources.row}, seeds {wildcards.seeds}"
    shell:
        "exec python -m grpo_ablate train --cell {params.spec:q} --testbed {wildcards.testbed}"
        " --seeds {wildcards.seeds} --results results --stop-with-parent {resources.stream} 2> {log}"
