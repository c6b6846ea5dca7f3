"""Draw responses token by token, all members as one batch; responses that have ended are dropped from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.algorithm.sampling import law_logprobs
from grpo_ablate.policies.stacked.decoder import ROWS, Cache, Decoder, Workspace, decode, prefill, shared_prompts
from grpo_ablate.spec.schema import Sampling

KEPT_SHARE = 0.7  # the batch shrinks once fewer of its rows are alive: a smaller batch costs a copy of the cache


@dataclass(frozen=True)
class Drawn:
    """Responses to B prompts of M members."""

    tokens: Tensor  # int64 [M, B, G, T]
    token: Tensor  # bool [M, B, G, T]
    truncated: Tensor  # bool [M, B, G]
    logprobs: Tensor  # [M, B, G, T], under the law drawn from
    support: Tensor | None  # bool [M, B, G, T, V] where the law cuts tokens off


def invert(probability: Tensor, uniform: Tensor) -> Tensor:
    """Return the tokens int64 [...] at which the distribution function passes ``uniform`` [...].

    ``probability`` [..., V]. A token of probability 0 is never returned, whatever the rounding of the sums. The
    same uniforms give neighbouring policies mostly the same tokens, which pairs the rows of a seed.
    """
    cumulative = probability.cumsum(-1)
    # From the last token that can be drawn onwards, the function is 1 by definition.
    last = (cumulative >= cumulative[..., -1:]) | cumulative.isnan()
    return (uniform[..., None] >= cumulative).logical_and_(~last).sum(-1)


def draw(
    model: Decoder,
    prompts: Tensor,
    length: Tensor,
    uniforms: Tensor,
    wanted: Tensor,
    size: int,
    law: Sampling,
    end: int,
    pad: int,
    workspace: Workspace,
) -> Drawn:
    """Draw ``size`` responses to each of ``prompts`` int64 [M, B, P] of ``length`` [M, B].

    ``uniforms`` [M, B, G, T] in [0, 1); where they are negative the most probable token is taken. Prompts outside
    ``wanted`` bool [M, B] get no response.
    """
    members, count, _ = prompts.shape
    limit = law.max_tokens
    device = prompts.device
    slots = count * size
    spare = -count % ROWS
    prompts = functional.pad(prompts, (0, 0, 0, spare), value=pad)
    length = functional.pad(length, (0, spare), value=1)
    wanted = functional.pad(wanted, (0, spare))
    cuts = law.top_k != "off" or law.top_p < 1
    vocabulary = model.architecture.vocabulary
    # One slot more takes what is drawn for rows that have ended.
    tokens = torch.full((limit, members, slots + 1), pad, dtype=torch.int64, device=device)
    logprobs = torch.zeros(limit, members, slots + 1, device=device)
    token = torch.zeros(limit, members, slots + 1, dtype=torch.bool, device=device)
    support = torch.ones(limit, members, slots + 1, vocabulary, dtype=torch.bool, device=device) if cuts else None
    greedy = bool((uniforms < 0).any())
    # The largest float32 below 1: rounding up to 1 would leave the distribution function.
    noise = uniforms.reshape(members, slots, limit).permute(2, 0, 1).float().clamp_(max=1 - 2.0**-24)
    noise = functional.pad(noise, (0, 1))

    def pick(logits: Tensor, slot: Tensor, step: int) -> Tensor:
        """Draw the token of ``step`` for the rows that stand in ``slot`` int64 [M, R]."""
        chosen_law = law_logprobs(logits, law) if cuts or law.temperature != 1 else logits.log_softmax(-1)
        uniform = noise[step].gather(1, slot)
        found = invert(chosen_law.exp(), uniform)
        if greedy:
            found = torch.where(uniform < 0, chosen_law.argmax(-1), found)
        tokens[step].scatter_(1, slot, found)
        logprobs[step].scatter_(1, slot, chosen_law.gather(-1, found[..., None])[..., 0])
        token[step].scatter_(1, slot, True)
        if support is not None:
            support[step].scatter_(1, slot[..., None].expand_as(chosen_law), chosen_law > -torch.inf)
        return found

    logits, of_prompts = prefill(model, prompts, length)
    rows = torch.arange((count + spare) * size, device=device).expand(members, -1)
    slot = torch.where(wanted.repeat_interleave(size, 1), rows, slots)
    fed = pick(logits.repeat_interleave(size, 1), slot, 0)
    position = length.repeat_interleave(size, 1)
    settings = model.architecture.settings
    shape = (slot.numel(), settings.kv_heads, limit - 1, settings.head_size)
    tensors = workspace.other(2 * settings.layers, shape, device)
    cache = Cache(tensors[: settings.layers], tensors[settings.layers :])
    shared = shared_prompts(model, of_prompts, length, rows, size)
    for step in range(1, limit):
        slot = torch.where(fed == end, slots, slot)
        alive = slot < slots
        most = int(alive.sum(1).max())
        if most == 0:
            break
        room = slot.shape[1]
        target = -(-most // ROWS) * ROWS
        if target < KEPT_SHARE * room:
            kept = (~alive).to(torch.uint8).argsort(dim=1, stable=True)[:, :target]
            slot, fed, rows = slot.gather(1, kept), fed.gather(1, kept), rows.gather(1, kept)
            position = position.gather(1, kept)
            offset = torch.arange(members, device=device)[:, None] * room
            cache = cache.take((kept + offset).flatten(), step - 1, workspace)
            shared = shared_prompts(model, of_prompts, length, rows, size)
        logits = decode(model, fed, position + (step - 1), shared, cache, step - 1)
        fed = pick(logits, slot, step)

    def shaped(tensor: Tensor) -> Tensor:
        trimmed = tensor[:, :, :slots]
        return trimmed.movedim(0, 2).reshape(members, count, size, limit, *tensor.shape[3:]).contiguous()

    token = shaped(token)
    tokens = shaped(tokens)
    ended = ((tokens == end) & token).any(-1)
    return Drawn(
        tokens=tokens,
        token=token,
        truncated=~ended & token.any(-1),
        logprobs=shaped(logprobs),
        support=None if support is None else shaped(support),
    )
