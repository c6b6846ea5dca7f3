"""Group-relative policy optimisation, round by round, for M members side by side.

The order of this file is the order of the algorithm (Shao et al. 2024, DeepSeekMath, algorithm 1): sample
groups, score them, fix advantages and weights, take the inner steps, evaluate. It knows a policy only by
its protocol. Members never influence one another: whatever one accepts, spends or diverges to, another's
numbers stay the same bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ablate.algorithm import objective
from grpo_ablate.algorithm.accumulator import Accumulator
from grpo_ablate.algorithm.advantages import initial_running_mean, update_running_mean
from grpo_ablate.algorithm.draws import RewardNumbers
from grpo_ablate.algorithm.history import History, Line
from grpo_ablate.algorithm.orders import ORDERS
from grpo_ablate.algorithm.packing import pack, unpack, within
from grpo_ablate.algorithm.records import Batch, Metric, Prepared
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.algorithm.rollout import Rollout, rollout
from grpo_ablate.algorithm.round_sums import RoundSums
from grpo_ablate.errors import UserError
from grpo_ablate.metrics import divide
from grpo_ablate.policies.protocol import Policy
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.schema import Spec
from grpo_ablate.tasks.protocol import Refreshed, Task

PARTS = ("sampling", "training", "evaluation")


@dataclass(frozen=True)
class Observation:
    """One round as it stands before its first optimiser step."""

    round: int
    batch: Batch
    prepared: Prepared


class Loop:
    """The training of M members from round 0 to the end of their budgets.

    ``start`` evaluates the initial policy, each ``advance`` is one round; ``state`` and ``load`` carry
    everything across an interruption at a round's boundary.
    """

    def __init__(self, spec: Spec, policy: Policy, task: Task, keys: Keys):
        sampling = spec.sampling
        self.spec, self.policy, self.task, self.keys = spec, policy, task, keys
        members, pool = len(keys.seeds), task.prompt_count
        self.order = ORDERS[sampling.prompt_order](keys, sampling.prompts, pool)
        self.numbers = RewardNumbers(spec.reward, keys, sampling.prompts, sampling.group_size, pool)
        self.round = 0  # rounds finished
        self.sampled = 0  # rounds generated, up to ``staleness`` more
        self.queue: list[Rollout] = []
        self.spent, self.tokens, self.updates = torch.zeros(3, members, dtype=torch.int64)
        self.diverged = torch.full((members,), -1)  # round after which a parameter was not finite, else -1
        self.stopped = torch.zeros(members, dtype=torch.bool)
        self.running = (
            initial_running_mean(members, pool, spec.advantage) if spec.advantage.baseline == "ema" else None
        )
        self.scorer = task if isinstance(task, Refreshed) else None
        self.of_rounds, self.of_steps = RoundSums(spec), Accumulator()
        self.history = History()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @property
    def finished(self) -> bool:
        """Whether every member has spent its budget or diverged."""
        return bool(self.stopped.all())

    def start(self) -> Line:
        """Evaluate the initial policy."""
        self.stopped = ~self.can_sample()
        return self.evaluate(torch.ones_like(self.stopped))

    def advance(self, observe: Callable[[Observation], None] | None = None) -> Line | None:
        """Run one round; return the evaluation that follows it, if one does.

        ``observe`` is shown the round before its first optimiser step. Raises UserError where
        ``on_exhausted: fail`` meets a round that ``max_resample`` leaves short of accepted groups.
        """
        began = time.perf_counter()
        if self.spec.kl.beta > 0 and self.due(self.spec.kl.refresh_reference):
            self.policy.refresh_reference(~self.stopped)
        if self.scorer is not None and self.due(self.spec.reward.refresh_model):
            self.scorer.refresh(self.round)
        while len(self.queue) <= self.spec.update.staleness and bool(self.can_sample().any()):
            self.queue.append(self.sample())
        current = self.queue.pop(0)
        training = current.training & (self.diverged < 0)
        sampled = time.perf_counter()
        self.train(current, training, observe)
        self.round += 1

        finite = self.policy.finite()
        self.diverged = torch.where(current.training & ~finite & (self.diverged < 0), self.round, self.diverged)
        ahead = self.can_sample()
        for queued in self.queue:
            ahead = ahead | queued.training
        ended = training & ~(ahead & (self.diverged < 0))
        self.stopped = self.stopped | ended
        self.seconds["sampling"] += sampled - began
        self.seconds["training"] += time.perf_counter() - sampled
        measured = training if self.round % self.spec.evaluation.every == 0 else ended
        return self.evaluate(measured) if bool(measured.any()) else None

    def can_sample(self) -> Tensor:
        """Return which members can pay for a whole round, bool [M]."""
        return (self.spec.budget.rollouts - self.spent >= self.spec.rollouts_per_round) & (self.diverged < 0)

    def due(self, every: int) -> bool:
        """Whether something done every so many rounds (0: never) is due before the coming round."""
        return every > 0 and self.round > 0 and self.round % every == 0

    def sample(self) -> Rollout:
        """Generate the next round's groups and charge for them."""
        left = self.spec.budget.rollouts - self.spent
        drawn = rollout(self.policy, self.task, self.order, self.spec, self.sampled, self.can_sample(), left)
        self.sampled += 1
        self.spent = self.spent + drawn.rollouts()
        self.tokens = self.tokens + drawn.tokens()
        sampling = self.spec.sampling
        if sampling.dynamic == "resample" and sampling.on_exhausted == "fail" and bool(drawn.short.any()):
            member = int(drawn.short.nonzero()[0])
            raise UserError(
                f"sampling.on_exhausted: fail: seed {int(self.keys.seeds[member])} accepted "
                f"{int(drawn.batch.present[member].any(-1).sum())} of {sampling.prompts} groups in "
                f"round {self.sampled} after {sampling.max_resample} further draws; raise sampling.max_resample, "
                "or choose train-on-fewer."
            )
        return drawn

    def train(self, current: Rollout, training: Tensor, observe: Callable[[Observation], None] | None) -> None:
        """Take the inner steps of one round on its accepted groups, for the members ``training`` bool [M]."""
        spec, batch = self.spec, current.batch
        if spec.kl.beta > 0:
            batch = replace(batch, reference_logprobs=self.policy.reference_logprobs(batch))
        prepared = objective.prepare(batch, spec, self.numbers(self.round, batch.prompts), self.running)
        if self.running is not None:
            self.running = update_running_mean(self.running, batch, prepared.shaped, spec.advantage)
        self.of_rounds.add(batch, prepared, current.generated)
        if observe is not None:
            observe(Observation(self.round, batch, prepared))
        for inner_pass in range(spec.update.inner_passes):
            if spec.update.minibatches == 1:
                self.step(batch, prepared, training & batch.present.any(-1).any(-1))
                continue
            groups, valid = self.deal(batch, inner_pass)
            for part in range(spec.update.minibatches):
                chosen = objective.minibatch(batch, prepared, groups[:, part], valid[:, part])
                self.step(*chosen, training & valid[:, part].any(-1))

    def step(self, batch: Batch, prepared: Prepared, members: Tensor) -> None:
        """Take one optimiser step for ``members`` bool [M] on their part of the round."""
        loss = objective.loss(batch, prepared, self.says(batch), self.spec, float(self.spec.update.minibatches))
        self.policy.accumulate(loss.loss)
        norms = self.policy.step(members)
        stepped = members.double()
        norm = Metric(torch.where(members, norms, 0.0), stepped)
        self.of_steps.add({**loss.metrics, "train/gradient_norm": norm})
        self.updates = self.updates + members

    def says(self, batch: Batch) -> Says:
        """Return what the policy says of a batch now, with what the switches need."""
        kl = self.spec.kl
        return self.policy.logprobs(batch, kl_exact=kl.beta > 0 and kl.estimator == "exact")

    def deal(self, batch: Batch, inner_pass: int) -> tuple[Tensor, Tensor]:
        """Deal the accepted groups to minibatches in a keyed order that is new in every pass.

        Returns groups int64 and valid bool, both [M, minibatches, n] with n fixed. The accepted groups of a
        member go round the minibatches in turn, so that their numbers differ by at most one.
        """
        count, slots = self.spec.update.minibatches, batch.present.shape[1]
        accepted = batch.present.any(-1)
        noise = self.keys.uniform(
            Purpose.MINIBATCH, round=self.round, attempt=inner_pass, slot=torch.arange(slots), dimensions=2
        )
        shuffled = torch.where(accepted, noise, 2.0).argsort(-1)  # rejected groups come last
        size = -(-slots // count)
        place = torch.arange(size) * count + torch.arange(count)[:, None]
        valid = place < accepted.sum(1)[:, None, None]
        return shuffled[:, place.clamp(max=slots - 1)], valid

    def evaluate(self, members: Tensor) -> Line:
        """Measure ``members`` bool [M] and close their sums."""
        began = time.perf_counter()
        values = divide({**self.of_rounds.take(members), **self.of_steps.take(members)})
        values |= self.measure(members & ~self.is_final(), members & self.is_final())
        line = Line(self.round, members, torch.stack([self.updates, self.spent, self.tokens]), values)
        self.history.lines.append(line)
        self.seconds["evaluation"] += time.perf_counter() - began
        return line

    def is_final(self) -> Tensor:
        """Return the members whose evaluation now is one of their last ``final_evaluations``, bool [M].

        Counted as if nothing were resampled from here on; a member that has ended has no later one.
        """
        evaluation = self.spec.evaluation
        paid = (self.spec.budget.rollouts - self.spent) // self.spec.rollouts_per_round + len(self.queue)
        later = torch.where(self.stopped, 0, -(-paid // evaluation.every))
        return later < evaluation.final_evaluations

    def measure(self, early: Tensor, final: Tensor) -> dict[str, Tensor]:
        """Evaluate the members ``early`` and ``final``, both bool [M], each with its number of samples."""
        settings = self.spec.evaluation
        if settings.final_samples == "same":
            return self.policy.evaluate(settings.samples, self.round)
        found: dict[str, Tensor] = {}
        for members, samples in ((early, settings.samples), (final, settings.final_samples)):
            if bool(members.any()):
                for name, value in self.policy.evaluate(samples, self.round).items():
                    found[name] = torch.where(members, value, found.get(name, torch.full_like(value, torch.nan)))
        return found

    def state(self) -> dict[str, Tensor]:
        """Return everything that changes while training, as tensors by name."""
        found = {
            "counters": torch.tensor([self.round, self.sampled]),
            "spent": self.spent,
            "tokens": self.tokens,
            "updates": self.updates,
            "diverged": self.diverged,
            "stopped": self.stopped,
        }
        if self.running is not None:
            found["running"] = self.running
        parts = {
            "policy": self.policy.state(),
            "order": self.order.state(),
            "rounds": self.of_rounds.state(),
            "steps": self.of_steps.state(),
            "history": self.history.state(),
            "scorer": {} if self.scorer is None else self.scorer.state(),
            **{f"queue{index}": pack(queued) for index, queued in enumerate(self.queue)},
        }
        return found | {f"{part}.{name}": t for part, some in parts.items() for name, t in some.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self.round, self.sampled = state["counters"].tolist()
        self.spent, self.tokens, self.updates = state["spent"], state["tokens"], state["updates"]
        self.diverged, self.stopped = state["diverged"], state["stopped"]
        self.running = state.get("running")
        self.policy.load(within(state, "policy."))
        self.order.load(within(state, "order."))
        self.of_rounds.load(within(state, "rounds."))
        self.of_steps.load(within(state, "steps."))
        self.history.load(within(state, "history."))
        if self.scorer is not None:
            self.scorer.load(within(state, "scorer."))
        waiting = self.sampled - self.round
        self.queue = [unpack(Rollout, within(state, f"queue{index}.")) for index in range(waiting)]
