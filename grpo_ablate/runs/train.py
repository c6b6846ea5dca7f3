"""Train one spec on a block of seeds and publish its record, whatever interrupts the work in between."""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grpo_ablate.algorithm.history import Line
from grpo_ablate.algorithm.loop import Loop
from grpo_ablate.errors import UserError
from grpo_ablate.policies.protocol import Draw
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.runs import checkpoint
from grpo_ablate.runs.dump import write_round
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.progress import Progress
from grpo_ablate.runs.provenance import provenance
from grpo_ablate.runs.record import check_writable, metrics_table, publish
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.spec.identity import canonical_json, spec_hash
from grpo_ablate.spec.schema import SCHEMA_VERSION, Spec
from grpo_ablate.tasks.registry import make_task

EXHIBITED = 4  # prompts whose responses samples.jsonl shows, per seed
OnEvaluation = Callable[[Loop, Line], None]


def make_loop(spec: Spec, seeds: range) -> Loop:
    """Return the untrained loop of a spec, a member per seed."""
    keys = Keys(torch.tensor(list(seeds)), spec.sampling.random_key)
    task = make_task(spec.task)
    return Loop(spec, make_policy(spec, task, keys), task, keys)


def run_in_memory(spec: Spec, seeds: range) -> dict[str, list[float]]:
    """Train without writing anything; return each metric's last number per seed, in the order of the seeds."""
    torch.set_num_threads(1)
    loop = make_loop(spec, seeds)
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
    checkpoint_seconds: float = 30,
    stop_with_parent: bool = False,
    dump_round: int | None = None,
    dump_path: Path | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> None:
    """Train ``spec`` on ``seeds`` and publish the record in ``folder``.

    ``scratch`` holds the lock and the checkpoint: an interrupted run continues from there bit by bit, and a
    finished one is published anew without training. With ``dump_round`` the run is followed in memory up to
    that round (1 is the first), which is written to ``dump_path`` as a batch for ``explain``, for the first
    seed; nothing else is written. ``on_evaluation`` gets the loop and the line of each evaluation as they come.

    Raises:
        UserError: a stop was asked for (the checkpoint is kept), or something cannot be written.
    """
    torch.set_num_threads(1)
    if dump_round is not None:
        write_round(make_loop(spec, seeds[:1]), dump_round, dump_path or Path(f"round-{dump_round}.json"))
        return
    check_writable(folder)
    with stop_requests(stop_with_parent) as request, exclusive(scratch, stop=request.pending):
        session = Session(spec, seeds, scratch, testbed)
        session.resume()
        if not session.loop.finished:
            session.train(request, checkpoint_seconds, on_evaluation)
        session.publish(folder)


class Session:
    """One process's share of a run: from its checkpoint, if there is one, to its record."""

    def __init__(self, spec: Spec, seeds: range, scratch: Path, testbed: str):
        from grpo_ablate.workflow.digest import row_digest

        self.spec, self.seeds, self.testbed = spec, list(seeds), testbed
        self.path, self.aside = scratch / "checkpoint.safetensors", scratch / "record"
        self.identity = {
            "spec": spec_hash(spec),
            "seeds": f"{seeds[0]}-{seeds[-1]}",
            "training code": row_digest(spec),
        }
        self.loop = make_loop(spec, seeds)
        start_up = time.process_time()  # most of it is the import of torch
        self.notes: dict[str, Any] = {
            "curve": [], "seconds": 0.0, "start_up": start_up, "parts": {}, "peak": 0, "sessions": [],
        }  # fmt: skip
        self.began = time.monotonic()

    def resume(self) -> None:
        """Continue from the checkpoint where there is a usable one; start anew otherwise, and say why."""
        try:
            found = checkpoint.load(self.path, self.identity)
        except FileNotFoundError:
            found = None
        except checkpoint.UnusableError as reason:
            print(f"{self.path}: not used, the run starts anew: {reason}", file=sys.stderr)
            found = None
        self.began = time.monotonic()
        if found is None:
            self.notes["sessions"] = [provenance(torch.get_num_threads())]
            self.note_time(self.loop.start())
            return
        self.notes = found.notes
        self.loop.load(found.tensors)
        self.loop.seconds |= found.notes["parts"]
        if not self.loop.finished:
            self.notes["sessions"].append(provenance(torch.get_num_threads()))

    def train(self, request: StopRequest, every: float, on_evaluation: OnEvaluation | None) -> None:
        """Run the rounds that are left, with a checkpoint every so many seconds and one at the end."""
        loop, saved = self.loop, time.monotonic()
        progress = Progress(f"{self.testbed} {self.identity['spec'][:8]}", self.spec.rounds)
        while not loop.finished:
            line = loop.advance()
            reward = None
            if line is not None:
                self.note_time(line)
                reward = float(line.values["eval/reward"].nanmean())
                if on_evaluation is not None:
                    on_evaluation(loop, line)
            progress.round(loop.round, reward)
            reason = request.pending()
            if loop.finished or reason or time.monotonic() - saved >= every:
                self.save()
                saved = time.monotonic()
            if reason and not loop.finished:
                progress.close()
                raise UserError(
                    f"stopped after round {loop.round} of {self.spec.rounds}: {reason}; the same command "
                    f"continues from {self.path}."
                )
        progress.close()

    def seconds(self) -> float:
        """Return the seconds of all sessions so far."""
        return float(self.notes["seconds"]) + time.monotonic() - self.began

    def note_time(self, line: Line) -> None:
        """Add a point to the curve of cumulative seconds."""
        self.notes["curve"].append([line.round, round(self.seconds(), 4)])

    def save(self) -> None:
        """Write the checkpoint."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        notes = {
            **self.notes,
            "seconds": self.seconds(),
            "parts": self.loop.seconds,
            "peak": max(peak, self.notes["peak"]),
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
        timing = {
            "seconds": notes["seconds"],
            "parts": {"start_up": notes["start_up"], **notes["parts"]},
            "curve": notes["curve"],
            "peak_memory_bytes": notes["peak"],
            "updates": int(loop.updates.sum()),
            "machine": platform.node(),
        }
        *earlier, last = notes["sessions"]
        publish(
            folder,
            self.aside,
            metrics_table(loop.history.columns(self.seeds)),
            exhibit(loop, self.seeds),
            loop.policy.parameters(),
            run,
            {"timing": timing, "provenance": {**last, "interrupted": earlier}},
        )


@torch.no_grad()
def exhibit(loop: Loop, seeds: list[int]) -> list[dict[str, Any]]:
    """Return a response of each final policy to the first few prompts, with its raw reward."""
    shown = min(EXHIBITED, loop.task.prompt_count)
    prompts = torch.arange(shown).expand(len(seeds), -1)
    wanted = torch.ones(prompts.shape, dtype=torch.bool)
    drawn = loop.policy.sample(prompts, 1, Draw(Purpose.EXHIBIT, loop.round), wanted=wanted)
    rewards = loop.task.score(prompts, drawn.tokens, drawn.token).reward[..., 0].tolist()
    return [
        {
            "seed": seed,
            "round": loop.round,
            **loop.task.exhibit(prompt, drawn.tokens[member, prompt, 0][drawn.token[member, prompt, 0]].tolist()),
            "reward": rewards[member][prompt],
        }
        for member, seed in enumerate(seeds)
        for prompt in range(shown)
    ]
