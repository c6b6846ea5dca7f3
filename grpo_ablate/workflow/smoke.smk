# Two rows, two seeds, two rounds of every experiment, a testbed in one process; then tables and figures.
rule smoke_testbed:
    input:
        plan("smoke", "{testbed}"),
    output:
        made("smoke", "{testbed}"),
    log:
        "results/logs/smoke/{testbed}.log",
    threads: 1
    resources:
        gpus=lambda wildcards: min(1, GRID.gpus(wildcards.testbed)),
        gpu=lambda wildcards: min(1, GRID.gpus(wildcards.testbed)) or None,
    message:
        "smoke test of the testbed {wildcards.testbed}"
    shell:
        "python -m grpo_ablate smoke {wildcards.testbed} --results results/smoke 2> {log} && cp {input} {output}"
