# The supervised training that runs begin from: one for all seeds, or a block of seeds. One thread, by `threads`.
rule warmstart:
    input:
        "results/digests/warmstarts/{start}.txt",
    output:
        multiext("results/warmstarts/{start}/", "parameters.safetensors", "start.json"),
    log:
        "results/logs/warmstarts/{start}.log",
    priority: 20  # every run of a testbed waits for it
    threads: 1
    params:
        spec=lambda wildcards: GRID.start_spec(wildcards.start),
        seeds=lambda wildcards: GRID.start_seeds(wildcards.start),
    message:
        "warm start {wildcards.start}"
    shell:
        "exec python -m grpo_ablate warmstart --cell {params.spec:q} {params.seeds} --results results"
        " --stop-with-parent 2> {log}"
