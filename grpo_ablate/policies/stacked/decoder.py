"""The transformer one token at a time, with keys and values kept, for M members as one batch.

A prompt is computed once for the G responses of its group, which all attend to the same keys and values.
What one row's logits are must not depend on how many others are computed beside it, or one member's lengths
would reach another's tokens: every width is fixed by the task and the settings, and the rows of a member are
always a multiple of ``ROWS``, because batched products of fewer than four rows round differently, as do those
by a matrix of fewer than 16 columns, row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.network import Parameters, embed, folded, normed
from grpo_ablate.policies.stacked.rotation import rotate_

ROWS = 8
COLUMNS = 16


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
    """Keys and values, per layer [rows, kv heads, places, D]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def take(self, rows: Tensor, width: int | None = None, workspace: Workspace | None = None) -> Cache:
        """Return a cache of ``rows`` int64 [R], of which the first ``width`` places are filled (None: all)."""
        tensors = (*self.keys, *self.values)
        if workspace is None:
            found = tuple(tensor.index_select(0, rows) for tensor in tensors)
        else:
            found = workspace.other(len(tensors), (len(rows), *tensors[0].shape[1:]), rows.device)
            for target, tensor in zip(found, tensors, strict=True):
                target[:, :, :width] = tensor[:, :, :width].index_select(0, rows)
        return Cache(found[: len(self.keys)], found[len(self.keys) :])


@dataclass(frozen=True)
class Prompts:
    """The prompts that R rows a member continue: B of them, each with room for G rows.

    Queries go to their prompts' rectangles [M B kv heads, G R', D], R' queries to a kv head, and come back.
    """

    cache: Cache  # M B rows of P places
    home: Tensor  # int64 [M R heads], the place of each row's query among those of the rectangles
    hidden: Tensor  # [M B, 1, 1, P], -inf behind the prompt's end
    queries: Tensor  # [M B kv heads, G R', D], whatever was there last
    attention: Tensor  # [M B kv heads, G R', P]


def shared_prompts(model: Decoder, cache: Cache, length: Tensor, rows: Tensor, size: int) -> Prompts:
    """Return the prompts of ``rows`` int64 [M, R], row g of group b having the number b ``size`` + g.

    ``cache`` and ``length`` int64 [M, B] are those of all prompts. Prompts that no row continues are left out.
    """
    settings = model.architecture.settings
    shared, repeat = settings.kv_heads, settings.heads // settings.kv_heads
    members, count = length.shape
    device = rows.device
    group = rows // size
    used = torch.zeros(members, count, dtype=torch.bool, device=device).scatter_(1, group, True)
    most = int(used.sum(1).max())
    kept = (~used).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    place = (used.cumsum(1) - 1).gather(1, group)
    member = torch.arange(members, device=device)[:, None]
    heads = torch.arange(shared, device=device)[:, None]
    home = (member * most + place)[..., None, None] * shared + heads
    home = (home * size + (rows % size)[..., None, None]) * repeat + torch.arange(repeat, device=device)
    width = cache.keys[0].shape[2]
    behind = torch.arange(width, device=device) >= length.gather(1, kept)[..., None]
    batch = members * most
    return Prompts(
        cache=cache.take((kept + member * count).flatten()),
        home=home.flatten(),
        hidden=torch.where(behind, -torch.inf, 0.0).view(batch, 1, 1, width),
        queries=torch.zeros(batch * shared, size * repeat, settings.head_size, device=device),
        attention=torch.zeros(batch * shared, size * repeat, width, device=device),
    )


def _layer_end(
    values: Tensor, attended: Tensor, matrices: tuple[Tensor, Tensor, Tensor, Tensor], eps: float
) -> Tensor:
    _, out, gate_up, down = matrices
    values = torch.baddbmm(values, attended, out)
    raw, up = torch.bmm(normed(values, eps).value, gate_up).chunk(2, -1)
    return values.baddbmm_(functional.silu(raw).mul_(up), down)


def prefill(model: Decoder, prompts: Tensor, length: Tensor) -> tuple[Tensor, Cache]:
    """Return the logits [M, B, V] after each prompt, and the prompts' keys and values, M B rows of P places.

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
    flat = [tuple(tensor.flatten(0, 1) for tensor in tensors) for tensors in (keys, kept)]
    return _logits(model, values), Cache(*flat)


def _logits(model: Decoder, values: Tensor) -> Tensor:
    logits = torch.bmm(normed(values, model.architecture.settings.rms_eps).value, model.head)
    return logits[..., : model.architecture.vocabulary]


def decode(model: Decoder, tokens: Tensor, position: Tensor, prompts: Prompts, cache: Cache, step: int) -> Tensor:
    """Feed one token to each row and return the logits [M, R, V] of the next.

    ``tokens`` and ``position`` int64 [M, R]; ``cache`` holds the rows' own keys and values, M R rows of which
    ``step`` places are filled and one more is written.
    """
    settings = model.architecture.settings
    members, rows = tokens.shape
    heads, shared, size = settings.heads, settings.kv_heads, settings.head_size
    turn = model.turns.index_select(0, position.flatten())
    values = embed(model.embedding, tokens)
    for layer, matrices in enumerate(model.layers):
        projected = torch.bmm(normed(values, settings.rms_eps).value, matrices[0]).view(members * rows, -1, size)
        rotate_(projected, turn)
        query, key, value = projected.split([heads, shared, shared], 1)
        keys, kept = cache.keys[layer], cache.values[layer]
        keys[:, :, step] = key
        kept[:, :, step] = value
        query = query.reshape(members * rows * shared, -1, size)
        own_keys, own_values = keys.flatten(0, 1)[:, : step + 1], kept.flatten(0, 1)[:, : step + 1]
        to_prompt = _to_prompts(query, prompts, prompts.cache.keys[layer])
        scores = torch.cat([to_prompt, torch.bmm(query, own_keys.transpose(1, 2))], -1)
        attention = scores.softmax(-1)
        attended = _of_prompts(attention, prompts, prompts.cache.values[layer])
        attended = attended.baddbmm_(attention[..., to_prompt.shape[-1] :], own_values)
        values = _layer_end(values, attended.view(members, rows, -1), matrices, settings.rms_eps)
    return _logits(model, values)


def _to_prompts(query: Tensor, prompts: Prompts, keys: Tensor) -> Tensor:
    """Return the scores [M R kv heads, R', P] of queries [M R kv heads, R', D] over their prompts."""
    width = keys.shape[2]
    prompts.queries.view(-1, query.shape[-1]).index_copy_(0, prompts.home, query.flatten(0, 1))
    scores = torch.bmm(prompts.queries, keys.flatten(0, 1).transpose(1, 2))
    scores.view(len(keys), keys.shape[1], -1, width).add_(prompts.hidden)
    return scores.view(-1, width).index_select(0, prompts.home).view(*query.shape[:2], width)


def _of_prompts(attention: Tensor, prompts: Prompts, values: Tensor) -> Tensor:
    """Return what the attention [M R kv heads, R', P + t] takes from the prompts, [M R kv heads, R', D]."""
    width, size = values.shape[2:]
    prompts.attention.view(-1, width).index_copy_(0, prompts.home, attention[..., :width].flatten(0, 1))
    outputs = torch.bmm(prompts.attention, values.flatten(0, 1))
    return outputs.view(-1, size).index_select(0, prompts.home).view(*attention.shape[:2], size)
