from grpo_ablate.analysis.figures import inputs as figure_inputs

# Every figure that an experiment asks for, from its tidy table and, where it shows one, its comparison.
for name in GRID.experiments:

    rule:
        name:
            f"draw-{name}"
        input:
            plan=plan("draw", name),
            tables=[f"results/{path}" for path in figure_inputs(GRID.experiments[name])],
        output:
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
            made=made("draw", name),
        log:
            f"results/logs/draw/{name}.log",
        localrule: True
        params:
            experiment=name,
            question=GRID.experiments[name].question,
        message:
            "draw {params.experiment}"
        shell:
            "python -m grpo_ablate figures experiments/{params.experiment}.yaml --results results"
            " 2> {log} && cp {input.plan} {output.made}"


# The same of an exact experiment, from its table.
for name in GRID.exact:

    rule:
        name:
            f"draw-{name}"
        input:
            plan=plan("draw", name),
            table=f"results/tables/{name}.csv",
        output:
            figures=[
                report(
                    path,
                    caption="report/exact-figure.rst",
                    category="exact",
                    subcategory="figures",
                    labels=GRID.label(name, path),
                )
                for path in GRID.figures(name)
            ],
            made=made("draw", name),
        log:
            f"results/logs/draw/{name}.log",
        localrule: True
        threads: 1
        params:
            experiment=name,
            question=GRID.exact[name].question,
            exact=GRID.exact[name].exact,
            assumed=GRID.exact[name].assumed,
        message:
            "draw {params.experiment}"
        shell:
            "python -m grpo_ablate figures experiments/{params.experiment}.yaml --results results"
            " 2> {log} && cp {input.plan} {output.made}"
