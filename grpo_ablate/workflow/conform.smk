from grpo_ablate.workflow.grid import conform_tables

# One target by the name of each experiment of two trainers, where the other trainer is installed.
for name in GRID.conform:

    rule:
        name:
            name
        input:
            plan=plan("conform", name),
            starts=GRID.conform_starts(name),
        output:
            tables=conform_tables(name),
            figures=[
                report(
                    path,
                    caption="report/figure.rst",
                    category=name,
                    subcategory="figures",
                    labels=GRID.label(name, path),
                )
                for path in GRID.figures(name)
            ],
            made=made("conform", name),
        log:
            f"results/logs/conform/{name}.log",
        threads: 1
        params:
            experiment=name,
            question=GRID.conform[name].question,
        message:
            "train {params.experiment} here and by trl"
        shell:
            "python -m grpo_ablate conform experiments/{params.experiment}.yaml --results results"
            " > {log} 2>&1 && cp {input.plan} {output.made}"
