"""One process of the benchmark: loads its side, then works in slices as its parent asks.

Run as ``python -m grpo_ablate.bench.worker JOB``: orders come on stdin, replies leave on stdout, and what
libraries print goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Finished, Pacer


def _ours(job: Job, pacer: Pacer) -> None:
    from grpo_ablate.bench.ours import run

    run(job, pacer)


def _transformers(job: Job, pacer: Pacer) -> None:
    from grpo_ablate.bench.transformers_side import run

    run(job, pacer)


def _trl(job: Job, pacer: Pacer) -> None:
    from grpo_ablate.bench.trl_side import run

    run(job, pacer)


def _matmul(job: Job, pacer: Pacer) -> None:
    from grpo_ablate.bench.peak import run

    run(job, pacer)


SIDES: dict[str, Callable[[Job, Pacer], None]] = {
    "grpo-ablate": _ours,
    "transformers": _transformers,
    "trl": _trl,
    "matmul": _matmul,
}


def main(text: str, orders: TextIO, replies: TextIO) -> None:
    """Work until the orders end."""
    from grpo_ablate.bench.flops import token_cost
    from grpo_ablate.runs.numerics import settle
    from grpo_ablate.spec.schema import StackedPolicy

    job = Job.from_json(text)
    spec = job.spec
    settle(spec)
    assert isinstance(spec.policy, StackedPolicy)
    cost = token_cost(spec.policy, len(job.task.vocabulary))
    try:
        SIDES[job.side](job, Pacer(orders, replies, cost=cost, passes=spec.update.inner_passes, device=job.device))
    except Finished:
        return


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the replies
    main(sys.argv[1], sys.stdin, answers)
