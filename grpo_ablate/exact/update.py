"""The update of one group: its exact expectation, bias and variance, or a Monte Carlo estimate of them.

The update of a group is the ascent direction ``-grad loss`` of the row's loss on that group alone (B = 1, the
prompt drawn from its law), one optimiser step, on policy unless a point is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import RewardDraws
from grpo_ablate.errors import UserError
from grpo_ablate.exact.groups import Setting, coefficients, setting
from grpo_ablate.exact.multisets import MultisetLaw, multiset_count, multisets
from grpo_ablate.exact.policy import ExactPolicy
from grpo_ablate.exact.quantities import reward_gradient
from grpo_ablate.exact.refusals import check
from grpo_ablate.spec.schema import Switches

MULTISETS = 2_000_000  # groups that are enumerated, all prompts together
NUMBERS = 500_000_000  # tokens in all these groups together
TABLE = 20_000_000  # numbers in a prompt's table of binomials
SAMPLED = 100_000_000  # groups of a Monte Carlo estimate: their prompts are drawn at once
CHUNK = 1 << 18  # tokens (or table entries) worked on at a time; some forty tensors of that size live at once


@dataclass(frozen=True)
class ExactUpdate:
    """The update of one group in expectation, over the parameters [D]; all float64.

    Under dynamic sampling, expectation and variance are those of an accepted group.
    """

    gradient: Tensor  # [D], of the expected raw reward under the law really sampled
    expected_update: Tensor  # [D], E update
    variance: float  # E |update|^2 - |E update|^2
    p_mixed: float  # chance that the raw rewards of a group are not all equal
    accepted: float  # chance that a group trains
    group_size: int
    groups: int  # enumerated multisets, or sampled groups
    standard_error: Tensor | None  # [D], of a Monte Carlo estimate; None: exact

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between expected update and gradient; None where one of them is 0."""
        gradient, update = _unit(self.gradient), _unit(self.expected_update)
        return None if gradient is None or update is None else float(gradient @ update)

    @property
    def norm_ratio(self) -> float | None:
        """|expected update| / |gradient|; None where the gradient is 0."""
        size = length(self.gradient)
        return length(self.expected_update) / size if size > 0 else None

    @property
    def per_rollout(self) -> Tensor:
        """The expected update per response generated, rejected groups charged, [D]."""
        return self.expected_update * (self.accepted / self.group_size)


def length(vector: Tensor) -> float:
    """Return the norm; the largest entry is taken out of the squares, which could leave float64's range."""
    largest = float(vector.abs().max())
    return largest * float((vector / largest).norm()) if largest > 0 else 0.0


def _unit(vector: Tensor) -> Tensor | None:
    largest = vector.abs().max()
    return None if largest == 0 else (vector / largest) / (vector / largest).norm()


def expected_update(
    policy: ExactPolicy, switches: Switches, *, at: Tensor | None = None, limit: int = MULTISETS
) -> ExactUpdate:
    """Return the exact expected update of one group of ``switches.sampling.group_size`` responses.

    Groups are drawn at ``policy.parameters``; the gradient is taken at ``at`` [D] (default: the same point, on
    policy). Raises UserError for switches without an exact value, or when more than ``limit`` multisets would
    have to be enumerated (the sentence states how many).
    """
    check(policy, switches, sampled=False)
    settings = [setting(prompt, switches, policy.parameters, at) for prompt in policy.prompts]
    _refuse_too_large(policy, settings, limit)
    sums = _Sums(len(policy.parameters))
    for each in settings:
        weigh = MultisetLaw(each.probabilities[each.possible], switches.sampling.group_size)
        for index in enumerated(each):
            sums.add(each, each.possible[index], each.prompt.probability * weigh(index))
    return sums.result(policy, switches, sampled=False)


def monte_carlo(
    policy: ExactPolicy, switches: Switches, groups: int, *, seed: int = 0, at: Tensor | None = None
) -> ExactUpdate:
    """Return the same from ``groups`` sampled groups, with standard errors; ``gradient`` stays exact.

    Also for transforms that draw random numbers (fresh ones for every group). Raises UserError for switches
    that one group does not settle, and when no sampled group was accepted.
    """
    check(policy, switches, sampled=True)
    if groups > SAMPLED:
        raise UserError(f"--monte-carlo {groups}: expected at most {SAMPLED:,} groups.")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed {seed}: expected a whole number from 0 to 2^63 - 1.")
    if groups < 2:
        raise UserError(f"--monte-carlo {groups}: expected at least 2 groups, to have a standard error.")
    generator = torch.Generator().manual_seed(seed)
    law = torch.tensor([prompt.probability for prompt in policy.prompts], dtype=torch.float64)
    drawn = torch.multinomial(law, groups, replacement=True, generator=generator).bincount(minlength=len(law))
    sums = _Sums(len(policy.parameters))
    for prompt, count in zip(policy.prompts, drawn.tolist(), strict=True):
        each = setting(prompt, switches, policy.parameters, at)
        size = switches.sampling.group_size
        while count > 0:
            part = min(count, chunk(each))
            flat = torch.multinomial(each.probabilities, part * size, replacement=True, generator=generator)
            weights = torch.full((part,), 1.0 / groups, dtype=torch.float64)
            sums.add(each, flat.view(part, size), weights, _draws(part, size, generator))
            count -= part
    return sums.result(policy, switches, sampled=True)


def chunk(at: Setting) -> int:
    """Return how many groups fit into one piece of work."""
    size, switches = at.switches.sampling.group_size, at.switches
    compared = size if switches.reward.transform == "rank" else 1
    if switches.advantage.scale == "leave-one-out-std":
        compared = max(compared, min(size, len(at.possible)))  # distinct rewards
    # Of the tables that compare the responses of a group two by two only a few live at once.
    width = max(at.prompt.edges.shape[1], compared // 8)
    return max(1, CHUNK // max(size * width, at.jacobians.shape[0]))


def enumerated(at: Setting) -> Iterator[Tensor]:
    """Yield every multiset of a setting as int64 [m, G], numbers into ``at.possible``."""
    return multisets(len(at.possible), at.switches.sampling.group_size, chunk(at))


def _refuse_too_large(policy: ExactPolicy, settings: list[Setting], limit: int) -> None:
    size = settings[0].switches.sampling.group_size
    counts = [multiset_count(len(each.possible), size) for each in settings]
    tokens = sum(n * size * each.prompt.edges.shape[1] for n, each in zip(counts, settings, strict=True))
    largest = max(len(each.possible) for each in settings)
    advice = "use a smaller group_size or fewer responses, or estimate with --monte-carlo N."
    if sum(counts) > limit:
        raise UserError(
            f"{policy.source}: groups of {size} out of {largest} responses make {_large(sum(counts))} multisets, "
            f"more than the {limit:,} that are enumerated: {advice}"
        )
    if tokens > NUMBERS or largest * (size + 1) ** 2 > TABLE:
        raise UserError(
            f"{policy.source}: {sum(counts):,} multisets of {size} responses with up to "
            f"{max(each.prompt.edges.shape[1] for each in settings)} tokens are {_large(tokens)} tokens, "
            f"more than is enumerated (at most {NUMBERS:,}, and group sizes in the low thousands): {advice}"
        )


def _large(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"about 10^{len(str(count)) - 1}"


def _draws(groups: int, size: int, generator: torch.Generator) -> RewardDraws:
    return RewardDraws(
        torch.randn(groups, 1, size, generator=generator, dtype=torch.float64),
        torch.rand(groups, 1, size, generator=generator, dtype=torch.float64),
        torch.rand(groups, 1, 2, generator=generator, dtype=torch.float64),
    )


class _Sums:
    """Weighted sums over groups: mass, update, its squares."""

    def __init__(self, dimensions: int):
        self.update = torch.zeros(dimensions, dtype=torch.float64)
        self.squares = torch.zeros(dimensions, dtype=torch.float64)
        self.accepted = self.mixed = 0.0
        self.groups = self.accepted_groups = 0

    def add(self, at: Setting, index: Tensor, weights: Tensor, draws: RewardDraws | None = None) -> None:
        found = coefficients(at, index, draws)
        update = -(found.slopes @ at.jacobians)
        kept = torch.where(found.accepted, weights, 0.0)
        self.update[at.prompt.columns] += kept @ update
        self.squares[at.prompt.columns] += kept @ update.square()
        self.accepted += float(kept.sum())
        self.mixed += float(torch.where(found.mixed, weights, 0.0).sum())
        self.groups += len(index)
        self.accepted_groups += int(found.accepted.sum())

    def result(self, policy: ExactPolicy, switches: Switches, sampled: bool) -> ExactUpdate:
        if self.accepted_groups < (2 if sampled else 1):
            found = f"{self.accepted_groups} of {self.groups} sampled groups" if sampled else "no group"
            raise UserError(
                f"{policy.source}: sampling.dynamic {switches.sampling.dynamic} accepts {found}; "
                "expected prompts whose groups can hold different rewards."
            )
        mean = self.update / self.accepted
        spread = (self.squares / self.accepted - mean.square()).clamp(min=0.0)
        count = self.accepted_groups
        gradient = reward_gradient(policy, switches.sampling)
        if not all(bool(found.isfinite().all()) for found in (mean, spread, gradient)):
            raise UserError(
                f"{policy.source}: the update does not fit into double precision; "
                "expected rewards, logits and references of moderate size."
            )
        if sampled:
            spread = spread * (count / (count - 1))
        return ExactUpdate(
            gradient=gradient,
            expected_update=mean,
            variance=float(spread.sum()),
            p_mixed=self.mixed,
            accepted=self.accepted,
            group_size=switches.sampling.group_size,
            groups=self.groups,
            standard_error=(spread / count).sqrt() if sampled else None,
        )
