"""Draw responses token by token with a key-value cache, all members as one batch.

A prompt is computed once for the G responses of its group, and responses that have ended are dropped from the
batch. What one response's logits are must not depend on how many others are still alive, or one member's
lengths would reach another's tokens: every width is fixed by the task and the settings, and the rows of a
member are always a multiple of ``ROWS``, because batched products of fewer than four rows round differently, as
do those by a matrix of fewer than 16 columns, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.algorithm.sampling import law_logprobs
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.network import Parameters, embed, folded, normed
from grpo_ablate.policies.stacked.rotation import rotate_
from grpo_ablate.spec.schema import Sampling

ROWS = 8
COLUMNS = 16
KEPT_SHARE = 0.8  # the batch shrinks once fewer of its rows are alive: a smaller batch costs a copy of the cache


@dataclass(frozen=True)
class Drawn:
    """Responses to B prompts of M members."""

    tokens: Tensor  # int64 [M, B, G, T]
    token: Tensor  # bool [M, B, G, T]
    truncated: Tensor  # bool [M, B, G]
    logprobs: Tensor  # [M, B, G, T], under the law drawn from
    support: Tensor | None  # bool [M, B, G, T, V] where the law cuts tokens off


@dataclass(frozen=True)
class Decoder:
    """The matrices of one call, norms folded in, and the rotations of every position."""

    layers: list[tuple[Tensor, Tensor, Tensor, Tensor]]
    embedding: Tensor
    head: Tensor
    turns: Tensor
    architecture: Architecture


def decoder(flat: Tensor, architecture: Architecture, turns: Tensor) -> Decoder:
    """Return what decoding needs of parameters ``flat`` [M, P]."""
    parameters: Parameters = architecture.views(flat)
    layers = []
    for layer in range(architecture.settings.layers):
        name = f"layers.{layer}."
        layers.append(
            (
                folded(parameters, name + "attention_norm", name + "attention_in"),
                parameters[name + "attention_out"],
                folded(parameters, name + "mlp_norm", name + "mlp_in"),
                parameters[name + "mlp_out"],
            )
        )
    head = parameters["norm"][..., None] * architecture.head(parameters)
    head = functional.pad(head, (0, max(0, COLUMNS - architecture.vocabulary)))
    return Decoder(layers, parameters["embedding"], head, turns, architecture)


class Workspace:
    """Memory for keys and values that call after call uses again.

    Memory fresh from the system costs more than what is written to it. There are two halves: a smaller
    batch is copied from one to the other.
    """

    def __init__(self) -> None:
        self.halves = [torch.empty(0), torch.empty(0)]

    def other(self, count: int, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
        """Return ``count`` tensors of ``shape`` in the half that was not used last, whatever they hold."""
        self.halves.reverse()
        size = count * math.prod(shape)
        if self.halves[0].numel() < size:
            self.halves[0] = torch.empty(size, device=device)
        return self.halves[0][:size].view(count, *shape).unbind()


@dataclass(frozen=True)
class Cache:
    """Keys and values of R rows a member: per layer [M R, kv heads, P + T, D]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def take(self, rows: Tensor, width: int, workspace: Workspace) -> Cache:
        """Return a cache of the rows at ``rows`` int64 [M R'], of which the first ``width`` places are filled."""
        return _filled((*self.keys, *self.values), rows, width, self.keys[0].shape[2], workspace)


def _filled(tensors: Sequence[Tensor], rows: Tensor, width: int, room: int, workspace: Workspace) -> Cache:
    """Return a cache of ``room`` places whose first ``width`` hold those of ``tensors`` at ``rows``."""
    first = tensors[0]
    found = workspace.other(len(tensors), (len(rows), first.shape[1], room, first.shape[3]), first.device)
    for target, tensor in zip(found, tensors, strict=True):
        target[:, :, :width] = tensor[:, :, :width].index_select(0, rows)
    return Cache(found[: len(found) // 2], found[len(found) // 2 :])


def _layer_end(
    values: Tensor, attended: Tensor, matrices: tuple[Tensor, Tensor, Tensor, Tensor], eps: float
) -> Tensor:
    _, out, gate_up, down = matrices
    values = torch.baddbmm(values, attended, out)
    raw, up = torch.bmm(normed(values, eps).value, gate_up).chunk(2, -1)
    return values.baddbmm_(functional.silu(raw).mul_(up), down)


def prefill(model: Decoder, prompts: Tensor, length: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the logits [M, B, V] after each prompt, and every layer's keys, then values, [M, B, kv heads, P, D].

    ``prompts`` int64 [M, B, P], padded on the right to ``length`` [M, B]; B is a multiple of ``ROWS``.
    """
    settings = model.architecture.settings
    members, count, width = prompts.shape
    heads, shared, size = settings.heads, settings.kv_heads, settings.head_size
    place = torch.arange(width, device=prompts.device)
    mask = torch.where(place <= place[:, None], 0.0, -torch.inf)
    values = embed(model.embedding, prompts.flatten(1))
    keys, kept = [], []
    for matrices in model.layers:
        projected = torch.bmm(normed(values, settings.rms_eps).value, matrices[0])
        projected = projected.view(members, count, width, -1, size)
        rotate_(projected, model.turns[:width])
        query, key, value = projected.transpose(2, 3).split([heads, shared, shared], 2)
        key, value = key.contiguous(), value.contiguous()
        keys.append(key)
        kept.append(value)
        query = query.reshape(members * count * shared, -1, size)
        scores = torch.bmm(query, key.view(-1, width, size).transpose(1, 2)).view(-1, width, width).add_(mask)
        attention = scores.softmax(-1).view(members * count * shared, -1, width)
        attended = torch.bmm(attention, value.view(-1, width, size)).view(members, count, heads, width, size)
        attended = attended.transpose(2, 3).reshape(members, count * width, -1)
        values = _layer_end(values, attended, matrices, settings.rms_eps)
    last = (length - 1)[..., None, None].expand(-1, -1, -1, values.shape[-1])
    values = values.view(members, count, width, -1).gather(2, last)[:, :, 0]
    return _logits(model, values), [*keys, *kept]


def _logits(model: Decoder, values: Tensor) -> Tensor:
    logits = torch.bmm(normed(values, model.architecture.settings.rms_eps).value, model.head)
    return logits[..., : model.architecture.vocabulary]


def decode(model: Decoder, tokens: Tensor, position: Tensor, hidden: Tensor, cache: Cache, place: int) -> Tensor:
    """Feed one token to each row and return the logits [M, R, V] of the next.

    ``tokens`` and ``position`` int64 [M, R]; the keys go to ``place`` of the cache, and ``hidden``
    [M R, 1, 1, P + T] is -inf at the places that a row must not see.
    """
    settings = model.architecture.settings
    members, rows = tokens.shape
    heads, shared, size = settings.heads, settings.kv_heads, settings.head_size
    turn = model.turns.index_select(0, position.flatten())
    values = embed(model.embedding, tokens)
    mask = hidden[..., : place + 1]
    for matrices, keys, kept in zip(model.layers, cache.keys, cache.values, strict=True):
        projected = torch.bmm(normed(values, settings.rms_eps).value, matrices[0]).view(members * rows, -1, size)
        rotate_(projected, turn)
        query, key, value = projected.split([heads, shared, shared], 1)
        keys[:, :, place] = key
        kept[:, :, place] = value
        seen = keys.view(members * rows * shared, -1, size)[:, : place + 1]
        scores = torch.bmm(query.reshape(members * rows * shared, -1, size), seen.transpose(1, 2))
        scores = scores.view(members * rows, shared, -1, place + 1).add_(mask)
        attention = scores.softmax(-1).view(members * rows * shared, -1, place + 1)
        attended = torch.bmm(attention, kept.view(members * rows * shared, -1, size)[:, : place + 1])
        values = _layer_end(values, attended.view(members, rows, -1), matrices, settings.rms_eps)
    return _logits(model, values)


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
    uniforms: Tensor | None,
    wanted: Tensor,
    size: int,
    law: Sampling,
    end: int,
    pad: int,
    workspace: Workspace,
) -> Drawn:
    """Draw ``size`` responses to each of ``prompts`` int64 [M, B, P] of ``length`` [M, B].

    ``uniforms`` [M, B, G, T] in [0, 1); without them the most probable token is taken each time. Prompts outside
    ``wanted`` bool [M, B] get no response.
    """
    members, count, width = prompts.shape
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
    noise = None
    if uniforms is not None:
        # The largest float32 below 1: rounding up to 1 would leave the distribution function.
        flat = uniforms.reshape(members, slots, limit).permute(2, 0, 1).float().clamp_(max=1 - 2.0**-24)
        noise = functional.pad(flat, (0, 1))

    def pick(logits: Tensor, slot: Tensor, step: int) -> Tensor:
        """Draw the token of ``step`` for the rows that stand in ``slot`` int64 [M, R]."""
        chosen_law = law_logprobs(logits, law) if cuts or law.temperature != 1 else logits.log_softmax(-1)
        uniform = None if noise is None else noise[step].gather(1, slot)
        found = chosen_law.argmax(-1) if uniform is None else invert(chosen_law.exp(), uniform)
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
    place = torch.arange(width + limit, device=device)
    hidden = torch.where((place >= position[..., None]) & (place < width), -torch.inf, 0.0)
    cache: Cache | None = None
    for step in range(1, limit):
        slot = torch.where(fed == end, slots, slot)
        alive = slot < slots
        most = int(alive.sum(1).max())
        if most == 0:
            break
        room = slot.shape[1]
        target = -(-most // ROWS) * ROWS
        if cache is None or target < KEPT_SHARE * room:
            kept = (~alive).to(torch.uint8).argsort(dim=1, stable=True)[:, :target]
            slot, fed, rows = slot.gather(1, kept), fed.gather(1, kept), rows.gather(1, kept)
            position = position.gather(1, kept)
            hidden = hidden.gather(1, kept[..., None].expand(-1, -1, width + limit))
            if cache is None:
                prompt = rows // size + torch.arange(members, device=device)[:, None] * prompts.shape[1]
                of_rows = [tensor.flatten(0, 1) for tensor in of_prompts]
                cache = _filled(of_rows, prompt.flatten(), width, width + limit, workspace)
            else:
                offset = torch.arange(members, device=device)[:, None] * room
                cache = cache.take((kept + offset).flatten(), width + step - 1, workspace)
        seen = hidden.view(-1, 1, 1, width + limit)
        logits = decode(model, fed, position + (step - 1), seen, cache, width + step - 1)
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
