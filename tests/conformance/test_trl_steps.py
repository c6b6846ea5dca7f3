"""trl's own training loop on one recorded batch: every optimiser step, however it is split, is ours.

The policy is the table of log-probabilities itself, trained by plain gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

import batches
from recorded import RESERVED, Entries, Ragged, fixed_batch, ids_of, largest, make_trainer, switches_of
from transformers import TrainerCallback

from grpo_ablate.algorithm.objective import loss, minibatch, prepare
from grpo_ablate.algorithm.packing import pack, unpack
from grpo_ablate.algorithm.records import Batch, Policy, Prepared
from grpo_ablate.explain.batch_file import parse
from grpo_ablate.spec.resolve import preset_switches
from grpo_ablate.spec.schema import Switches

CLOSE = 1e-5
RATE = 4.0


@dataclass(frozen=True)
class Step:
    """One optimiser step of trl's: what it trained on, its loss, and what the policy says after it."""

    microbatches: list[list[int]]  # responses
    loss: float
    logprobs: Ragged

    @property
    def responses(self) -> list[int]:
        return [number for part in self.microbatches for number in part]


def trained(entries: Entries, arguments: dict[str, Any]) -> list[Step]:
    """Let trl generate the batch once and train on it; return its steps."""
    ids = ids_of(entries)
    parts: list[tuple[list[int], float]] = []
    steps: list[Step] = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            said = ids.ragged(trainer.model.table.detach())
            steps.append(Step([part for part, _ in parts], sum(loss for _, loss in parts), said))
            parts.clear()

    iterations = arguments.get("num_iterations", 1)
    split = arguments["steps_per_generation"]
    trainer = make_trainer(
        entries,
        {
            "per_device_train_batch_size": len(entries) // split,
            "max_steps": iterations * split // arguments["gradient_accumulation_steps"],
            "optim": "sgd",
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            **arguments,
        },
        callbacks=[Watch()],
    )
    compute = trainer._compute_loss

    def watched(model, inputs):
        found = compute(model, inputs)
        parts.append(([ids.response(row[0]) for row in inputs["completion_ids"].tolist()], found.item()))
        return found

    trainer._compute_loss = watched
    trainer.train()
    assert not trainer.model.table[:RESERVED].any()
    return steps


def one_by_one(batch: Batch, prepared: Prepared, place: list[tuple[int, int]]) -> tuple[Batch, Prepared]:
    """Return the responses in input order as groups of one: trl deals responses, not groups."""
    slots_B, slots_G = torch.tensor(place).unbind(-1)

    def chosen(record):
        kind = type(record)
        tensors = {name: tensor for name, tensor in pack(record).items() if name != "prompts"}
        found = {name: tensor[:, slots_B, slots_G].unsqueeze(2) for name, tensor in tensors.items()}
        return unpack(kind, found | ({"prompts": record.prompts[:, slots_B]} if kind is Batch else {}))

    return chosen(batch), chosen(prepared)


def replayed(entries: Entries, switches: Switches, steps: list[Step]) -> list[Step]:
    """Take the same optimiser steps here, on the same responses."""
    # What trl calls old is what the policy says when the responses are generated.
    file = parse([entry | {"logp": entry["old_logp"]} for entry in entries], "test")
    prepared = prepare(file.batch, switches, batches.no_draws(file.batch))
    batch, prepared = one_by_one(file.batch, prepared, list(file.place))
    rows = [torch.tensor(entry["old_logp"], dtype=torch.float64) for entry in entries]
    table = torch.zeros(batch.token.shape, dtype=torch.float64)
    for number, row in enumerate(rows):
        table[0, number, 0, : len(row)] = row
    table.requires_grad_()
    found = []
    for step in steps:
        responses = torch.tensor([step.responses])
        part = minibatch(batch, prepared, responses, torch.ones_like(responses, dtype=torch.bool))
        said = Policy(table[torch.zeros_like(responses), responses])
        taken = loss(*part, said, switches, len(entries) / responses.numel())
        (gradient,) = torch.autograd.grad(taken.loss.sum(), table)
        with torch.no_grad():
            table -= RATE * gradient
        values = [table[0, number, 0, : len(row)].tolist() for number, row in enumerate(rows)]
        found.append(replace(step, loss=taken.loss.item(), logprobs=values))
    return found


# How trl splits the twelve responses: microbatches of a pass, microbatches of a step, passes.
SPLITS = {
    "whole": {"steps_per_generation": 1, "gradient_accumulation_steps": 1},
    "passes": {"steps_per_generation": 1, "gradient_accumulation_steps": 1, "num_iterations": 4},
    "accumulated": {"steps_per_generation": 4, "gradient_accumulation_steps": 4},
    "accumulated-one-by-one": {"steps_per_generation": 12, "gradient_accumulation_steps": 12, "num_iterations": 2},
    "minibatches": {"steps_per_generation": 3, "gradient_accumulation_steps": 1, "num_iterations": 2},
    "everything": {"steps_per_generation": 6, "gradient_accumulation_steps": 3, "num_iterations": 3},
}
# The losses whose microbatches add up to the whole; bnpo's do not, see below.
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({}, {}),
    "grpo": ({"loss_type": "grpo"}, {"update": {"reduction": "sequence-mean"}}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"update": {"reduction": "constant"}}),
    "token-sum": ({"loss_type": "luspo"}, {"update": {"reduction": "sequence-sum"}}),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.25},
        {"update": {"surrogate": "cispo", "clip_low": "off", "clip_high": 0.25}},
    ),
    "sapo": ({"loss_type": "sapo"}, {"update": {"surrogate": "soft", "reduction": "sequence-mean"}}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"update": {"surrogate": "sequence", "reduction": "sequence-mean"}},
    ),
    "kl": ({"beta": 0.2}, {"kl": {"beta": 0.2}}),
    "masked": (
        {"mask_truncated_completions": True},
        {"reward": {"overlong": "mask", "masked_in_denominator": False}},
    ),
}
PRESET = preset_switches("trl-1.16", "test")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_step_is_trl_s_however_the_round_is_split(name, split):
    entries = fixed_batch(1)
    arguments, changes = LOSSES[name]
    theirs = trained(entries, arguments | SPLITS[split])
    sizes = SPLITS[split]
    passes = sizes.get("num_iterations", 1)
    assert len(theirs) == passes * sizes["steps_per_generation"] // sizes["gradient_accumulation_steps"]
    seen = sorted(number for step in theirs for number in step.responses)
    assert seen == sorted(list(range(len(entries))) * passes)
    ours = replayed(entries, switches_of(PRESET, {"update": {"mismatch": "none"}}, changes), theirs)
    for mine, trl in zip(ours, theirs, strict=True):
        assert mine.loss == pytest.approx(trl.loss, abs=CLOSE)
        assert largest(mine.logprobs, trl.logprobs) < CLOSE
    assert largest(ours[-1].logprobs, [entry["old_logp"] for entry in entries]) > 0.05


def test_after_a_few_passes_the_clip_acts():
    entries = fixed_batch(1)
    steps = trained(entries, SPLITS["passes"])
    switches = switches_of(PRESET, {"update": {"mismatch": "none"}})
    unclipped = switches_of(PRESET, {"update": {"mismatch": "none", "clip_low": "off", "clip_high": "off"}})
    assert largest(replayed(entries, switches, steps)[-1].logprobs, steps[-1].logprobs) < CLOSE
    assert largest(replayed(entries, unclipped, steps)[-1].logprobs, steps[-1].logprobs) > 1e-2


def test_bnpo_over_several_microbatches_is_the_mean_of_their_token_means():
    entries = fixed_batch(1)
    (step,) = trained(entries, {"loss_type": "bnpo", **SPLITS["accumulated"]})
    switches = switches_of(PRESET, {"update": {"mismatch": "none"}})
    file = parse([entry | {"logp": entry["old_logp"]} for entry in entries], "test")
    advantages = file.ragged(prepare(file.batch, switches, batches.no_draws(file.batch)).advantages)
    local = [
        -sum(sum(advantages[number]) for number in part) / sum(len(advantages[number]) for number in part)
        for part in step.microbatches
    ]  # every ratio is 1
    assert step.loss == pytest.approx(sum(local) / len(local), abs=CLOSE)
    assert abs(step.loss - replayed(entries, switches, [step])[0].loss) > 1e-3
