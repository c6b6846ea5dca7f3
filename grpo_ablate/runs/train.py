"""Train one spec on a block of seeds and publish its record, whatever interrupts the work in between."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grpo_ablate.algorithm.history import Line
from grpo_ablate.algorithm.loop import Loop, Observation
from grpo_ablate.errors import UserError
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys
from grpo_ablate.runs import checkpoint
from grpo_ablate.runs.devices import held, peak_device_memory
from grpo_ablate.runs.dump import write_round
from grpo_ablate.runs.exhibit import exhibit, without_verdict
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.memory import peak_memory
from grpo_ablate.runs.numerics import settle
from grpo_ablate.runs.progress import Progress
from grpo_ablate.runs.provenance import provenance
from grpo_ablate.runs.record import check_writable, metrics_table, publish
from grpo_ablate.runs.start_files import Begin
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.spec.identity import canonical_json, spec_hash
from grpo_ablate.spec.schema import SCHEMA_VERSION, Spec
from grpo_ablate.spec.warmstart import starts_warm
from grpo_ablate.tasks.registry import make_task
from grpo_ablate.tasks.sources import scored

OnEvaluation = Callable[[Loop, Line], None]
FAULTS = 100  # responses without a verdict that a run keeps
SPARED = 20  # times the seconds of writing a checkpoint that pass before the next


def make_loop(spec: Spec, seeds: range, begin: Begin | None = None) -> Loop:
    """Return the untrained loop of a spec, a member per seed.

    Raises:
        UserError: the spec starts warm and ``begin`` is None.
    """
    if begin is None and starts_warm(spec):
        raise UserError(
            "policy.warmstart: the runs of this row begin from a warm start, and none was given; "
            "`grpo-ablate train EXPERIMENT.yaml:ROW` trains it first."
        )
    keys = Keys(torch.tensor(list(seeds)), spec.sampling.random_key)
    task = scored(make_task(spec.task, spec.policy), spec, keys)
    parameters = None
    if begin is not None:  # of one start for each seed, those of as many members as there are
        parameters = {name: values[: len(seeds)] for name, values in begin.parameters.items()}
    return Loop(spec, make_policy(spec, task, keys, parameters), task, keys)


def run_in_memory(spec: Spec, seeds: range, begin: Begin | None = None) -> dict[str, list[float]]:
    """Train without writing anything; return each metric's last number per seed, in the order of the seeds."""
    settle(spec)
    loop = make_loop(spec, seeds, begin)
    loop.start()
    while not loop.finished:
        loop.advance()
    return {name: loop.history.last(name) for name in loop.history.names()}


def train(
    spec: Spec,
    seeds: range,
    folder: Path,
    scratch: Path,
    *,
    testbed: str,
    begin: Begin | None = None,
    checkpoint_seconds: float = 30,
    stop_with_parent: bool = False,
    dump_round: int | None = None,
    dump_path: Path | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> None:
    """Train ``spec`` on ``seeds`` and publish the record in ``folder``.

    ``begin`` is the warm start of a spec that has one. ``scratch`` holds the lock and the checkpoint: an
    interrupted run continues from there bit by bit, and a finished one is published anew without training.
    With ``dump_round`` the run is followed in memory up to that round (1 is the first), which is written to
    ``dump_path`` as a batch for ``explain``, for the first seed; nothing else is written. ``on_evaluation``
    gets the loop and the line of each evaluation as they come.

    Raises:
        UserError: a stop was asked for (the checkpoint is kept), or something cannot be written.
    """
    settle(spec)
    if dump_round is not None:
        write_round(make_loop(spec, seeds[:1], begin), dump_round, dump_path or Path(f"round-{dump_round}.json"))
        return
    check_writable(folder)
    with stop_requests(stop_with_parent) as request, exclusive(scratch, stop=request.pending):
        session = Session(spec, seeds, scratch, testbed, begin)
        session.resume()
        if not session.loop.finished:
            session.train(request, checkpoint_seconds, on_evaluation)
        session.publish(folder)


class Session:
    """One process's share of a run: from its checkpoint, if there is one, to its record."""

    def __init__(self, spec: Spec, seeds: range, scratch: Path, testbed: str, begin: Begin | None = None):
        from grpo_ablate.workflow.digest import row_digest

        self.spec, self.seeds, self.testbed, self.begin = spec, list(seeds), testbed, begin
        self.path, self.aside = scratch / "checkpoint.safetensors", scratch / "record"
        self.identity = {
            "spec": spec_hash(spec),
            "seeds": f"{seeds[0]}-{seeds[-1]}",
            "training code": row_digest(spec),
        }
        if begin is not None:
            self.identity["warm start"] = begin.sha256
        self.loop = make_loop(spec, seeds, begin)
        start_up = time.process_time()  # most of it is the import of torch
        self.notes: dict[str, Any] = {
            "curve": [], "seconds": 0.0, "start_up": start_up, "parts": {}, "peak": 0,
            "sessions": [], "samples": [], "devices": [], "device_seconds": 0.0, "device_peak": 0,
        }  # fmt: skip
        self.began = time.monotonic()

    def resume(self) -> None:
        """Continue from the checkpoint where there is a usable one; start anew otherwise, and say why."""
        found = checkpoint.usable(self.path, self.identity)
        self.began = time.monotonic()
        if found is None:
            self.notes["sessions"] = [provenance(torch.get_num_threads())]
            self.note_time(self.loop.start())
            self.note_faults()
            return
        self.notes = found.notes
        self.loop.load(found.tensors)
        self.loop.seconds |= found.notes["parts"]
        if not self.loop.finished:
            self.notes["sessions"].append(provenance(torch.get_num_threads()))

    def train(self, request: StopRequest, every: float, on_evaluation: OnEvaluation | None) -> None:
        """Run the rounds that are left, with a checkpoint every so many seconds and one at the end.

        Those of a large model are further apart, so that writing them takes a twentieth of the time at most.
        """
        loop, saved, cost = self.loop, time.monotonic(), 0.0
        progress = Progress(f"{self.testbed} {self.identity['spec'][:8]}", self.spec.rounds)
        while not loop.finished:
            line = self.advance()
            reward = None
            if line is not None:
                self.note_time(line)
                reward = line.values["eval/reward"].nanmean().item()
                if on_evaluation is not None:
                    on_evaluation(loop, line)
            progress.round(loop.round, reward)
            reason = request.pending()
            pause = max(every, SPARED * cost) if every else 0.0
            if loop.finished or reason or time.monotonic() - saved >= pause:
                began = time.monotonic()
                self.save()
                saved = time.monotonic()
                cost = saved - began
            if reason and not loop.finished:
                progress.close()
                raise UserError(
                    f"stopped after round {loop.round} of {self.spec.rounds}: {reason}; the same command "
                    f"continues from {self.path}."
                )
        progress.close()

    def advance(self) -> Line | None:
        """Run one round; keep what the first seed answered in its first round, its middle one and its last.

        What the task's verifier failed on is kept from every round.
        """
        loop, seen = self.loop, list[Observation]()
        line = loop.advance(None if loop.stopped[0] else seen.append)
        if seen and (seen[0].round in (0, self.spec.rounds // 2) or loop.stopped[0]):
            self.notes["samples"] += exhibit(
                seen[0].batch, seen[0].prepared, loop.task, 0, self.seeds[0], seen[0].round + 1
            )
        self.note_faults()
        return line

    def note_faults(self) -> None:
        """Keep the first responses without a verdict, and say so when the first one comes."""
        found = without_verdict(self.loop.task, self.seeds[0], self.loop.round)
        kept = self.notes["samples"]
        earlier = sum("fault" in sample for sample in kept)
        if found and not earlier:
            print(
                f"round {self.loop.round}: the verifier gave no verdict on {len(found)} responses, as on "
                f"{found[0]['response'][:200]!r}: {found[0]['fault']}. Where the reward needs the verdict, "
                "they have none and train nothing: train/reward_missing and eval/reward_missing are their shares. "
                f"The first {FAULTS} of the run are kept among its samples.",
                file=sys.stderr,
            )
        kept += found[: max(0, FAULTS - earlier)]

    def seconds(self) -> float:
        """Return the seconds of all sessions so far."""
        return float(self.notes["seconds"]) + time.monotonic() - self.began

    def devices(self) -> list[str]:
        """Return the names of the GPUs that train the run."""
        return held()

    def note_time(self, line: Line) -> None:
        """Add a point to the curve of cumulative seconds."""
        self.notes["curve"].append([line.round, round(self.seconds(), 4)])

    def save(self) -> None:
        """Write the checkpoint."""
        seconds, devices = self.seconds(), self.devices()
        notes = {
            **self.notes,
            "seconds": seconds,
            "parts": self.loop.seconds,
            "peak": max(peak_memory(), self.notes["peak"]),
            "devices": devices,
            "device_seconds": self.notes["device_seconds"] + len(devices) * (seconds - self.notes["seconds"]),
            "device_peak": max(peak_device_memory(), self.notes["device_peak"]),
        }
        try:
            checkpoint.save(self.path, self.loop.state(), self.identity, notes)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}.") from None
        self.notes, self.began = notes, time.monotonic()

    def publish(self, folder: Path) -> None:
        """Write the record of the finished run."""
        loop, notes = self.loop, self.notes
        diverged = {
            str(seed): int(round)
            for seed, round in zip(self.seeds, loop.diverged.tolist(), strict=True)
            if round >= 0
        }
        run = {
            "schema_version": SCHEMA_VERSION,
            "hash": self.identity["spec"],
            "spec": json.loads(canonical_json(self.spec)),
            "testbed": self.testbed,
            "seeds": self.seeds,
            "status": "diverged" if diverged else "finished",
            "diverged": diverged,
            "digest": self.identity["training code"],
            "budget": {
                "rollouts": loop.spent.tolist(),
                "tokens": loop.tokens.tolist(),
                "updates": loop.updates.tolist(),
            },
        }
        if self.begin is not None:
            run["start"] = {"hash": self.begin.hash, "sha256": self.begin.sha256}
        timing = {
            "seconds": notes["seconds"],
            "parts": {"start_up": notes["start_up"], **notes["parts"]},
            "curve": notes["curve"],
            "peak_memory_bytes": notes["peak"],
            "updates": int(loop.updates.sum()),
            "machine": platform.node(),
            "devices": notes["devices"],
            "device_hours": notes["device_seconds"] / 3600,
            "peak_device_memory_bytes": notes["device_peak"],
        }
        *earlier, last = notes["sessions"]
        publish(
            folder,
            self.aside,
            metrics_table(loop.history.columns(self.seeds)),
            notes["samples"],
            loop.policy.parameters(),
            run,
            {"timing": timing, "provenance": {**last, "interrupted": earlier}},
        )
