# This machine's runs beside results/published, and its tables beside the runs. The quick experiments are trained for
# it, others are taken as far as they are. Without outputs, so that asking twice checks twice.
rule verify:
    input:
        GRID.verified,
    log:
        "results/logs/verify.log",
    localrule: True
    message:
        "compare the runs with results/published"
    shell:
        "python -m grpo_ablate verify --results results 2>&1 | tee {log}"
