"""The machine's measured peak: large float32 matrix products."""

from __future__ import annotations

import torch

from grpo_ablate.bench.job import Job
from grpo_ablate.bench.pacer import Pacer

SIZE = 2048
OPERATIONS = 2.0 * SIZE**3  # of one product


def run(job: Job, pacer: Pacer) -> None:
    """Multiply two square matrices; a round is one product."""
    left, right = torch.rand(2, SIZE, SIZE, device=job.device)
    out = torch.empty(SIZE, SIZE, device=job.device)
    pacer.ready()
    while True:
        torch.mm(left, right, out=out)
        pacer.round(None)
