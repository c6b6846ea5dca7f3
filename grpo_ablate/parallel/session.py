"""Train one run in the processes of a group: all of them run the loop, the first one reads, writes and reports."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

from grpo_ablate.errors import UserError
from grpo_ablate.parallel.group import Group
from grpo_ablate.parallel.policy import DividedPolicy, Divisible, FirstScores
from grpo_ablate.runs.devices import held, peak_device_memory
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.numerics import settle
from grpo_ablate.runs.record import check_writable
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.runs.train import OnEvaluation, Session
from grpo_ablate.spec.schema import Spec


def train_together(
    group: Group,
    spec: Spec,
    seeds: range,
    folder: Path,
    scratch: Path,
    *,
    testbed: str,
    checkpoint_seconds: float = 30,
    stop_with_parent: bool = False,
    on_evaluation: OnEvaluation | None = None,
) -> None:
    """Train ``spec`` as `grpo_ablate.runs.train.train` does, divided over the processes of ``group``.

    To be called by all of them with the same arguments; ``folder`` and ``scratch`` lie where all can read them.
    The record equals that of one process up to the rounding of sums. A request to stop that reaches any process
    stops all of them after the same round.

    Raises:
        UserError: a stop was asked for, something cannot be written, or the processes fell out of step.
    """
    settle(spec)
    with stop_requests(stop_with_parent, once=True) as request:
        if group.first:
            check_writable(folder)
        with exclusive(scratch, stop=request.pending) if group.first else nullcontext():
            group.meet()  # no other trains this run, and its checkpoint is not written to
            session = SharedSession(group, spec, seeds, scratch, testbed)
            session.resume()
            session.in_step()
            if not session.loop.finished:
                try:
                    session.train(SharedRequest(request, group), checkpoint_seconds, on_evaluation)
                except UserError as error:
                    if session.request.reason and not group.first:
                        raise SystemExit(2) from error  # the first process says it for all
                    raise
            session.in_step()
            session.publish(folder)


class SharedRequest(StopRequest):
    """A reason to stop that all processes learn of at the same round."""

    def __init__(self, own: StopRequest, group: Group):
        super().__init__()
        self.own, self.group = own, group

    def pending(self) -> str | None:
        """Return the first process's reason, or another's; None where no process has one."""
        self.reason = next((reason for reason in self.group.gathered(self.own.pending()) if reason), None)
        return self.reason


class SharedSession(Session):
    """A session that all processes go through and the first one writes down."""

    def __init__(self, group: Group, spec: Spec, seeds: range, scratch: Path, testbed: str):
        super().__init__(spec, seeds, scratch, testbed)
        self.group, self.request = group, StopRequest()
        self.names = [name for own in group.gathered(held()) for name in own]
        self.policy = DividedPolicy(cast(Divisible, self.loop.policy), group)
        self.loop.policy, self.loop.task = self.policy, FirstScores(self.loop.task, group)

    def in_step(self) -> None:
        """Raise UserError where the processes are not after the same round with the same parameters."""
        rounds = self.group.gathered(self.loop.round)
        if len(set(rounds)) > 1:
            raise UserError(
                f"{self.path}: the processes read different checkpoints (rounds {', '.join(map(str, rounds))}); "
                "they need a results folder that all of them see."
            )
        if not self.policy.agree():
            raise UserError(f"the processes hold different parameters after round {self.loop.round}.")

    def train(self, request: StopRequest, every: float, on_evaluation: OnEvaluation | None) -> None:
        """Run the rounds that are left; see `Session.train`."""
        self.request = request
        super().train(request, every, on_evaluation if self.group.first else None)

    def save(self) -> None:
        """Write the checkpoint, in the first process; where all are to stop, the others wait for it."""
        if self.group.first:
            super().save()
        if self.request.reason:
            self.group.meet()

    def devices(self) -> list[str]:
        """Return the names of the GPUs of all processes."""
        return self.names

    def publish(self, folder: Path) -> None:
        """Write the record of the finished run, in the first process."""
        self.notes["device_peak"] = max(self.group.gathered(max(peak_device_memory(), self.notes["device_peak"])))
        if self.group.first:
            super().publish(folder)
