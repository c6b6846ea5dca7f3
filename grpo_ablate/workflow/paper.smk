# The paper, in two editions: of every experiment, and of those that take seconds. Every number in it is read from
# the results. Two files, so that neither target undoes what the other made.
from grpo_ablate.workflow.grid import PAPERS

for edition, option, needed in (
    ("paper", "", GRID.paper_inputs),
    ("paper-quick", "--quick", GRID.quick_paper_inputs),
):
    pdf, numbers, *overview = PAPERS[edition]

    rule:
        name:
            edition
        input:
            plan=plan("paper", edition),
            results=needed,
        output:
            paper=report(
                pdf,
                caption="report/paper.rst",
                category="paper",
                labels={
                    "what": (
                        "the paper" if not option else "the paper, quick experiments"
                    ),
                    "format": "pdf",
                },
            ),
            numbers=numbers,
            overview=[
                report(
                    path,
                    caption="report/overview.rst",
                    category="paper",
                    labels={"what": "all switches", "format": path.rpartition(".")[2]},
                )
                for path in overview
            ],
            made=made("paper", edition),
        log:
            f"results/logs/{edition}.log",
        localrule: True
        params:
            option=option,
        message:
            "typeset {output.paper}"
        shell:
            "python -m grpo_ablate paper {params.option} --results results 2> {log}"
            " && cp {input.plan} {output.made}"
