from snakemake.utils import min_version

min_version("9.27")


include: "grpo_ablate/workflow/start.smk"  # guards the folder, reads the experiments: GRID
include: "grpo_ablate/workflow/warmstart.smk"
include: "grpo_ablate/workflow/train.smk"
include: "grpo_ablate/workflow/log.smk"
include: "grpo_ablate/workflow/tables.smk"
include: "grpo_ablate/workflow/compare.smk"
include: "grpo_ablate/workflow/figures.smk"
include: "grpo_ablate/workflow/exact.smk"
include: "grpo_ablate/workflow/conform.smk"
include: "grpo_ablate/workflow/paper.smk"
include: "grpo_ablate/workflow/arxiv.smk"
include: "grpo_ablate/workflow/verify.smk"
include: "grpo_ablate/workflow/report.smk"
include: "grpo_ablate/workflow/smoke.smk"


report: "grpo_ablate/workflow/report/workflow.rst"


# The whole grid: every experiment trained, logged, tabulated and drawn, and the paper. What a testbed calls
# `on_request` is made by the experiment's own target.
rule all:
    default_target: True
    input:
        GRID.results(*GRID.standing),
        GRID.across,
        GRID.exact_results,
        GRID.paper,
    message:
        "everything is up to date"


rule grid:
    input:
        rules.all.input,
    message:
        "everything is up to date"


# The experiments that take seconds, the exact ones, and the paper that tells of these.
rule quick:
    input:
        GRID.results(*GRID.quick),
        GRID.exact_results,
        GRID.quick_paper,
    message:
        "tables: results/tables, figures: results/figures, paper: paper/paper-quick.pdf"


# What is enumerated instead of trained: tables and figures of the exact experiments, and the propositions.
rule exact:
    input:
        GRID.exact_results,
    message:
        "tables: results/tables, figures: results/figures"


# A reduced grid over every experiment, apart in results/smoke.
rule smoke:
    input:
        expand(rules.smoke_testbed.output, testbed=GRID.standing_testbeds),
    message:
        "the reduced grid ran: results/smoke"


# One target by the name of each experiment.
for name in GRID.experiments:

    rule:
        name:
            name
        input:
            GRID.results(name),
        message:
            "tables: results/tables, figures: results/figures"
