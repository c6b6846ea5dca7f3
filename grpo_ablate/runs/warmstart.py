"""Train a warm start on a task's demonstrations and publish it, whatever interrupts the work in between.

Supervised: cross-entropy of the answers given their prompts, AdamW, the learning rate constant over the first half
of the steps and falling linearly to 0 over the second. The demonstrations of a step are drawn with replacement by
key, so that a step is a function of its number, and an interrupted training continues bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.policies.optimizer import StackedOptimizer
from grpo_ablate.policies.registry import make_policy
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.initial import flattened, initial_parameters
from grpo_ablate.policies.stacked.supervised import answer_loss
from grpo_ablate.policies.stacked.transformers_folder import save_transformers
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.runs import checkpoint
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.memory import peak_memory
from grpo_ablate.runs.numerics import settle
from grpo_ablate.runs.progress import Progress
from grpo_ablate.runs.provenance import provenance
from grpo_ablate.runs.record import check_writable, json_bytes, sealed_bytes
from grpo_ablate.runs.start_files import FILE, MODEL, PARAMETERS, Begin, start_parameters, unusable
from grpo_ablate.runs.stopping import StopRequest, stop_requests
from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.schema import SCHEMA_VERSION, ArithmeticTask, Spec, StackedPolicy, TranslationTask
from grpo_ablate.spec.warmstart import Start, start_of, training_spec
from grpo_ablate.tasks.protocol import Demonstrations
from grpo_ablate.tasks.registry import make_task

POINTS = 20  # of the loss, in start.json


class Decaying(StackedOptimizer):
    """An optimiser whose learning rate falls linearly to 0 over the second half of its steps."""

    def rate(self) -> Tensor:
        """Return the learning rate of each member's next step, float64 [M]."""
        left = 2 * (1 - self.steps.double() / self.total_steps)
        return self.settings.learning_rate * left.clamp(max=1.0)


def train_start(
    start: Start, results: Path, *, checkpoint_seconds: float = 30, stop_with_parent: bool = False
) -> None:
    """Train a warm start and publish it in its folder below ``results``.

    Its scratch folder holds the lock and the checkpoint: an interrupted training continues from there bit by
    bit, and a finished one is published anew without training.

    Raises:
        UserError: a stop was asked for (the checkpoint is kept), or something cannot be written.
    """
    settle(training_spec(start))
    check_writable(results / start.folder)
    scratch = results / start.scratch
    with stop_requests(stop_with_parent) as request, exclusive(scratch, stop=request.pending):
        session = Session(start, scratch)
        session.resume()
        if session.step < session.steps:
            session.train(request, checkpoint_seconds)
        session.publish(results / start.folder)


def load_start(results: Path, spec: Spec, seeds: range, command: str) -> Begin | None:
    """Return the warm start of a spec's block of seeds, verified; None where it has none.

    Raises:
        UserError: it is not trained (``command`` trains it) or damaged.
    """
    start = start_of(spec, seeds[0], seeds[-1])
    if start is None:
        return None
    found, content = start_parameters(results, start, command)
    return Begin(_sound(content, spec, start, results), found["hash"], found["sha256"])


def _sound(content: bytes, spec: Spec, start: Start, results: Path) -> dict[str, Tensor]:
    """Return the parameters in a safetensors file, which are finite and those of the policy; else UserError."""
    path = results / start.folder / PARAMETERS
    assert isinstance(spec.policy, StackedPolicy)
    assert isinstance(spec.task, ArithmeticTask | TranslationTask)
    try:
        parameters = load(content)
        flat = flattened(
            parameters, Architecture(spec.policy, len(make_task(spec.task).vocabulary)), len(start.members)
        )
    except (SafetensorError, ValueError):
        raise unusable(path, "does not hold the parameters of this policy") from None
    if not flat.isfinite().all():
        raise UserError(
            f"{path}: the warm start diverged, a parameter is not finite: lower policy.warmstart.learning_rate "
            f"({spec.policy.warmstart.learning_rate:g})."
        )
    return parameters


def stacked(parts: list[Demonstrations]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the demonstrations of all members: tokens int64 [M, N, L], prompt lengths and lengths [M, N]."""
    width = max(part.tokens.shape[1] for part in parts)
    tokens = [torch.nn.functional.pad(part.tokens, (0, width - part.tokens.shape[1])) for part in parts]
    lengths = torch.stack([part.prompt_length for part in parts]), torch.stack([part.length for part in parts])
    return torch.stack(tokens), *lengths


class Session:
    """One process's share of a warm start: from its checkpoint, if there is one, to its folder."""

    def __init__(self, start: Start, scratch: Path):
        from grpo_ablate.workflow.digest import start_digest

        self.start, self.members = start, list(start.members)
        self.path, self.aside = scratch / "checkpoint.safetensors", scratch / "start"
        self.identity = {
            "warm start": start.hash,
            "seeds": f"{self.members[0]}-{self.members[-1]}",
            "training code": start_digest(start),
        }
        spec = training_spec(start)
        assert isinstance(spec.policy, StackedPolicy)
        assert isinstance(spec.task, ArithmeticTask | TranslationTask)
        self.settings, self.steps = spec.policy, spec.policy.warmstart.steps
        self.task = make_task(spec.task)
        self.keys = Keys(torch.tensor(self.members))
        count = self.settings.warmstart.demonstrations
        self.tokens, self.prompt_length, self.length = stacked(
            [self.task.demonstrations(count, seed) for seed in self.members]
        )
        longest = int((self.length - self.prompt_length).max())
        self.spec = replace(spec, {"sampling": {"max_tokens": longest}})
        self.architecture = Architecture(self.settings, len(self.task.vocabulary))
        weights = initial_parameters(self.settings, len(self.task.vocabulary), self.keys)
        self.flat = flattened(weights, self.architecture, len(self.members)).requires_grad_()
        self.optimizer = Decaying([self.flat], spec.optimizer, self.steps)
        self.step = 0
        self.notes: dict[str, Any] = {
            "loss": [], "seconds": 0.0, "start_up": time.process_time(), "peak": 0, "sessions": [],
        }  # fmt: skip
        self.began = time.monotonic()

    def resume(self) -> None:
        """Continue from the checkpoint where there is a usable one; start anew otherwise, and say why."""
        found = checkpoint.usable(self.path, self.identity)
        if found is not None:
            self.notes = found.notes
            with torch.no_grad():
                self.flat.copy_(found.tensors.pop("parameters"))
            self.optimizer.load(found.tensors)
            self.step = int(self.optimizer.steps[0])
        if self.step < self.steps:
            self.notes["sessions"].append(provenance(torch.get_num_threads()))

    def train(self, request: StopRequest, every: float) -> None:
        """Take the steps that are left, with a checkpoint every so many seconds and one at the end."""
        saved, all_members = time.monotonic(), torch.ones(len(self.members), dtype=torch.bool)
        progress = Progress(f"warm start {self.start.name}", self.steps, unit="step", measure="loss")
        while self.step < self.steps:
            losses = [self.accumulate(member) for member in range(len(self.members))]
            self.optimizer.step(all_members)
            self.step += 1
            noted = self.step % max(1, self.steps // POINTS) == 0
            if noted:
                self.notes["loss"].append([self.step, losses])
            progress.round(self.step, sum(losses) / len(losses) if noted else None)
            reason = request.pending()
            if self.step == self.steps or reason or time.monotonic() - saved >= every:
                self.save()
                saved = time.monotonic()
            if reason and self.step < self.steps:
                progress.close()
                raise UserError(
                    f"stopped after step {self.step} of {self.steps}: {reason}; the same command continues from "
                    f"{self.path}."
                )
        progress.close()

    def accumulate(self, member: int) -> float:
        """Add the gradient of a member's loss on the coming step's demonstrations; return the loss.

        Each member in its own shapes, so that none can reach another's rounding.
        """
        settings, own = self.settings.warmstart, slice(member, member + 1)
        keys = Keys(self.keys.seeds[own])
        uniform = keys.uniform(
            Purpose.WARM_START, round=self.step, slot=torch.arange(settings.batch), dimensions=2
        )
        rows = (uniform[0] * settings.demonstrations).long()
        parts = (part[member, rows][None] for part in (self.tokens, self.prompt_length, self.length))
        loss = answer_loss(self.flat[own], self.architecture, *parts)
        loss.sum().backward()
        return float(loss.detach())

    def save(self) -> None:
        """Write the checkpoint."""
        now = time.monotonic()
        self.notes |= {
            "seconds": self.notes["seconds"] + now - self.began, "peak": max(peak_memory(), self.notes["peak"])
        }  # fmt: skip
        self.began = now
        try:
            tensors = {"parameters": self.flat.detach(), **self.optimizer.state()}
            checkpoint.save(self.path, tensors, self.identity, self.notes)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}.") from None

    def publish(self, folder: Path) -> None:
        """Write the finished start aside and rename its files into ``folder``, start.json last."""
        parameters = {
            name: values.contiguous() for name, values in self.architecture.views(self.flat.detach()).items()
        }
        content = save(parameters)
        policy = make_policy(self.spec, self.task, self.keys, parameters)
        assert isinstance(self.spec.evaluation.samples, int)
        began = time.perf_counter()
        measured = policy.evaluate(self.spec.evaluation.samples, 0)
        evaluation = time.perf_counter() - began
        stated = {
            "schema_version": SCHEMA_VERSION,
            "hash": self.start.hash,
            "spec": json.loads(self.start.spec_json),
            "seeds": None if self.start.seeds is None else self.members,
            "digest": self.identity["training code"],
            "sha256": hashlib.sha256(content).hexdigest(),
            "evaluation": {name: values.tolist() for name, values in measured.items()},
            "loss": self.notes["loss"],
        }
        *earlier, last = self.notes["sessions"]
        files = {
            PARAMETERS: content,
            "timing.json": json_bytes(self.timing(evaluation)),
            "provenance.json": json_bytes({**last, "interrupted": earlier}),
            FILE: sealed_bytes(stated),
        }
        try:
            shutil.rmtree(self.aside, ignore_errors=True)
            for index, seed in enumerate(self.members):
                one = {name: values[index] for name, values in parameters.items()}
                place = self.aside / MODEL / ("" if self.start.seeds is None else f"seed-{seed}")
                save_transformers(one, self.settings, self.task, place)
            for name, text in files.items():
                (self.aside / name).write_bytes(text)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FILE).unlink(missing_ok=True)
            shutil.rmtree(folder / MODEL, ignore_errors=True)
            for name in (MODEL, *files):
                (self.aside / name).replace(folder / name)
            self.aside.rmdir()
        except OSError as error:
            raise UserError(f"{folder}: the warm start cannot be written: {error.strerror}.") from None

    def timing(self, evaluation: float) -> dict[str, Any]:
        """Return what timing.json says: as a run's, without a curve."""
        notes = self.notes
        return {
            "seconds": notes["seconds"] + evaluation,
            "parts": {"start_up": notes["start_up"], "training": notes["seconds"], "evaluation": evaluation},
            "curve": [],
            "peak_memory_bytes": notes["peak"],
            "updates": self.steps * len(self.members),
            "machine": platform.node(),
        }
