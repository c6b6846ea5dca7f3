"""Start the processes of one run on this machine, by the agent behind torchrun, a GPU each."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Sequence

PATIENCE = 24 * 3600  # seconds that a process may take from a signal to its checkpoint


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run ``grpo-ablate ARGUMENTS`` as ``count`` processes of one group; return the exit code.

    Each sees the GPU of its place among those in CUDA_VISIBLE_DEVICES. Signals are passed on; when one process
    fails, the others are stopped.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What a process has to say it says itself; the agent would add a traceback.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
        shutdown_timeout=PATIENCE,
        virtual_local_rank=True,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "grpo_ablate", *arguments)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 1
    except SignalException:
        return 2
    return 0
