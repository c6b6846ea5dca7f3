"""Start the processes of one run on this machine, by the agent behind torchrun, a GPU each."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from grpo_ablate.runs.stopping import SIGNALS

PATIENCE = 24 * 3600  # seconds that a process may take from a signal to its checkpoint


def launch(count: int, arguments: Sequence[str], stop: Callable[[], str | None]) -> int:
    """Run ``grpo-ablate ARGUMENTS`` as ``count`` processes of one group; return the exit code.

    Each sees the GPU of its place among those in CUDA_VISIBLE_DEVICES. Signals are passed on, and so is a reason
    that ``stop`` gives; when one process fails, the others are stopped.
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
        signals_to_handle=",".join(number.name for number in SIGNALS),
        shutdown_timeout=PATIENCE,
        virtual_local_rank=True,
    )
    try:
        with _asked(stop):
            elastic_launch(config, sys.executable)("-m", "grpo_ablate", *arguments)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 1
    except SignalException:
        return 2
    return 0


@contextmanager
def _asked(stop: Callable[[], str | None]) -> Iterator[None]:
    """Send this process SIGTERM once ``stop`` gives a reason and the agent listens, whose handlers end with it."""
    before, ended = {number: signal.getsignal(number) for number in SIGNALS}, threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            if stop() and signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        for number, handler in before.items():
            signal.signal(number, handler)
