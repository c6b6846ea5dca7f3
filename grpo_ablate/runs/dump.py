"""Write one round of a run as the batch file that ``explain`` reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.algorithm import objective
from grpo_ablate.algorithm.loop import Loop, Observation
from grpo_ablate.algorithm.records import Batch, Prepared
from grpo_ablate.algorithm.records import Policy as Says
from grpo_ablate.algorithm.rewards import raw_reward
from grpo_ablate.errors import UserError


@dataclass(frozen=True)
class Round:
    """One round as it stands before its first optimiser step."""

    batch: Batch
    prepared: Prepared
    says: Says  # what the policy says of it
    loss: Tensor  # [M], of the whole round


def write_round(loop: Loop, number: int, path: Path) -> Round:
    """Train up to round ``number`` (1 is the first) and write its accepted groups to ``path``.

    Log-probabilities are those before the round's first optimiser step, in full precision. Of several
    members the first is written. Raises UserError where the run has no such round.
    """
    seen: list[Round] = []

    @torch.no_grad()
    def see(found: Observation) -> None:
        says = loop.says(found.batch)
        loss = objective.loss(found.batch, found.prepared, says, loop.spec).loss
        seen.append(Round(found.batch, found.prepared, says, loss))

    loop.start()
    while not loop.finished and not seen:
        loop.advance(see if loop.round == number - 1 else None)
    if not seen:
        raise UserError(f"--dump-round {number}: the run has rounds 1 to {loop.round}.")
    text = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries(seen[0], loop))
    try:
        path.write_text(f"[{text}]\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None
    print(f"{path}: round {number} of seed {int(loop.keys.seeds[0])}, loss {float(seen[0].loss[0])!r}")
    return seen[0]


def entries(seen: Round, loop: Loop) -> list[dict[str, Any]]:
    """Return the present responses of the first member; a group's name is its slot in the round."""
    batch = seen.batch
    reward = raw_reward(batch, loop.spec.reward)[0].tolist()
    token = batch.token[0]
    found = []
    for slot, sample in batch.present[0].nonzero().tolist():

        def values(tensor: Tensor | None, slot: int = slot, sample: int = sample) -> list[float] | None:
            if tensor is None:
                return None
            return tensor[0, slot, sample][token[slot, sample]].tolist()

        raw = reward[slot][sample]
        entry: dict[str, Any] = {
            "group": slot,
            "reward": None if raw != raw else raw,
            "logp": values(seen.says.logprobs),
            "old_logp": values(batch.old_logprobs),
            "ref_logp": values(batch.reference_logprobs),
            "sampler_logp": values(batch.sampler_logprobs),
            "kl_exact": values(seen.says.kl_exact if batch.old_kl_exact is None else batch.old_kl_exact),
            "truncated": bool(batch.truncated[0, slot, sample]),
        }
        if batch.steps is not None:
            there = batch.steps.present[0, slot, sample]
            ends, scores = batch.steps.end[0, slot, sample][there], batch.steps.score[0, slot, sample][there]
            entry["steps"] = [
                [end, None if score != score else score]
                for end, score in zip(ends.tolist(), scores.tolist(), strict=True)
            ]
        found.append({key: value for key, value in entry.items() if value is not None or key == "reward"})
    return found
