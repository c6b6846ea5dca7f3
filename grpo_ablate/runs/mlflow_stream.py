"""Lines of a long run to MLflow while it trains; a lost server costs the trainer seconds, and nothing is lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.errors import UserError
from grpo_ablate.runs.lock import is_held
from grpo_ablate.runs.mlflow_content import identity_tags, parameters
from grpo_ablate.runs.mlflow_lines import encode, lines_by_seed, timestamps
from grpo_ablate.runs.mlflow_store import create_store, discard, experiment_id, find_runs, locate, opened
from grpo_ablate.runs.mlflow_writer import log_batches
from grpo_ablate.spec.identity import canonical_json, spec_hash

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from grpo_ablate.algorithm.history import Line
    from grpo_ablate.algorithm.loop import Loop
    from grpo_ablate.spec.schema import Spec


class Stream:
    """The trainer's ``on_evaluation``, and a context manager that ends the runs when training ends.

    Each (hash, seed) is one MLflow run, begun anew after a resume: the loop's own history has every line, and
    is what waits while the server is away. `grpo-ablate log` replaces the runs from the record. No call raises
    on account of the server; after a failure it is left alone for ``patience`` seconds.

    ``uri`` is a server's address; ``folder`` the run's, ``<results>/runs/<testbed>/<hash8>/seeds-<a>-<b>``.
    """

    def __init__(self, uri: str | None, spec: Spec, *, testbed: str, folder: Path, patience: float = 60):
        self._results, self._testbed, self._uri = folder.parents[3], testbed, uri
        self._store, self._patience, self._quiet_until = locate(self._results, uri), patience, 0.0
        self._spec, self._folder = spec, str(folder.relative_to(self._results))
        self._seen: dict[int, int] = {}  # round -> when its line was met, milliseconds since 1970
        self._runs: dict[int, str] = {}  # seed -> run id
        self._logged: dict[int, int] = {}  # seed -> number of lines
        self._loop: Loop | None = None

    def __call__(self, loop: Loop, _: Line) -> None:
        """Log the lines that the server does not have yet, if it answers."""
        self._loop = loop
        for line in loop.history.lines:
            self._seen.setdefault(line.round, int(time.time() * 1000))
        self._attempt(self._flush)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Log what waits and end the runs: FINISHED, or KILLED when training stopped before its end."""
        self._quiet_until = 0.0
        self._attempt(lambda client: self._end(client, "FINISHED" if kind is None else "KILLED"))

    def _attempt(self, action: Callable[[MlflowClient], None]) -> None:
        if self._loop is None or time.monotonic() < self._quiet_until:
            return
        try:
            if not self._runs:
                create_store(self._results, self._uri, [self._testbed])
            with opened(self._store) as client:
                action(client)
        except UserError as error:
            print(f"streaming to MLflow waits: {error}", file=sys.stderr)
            self._quiet_until = time.monotonic() + self._patience

    def _flush(self, client: MlflowClient) -> None:
        """Log every line that is not logged."""
        assert self._loop is not None
        columns = self._loop.history.columns(self._loop.keys.seeds.tolist())
        for seed, lines in lines_by_seed({name: column.numpy() for name, column in columns.items()}).items():
            first = self._logged.get(seed, 0)
            times = timestamps(0, [self._seen[number] / 1000 for number in lines["round"].tolist()])
            new = {name: column[first:] for name, column in lines.items()}
            if seed not in self._runs:
                self._runs[seed] = self._start(client, seed)
                log_batches(client, self._runs[seed], parameters=parameters(self._spec))
            log_batches(client, self._runs[seed], encode(new, times[first:]))
            self._logged[seed] = len(lines["round"])

    def _start(self, client: MlflowClient, seed: int) -> str:
        """Begin the run of a seed in place of any earlier one; return its id."""
        digest, number = spec_hash(self._spec), experiment_id(client, self._testbed)
        for run in find_runs(client, number, f"tags.hash = '{digest}'").get((digest, seed), ()):
            discard(client, run)
        tags = identity_tags(canonical_json(self._spec), digest, self._testbed, self._folder)
        made = client.create_run(number, tags={**tags, "seed": str(seed)}, run_name=f"{digest[:8]} seed {seed}")
        return str(made.info.run_id)

    def _end(self, client: MlflowClient, status: str) -> None:
        self._flush(client)
        for identity in self._runs.values():
            client.set_terminated(identity, status)


def end_abandoned(results: Path, testbeds: Sequence[str], uri: str | None = None) -> int:
    """Mark as KILLED the runs in MLflow that nobody trains any more; return how many.

    A trainer holds the lock file of its scratch folder for as long as it lives.

    Raises:
        UserError: the store cannot be used.
    """
    store, count = locate(results, uri), 0
    if store.database is not None and not store.database.exists():
        return 0
    with opened(store) as client:
        for found in (client.get_experiment_by_name(name) for name in testbeds):
            running = find_runs(client, found.experiment_id, "attributes.status = 'RUNNING'") if found else {}
            for run in (run for runs in running.values() for run in runs):
                folder = run.data.tags.get("folder", "")
                if folder.startswith("runs/") and not is_held(results / folder.replace("runs/", "scratch/", 1)):
                    client.set_terminated(run.info.run_id, "KILLED")
                    count += 1
    return count
