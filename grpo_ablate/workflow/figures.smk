# Every figure that an experiment asks for, from its tidy table.
for name in GRID.experiments:

    rule:
        name:
            f"draw-{name}"
        input:
            plan=plan("draw", name),
            runs=f"results/tables/{name}-runs.parquet",
        output:
            figures=[
                report(
                    path,
                    caption="report/figure.rst",
                    category=name,
                    labels=GRID.label(name, path),
                )
                for path in GRID.figures(name)
            ],
            made=made("draw", name),
        log:
            f"results/logs/draw/{name}.log",
        params:
            experiment=name,
            question=GRID.experiments[name].question,
        shell:
            "python -m grpo_ablate figures experiments/{params.experiment}.yaml --results results"
            " 2> {log} && cp {input.plan} {output.made}"
