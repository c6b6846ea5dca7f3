# Everything the rules know of the experiments; refuses a second live workflow and a user's mistakes.
import sys

sys.path.insert(0, workflow.basedir)

from grpo_ablate.workflow.grid import made, plan, start

GRID = start(workflow, config)


wildcard_constraints:
    hash="[0-9a-f]{8}",
    seeds=r"\d+-\d+",
    start=r"[0-9a-f]{8}(/seeds-\d+-\d+)?",
    experiment="|".join(GRID.experiments),
    testbed="|".join(GRID.testbeds),
    exact="|".join(GRID.exact),
