"""The work that the sides share: a testbed's spec, and the checkpoint that training starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.runs.start_files import MODEL, found_start
from grpo_ablate.spec.combinations import refusal
from grpo_ablate.spec.files import BESIDE
from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.inert import neutralised
from grpo_ablate.spec.reading import checked
from grpo_ablate.spec.resolve import load_testbed
from grpo_ablate.spec.schema import Spec, StackedPolicy
from grpo_ablate.spec.warmstart import Start, start_of

TESTBEDS = Path("experiments/testbeds")
DEFAULT = ("arithmetic", "translation")
SHORT = 300  # steps of the warm start that is trained where the testbed's own is not there

# What the loops to compare with can do, by switch; all other switches must be neutral.
COMPARABLE: dict[str, tuple[object, ...]] = {
    "advantage.baseline": ("mean",),
    "advantage.scale": ("group-std", "none"),
    "update.surrogate": ("clip",),
    "update.reduction": ("sequence-mean", "token-mean", "constant"),
    "optimizer.schedule": ("constant",),
}
FREE = {"advantage.ddof", "advantage.eps", "update.clip_low", "update.clip_high", "update.constant"} | {
    "update.inner_passes", "update.minibatches", "update.force",
    *(f"optimizer.{key}" for key in ("name", "learning_rate", "warmup", "betas", "weight_decay", "max_grad_norm")),
    *(f"sampling.{key}" for key in ("prompts", "prompt_order", "group_size", "max_tokens", "temperature")),
    "sampling.random_key",
}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """One testbed's work, as every side does it."""

    testbed: str
    whole: Spec  # what the testbed trains: its own budget and evaluations
    spec: Spec  # the same for as many rounds as are measured, with no evaluation on the way
    results: Path  # where the warm start lies
    origin: str  # what training starts from, in words


def spec_of_testbed(name: str) -> Spec:
    """Return what a testbed trains by itself, all seeds from one start.

    Raises:
        UserError: there is no such testbed, or its policy is no language model or starts cold.
    """
    path = TESTBEDS / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in TESTBEDS.glob("*.yaml"))
        raise UserError(f"no testbed '{name}' ({path}); {nearest(name, known)}")
    _, file = load_testbed(path)
    stated = file.model_dump(exclude_unset=True, exclude=set(BESIDE))
    spec = checked(Spec, stated, str(path))
    reason = refusal(spec)
    if reason is not None:
        raise UserError(f"{path}: {reason}")
    spec, _ = neutralised(spec)
    if not isinstance(spec.policy, StackedPolicy):
        raise UserError(
            f"{path}: bench measures language models (policy.name: stacked), this one is {spec.policy.name}."
        )
    if not spec.policy.warmstart.steps:
        raise UserError(f"{path}: bench wants a warm start, and policy.warmstart.steps is 0.")
    shared = spec.policy.warmstart.model_copy(update={"per_seed": False})
    return spec.model_copy(update={"policy": spec.policy.model_copy(update={"warmstart": shared})})


def check_comparable(spec: Spec, against: Sequence[str], where: str) -> None:
    """Raise UserError, naming the switch, where the spec asks for what the loops to compare with do not do."""
    neutral = Spec(task=spec.task, budget=spec.budget)
    for section in ("reward", "sampling", "advantage", "update", "kl", "optimizer"):
        for key in type(getattr(spec, section)).model_fields:
            name, value = f"{section}.{key}", getattr(getattr(spec, section), key)
            allowed = COMPARABLE.get(name, (getattr(getattr(neutral, section), key),))
            if name not in FREE and value not in allowed:
                raise UserError(
                    f"{where}: --against {against[0]}: {name} is {value}, and the loop to compare with knows "
                    f"{' and '.join(map(str, allowed))} alone."
                )
    if spec.sampling.prompts % spec.update.minibatches:
        raise UserError(
            f"{where}: --against {against[0]}: {spec.update.minibatches} minibatches do not divide the "
            f"{spec.sampling.prompts} prompts of a round evenly."
        )
    if "off" in (spec.update.clip_low, spec.update.clip_high):
        raise UserError(f"{where}: --against {against[0]}: update.clip_low and clip_high must be numbers.")


def prepared(name: str, results: Path, rounds: int, scratch: Path) -> Workload:
    """Return the work of ``rounds`` rounds of a testbed, without evaluations on the way.

    It starts from the testbed's warm start where ``results`` has it, else from a short one trained in ``scratch``.
    """
    whole = spec_of_testbed(name)
    start = start_of(whole, 0, 0)
    assert start is not None
    if found_start(results, start) is not None:
        origin = f"the testbed's warm start, {results / start.folder}"
    else:
        whole, origin = _short(whole, scratch)
        results = scratch
    evaluation = {"every": 1_000_000_000, "samples": 1, "final_samples": "same", "final_evaluations": 1}
    budget = {"rollouts": (rounds + 1) * whole.rollouts_per_round}
    return Workload(name, whole, replace(whole, {"budget": budget, "evaluation": evaluation}), results, origin)


def _short(spec: Spec, scratch: Path) -> tuple[Spec, str]:
    import torch

    from grpo_ablate.runs.warmstart import train_start

    assert isinstance(spec.policy, StackedPolicy)
    full = spec.policy.warmstart.steps
    steps = min(SHORT, full)
    shorter = spec.policy.warmstart.model_copy(update={"steps": steps})
    spec = spec.model_copy(update={"policy": spec.policy.model_copy(update={"warmstart": shorter})})
    start = start_of(spec, 0, 0)
    assert start is not None
    if found_start(scratch, start) is None:
        train_start(start, scratch)
        torch.set_flush_denormal(False)  # which training sets, and numpy warns of
    return spec, f"a warm start of {steps} steps made for this; the testbed's own, of {full} steps, is not trained"


def model_folder(results: Path, spec: Spec) -> Path:
    """Return the transformers folder of the start that all models share."""
    start = start_of(spec, 0, 0)
    assert isinstance(start, Start)
    return results / start.folder / MODEL
