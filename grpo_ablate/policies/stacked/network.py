"""The transformer on packed tokens, forwards and backwards, for C members at once.

Written out by hand: on a CPU a model this small spends more time on the bookkeeping of automatic
differentiation and on temporary tensors than on its products. The architecture is that of Llama (Touvron et
al., "LLaMA", 2023, section 2.2): pre-normalisation by RMSNorm, rotary embeddings, SwiGLU, grouped queries
(Ainslie et al., "GQA", 2023). A norm's weight is folded into the matrix that follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.layout import Layout
from grpo_ablate.policies.stacked.products import product
from grpo_ablate.policies.stacked.rotation import rotate_

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Normed:
    """An RMSNorm's output before its weight, and what it multiplied by."""

    value: Tensor  # [C, N, H]
    factor: Tensor  # [C, N, 1]


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values in the padded form, each a batch of matrices for its products."""

    prompt_query: Tensor  # [C K B, R P, D]: K kv heads, R queries to each
    response_query: Tensor  # [C K B G, R S, D]
    prompt_key: Tensor  # [C K B, P, D]
    response_key: Tensor  # [C K B G, S, D]
    prompt_value: Tensor  # as prompt_key
    response_value: Tensor  # as response_key


@dataclass(frozen=True)
class LayerTape:
    """What the backward pass of one layer needs of its forward pass."""

    attention_in: Normed
    heads: Heads
    prompt_attention: Tensor  # [C, K, B, R, P, P]
    response_attention: Tensor  # [C, K, B, G, R, S, P + S]
    attended: Tensor  # [C, N, heads D]
    mlp_in: Normed
    gate_up: Tensor  # [C, N, 2 I]
    gate: Tensor  # [C, N, I], after its SiLU
    gated: Tensor  # [C, N, I]


@dataclass(frozen=True)
class Tape:
    """What the backward pass needs of the forward pass."""

    layers: list[LayerTape]
    final: Normed


def normed(values: Tensor, eps: float) -> Normed:
    """Return ``values`` [..., H] divided by their root mean square."""
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    factor = norm.square_().div_(values.shape[-1]).add_(eps).rsqrt_()
    return Normed(values * factor, factor)


def folded(parameters: Parameters, norm: str, matrix: str) -> Tensor:
    """Return a matrix [M, H, K] with the weight [M, H] of the norm before it folded in."""
    return parameters[norm][..., None] * parameters[matrix]


def forward(parameters: Parameters, architecture: Architecture, layout: Layout) -> tuple[Tensor, Tape]:
    """Return the logits [C, Q, V] of the rows that predict response tokens, and the tape."""
    eps = architecture.settings.rms_eps
    chunk, total = layout.tokens.shape
    values = embed(parameters["embedding"], layout.tokens)
    layers = []
    for layer in range(architecture.settings.layers):
        name = f"layers.{layer}"
        before = normed(values, eps)
        heads = _heads(
            before.value,
            folded(parameters, f"{name}.attention_norm", f"{name}.attention_in"),
            layout,
            architecture,
        )
        attended, of_prompts, of_responses = _attend(heads, layout, architecture)
        attended = attended.view(chunk, total, -1)
        values = values + product(attended, parameters[f"{name}.attention_out"])
        between = normed(values, eps)
        gate_up = product(between.value, folded(parameters, f"{name}.mlp_norm", f"{name}.mlp_in"))
        raw, up = gate_up.chunk(2, -1)
        gate = functional.silu(raw)
        gated = gate * up
        values = values + product(gated, parameters[f"{name}.mlp_out"])
        layers.append(LayerTape(before, heads, of_prompts, of_responses, attended, between, gate_up, gate, gated))
    final = normed(values[:, : layout.queries], eps)
    logits = product(final.value * parameters["norm"][:, None], architecture.head(parameters))
    return logits, Tape(layers, final)


def embed(embedding: Tensor, tokens: Tensor) -> Tensor:
    """Return the rows [C, N, H] of each member's ``embedding`` [C, V, H] at ``tokens`` [C, N]."""
    if len(tokens) == 1:
        return embedding[0].index_select(0, tokens[0])[None]
    return embedding[torch.arange(len(tokens), device=tokens.device)[:, None], tokens]


def _heads(values: Tensor, matrix: Tensor, layout: Layout, architecture: Architecture) -> Heads:
    settings = architecture.settings
    chunk, total, _ = values.shape
    projected = values.new_empty(chunk * total + 1, architecture.projections, settings.head_size)
    projected[-1] = 0  # what empty slots show
    rows = projected[:-1]
    rows.view(chunk, total, -1).copy_(product(values, matrix))
    rotate_(rows, layout.turn)
    slots = projected.view(-1, settings.head_size).index_select(0, layout.spread)
    return _parts(slots, layout, architecture, chunk)


def _parts(slots: Tensor, layout: Layout, architecture: Architecture, chunk: int) -> Heads:
    """Cut the slots [slots, D] into views of queries, keys and values."""
    settings = architecture.settings
    groups, size, width, steps = layout.shape
    repeat = settings.heads // settings.kv_heads
    batch = chunk * settings.kv_heads * groups
    prompts, responses = batch * width, batch * size * steps
    cut = slots.split([prompts * repeat, responses * repeat, prompts, responses, prompts, responses])
    lengths = (repeat * width, repeat * steps, width, steps, width, steps)
    return Heads(*(part.view(-1, length, settings.head_size) for part, length in zip(cut, lengths, strict=True)))


def _attend(heads: Heads, layout: Layout, architecture: Architecture) -> tuple[Tensor, Tensor, Tensor]:
    """Return the heads' outputs packed [C N, heads, D] and the attention of prompts and of responses."""
    settings = architecture.settings
    groups, size, width, steps = layout.shape
    shared, repeat = settings.kv_heads, settings.heads // settings.kv_heads
    batch = len(heads.prompt_key)
    chunk = batch // (shared * groups)
    head_size = settings.head_size

    scores = torch.bmm(heads.prompt_query, heads.prompt_key.transpose(1, 2))
    scores = scores.view(chunk, shared, groups, repeat, width, width).add_(layout.prompt_mask)
    of_prompts = scores.softmax(-1)

    to_prompt = torch.bmm(heads.response_query.view(batch, -1, head_size), heads.prompt_key.transpose(1, 2))
    to_own = torch.bmm(heads.response_query, heads.response_key.transpose(1, 2))
    shape = (chunk, shared, groups, size, repeat, steps)
    scores = torch.cat([to_prompt.view(*shape, width), to_own.view(*shape, steps)], -1).add_(layout.response_mask)
    of_responses = scores.softmax(-1)

    outputs = scores.new_empty(len(layout.spread_out) + 1, head_size)
    outputs[-1] = 0
    cut = batch * repeat * width
    torch.bmm(of_prompts.view(batch, -1, width), heads.prompt_value, out=outputs[:cut].view(batch, -1, head_size))
    of_response = outputs[cut:-1]
    over_prompt, over_own = _split(of_responses, batch, width)
    torch.bmm(over_prompt, heads.prompt_value, out=of_response.view(batch, -1, head_size))
    of_response.view(batch * size, -1, head_size).baddbmm_(over_own, heads.response_value)
    packed = outputs.index_select(0, layout.collect_out)
    return packed, of_prompts, of_responses


def _split(attention: Tensor, batch: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the attention over prompts [C K B, G R S, P] and over responses [C K B G, R S, S], as views."""
    rows = attention.view(batch, -1, attention.shape[-1])
    each = attention.view(batch * attention.shape[3], -1, attention.shape[-1])
    return rows[..., :width], each[..., width:]


def backward(
    parameters: Parameters, architecture: Architecture, layout: Layout, tape: Tape, logits: Tensor
) -> Tensor:
    """Return the gradient [C, P] of all parameters, given that of the ``logits`` [C, Q, V]."""
    chunk, total = layout.tokens.shape
    gradient = logits.new_empty(chunk, architecture.size)
    into = architecture.views(gradient)
    head = architecture.head(parameters)

    weight = parameters["norm"][:, None]
    of_head = product((tape.final.value * weight).transpose(1, 2), logits)
    if not architecture.settings.tied:
        into["head"].copy_(of_head)
    upper = product(logits, head.transpose(1, 2))
    torch.sum(upper * tape.final.value, 1, out=into["norm"])
    values = logits.new_zeros(chunk, total, upper.shape[-1])
    values[:, : layout.queries] = _unnormed(upper.mul_(weight), tape.final)

    back = layout.turn.conj_physical()
    for layer in reversed(range(architecture.settings.layers)):
        name, saved = f"layers.{layer}", tape.layers[layer]
        into[f"{name}.mlp_out"].copy_(product(saved.gated.transpose(1, 2), values))
        upper = product(values, parameters[f"{name}.mlp_out"].transpose(1, 2))
        raw, up = saved.gate_up.chunk(2, -1)
        both = torch.empty_like(saved.gate_up)
        of_gate, of_up = both.chunk(2, -1)
        torch.mul(upper, saved.gate, out=of_up)
        torch.ops.aten.silu_backward.grad_input(upper.mul_(up), raw, grad_input=of_gate)
        values += _matrix(parameters, into, f"{name}.mlp_norm", f"{name}.mlp_in", saved.mlp_in, both)

        into[f"{name}.attention_out"].copy_(product(saved.attended.transpose(1, 2), values))
        upper = product(values, parameters[f"{name}.attention_out"].transpose(1, 2))
        projected = _attend_backward(upper, saved, layout, back, architecture)
        values += _matrix(
            parameters, into, f"{name}.attention_norm", f"{name}.attention_in", saved.attention_in, projected
        )

    embedding = into["embedding"]
    if architecture.settings.tied:
        embedding.copy_(of_head.transpose(1, 2))
    else:
        embedding.zero_()
    for member in range(chunk):
        embedding[member].index_add_(0, layout.tokens[member], values[member])
    return gradient


def _unnormed(gradient: Tensor, saved: Normed) -> Tensor:
    """Return the gradient of an RMSNorm's input; overwrites the ``gradient`` of its output."""
    along = (gradient * saved.value).mean(-1, keepdim=True)
    return gradient.addcmul_(saved.value, along, value=-1).mul_(saved.factor)


def _matrix(
    parameters: Parameters, into: Parameters, norm: str, matrix: str, saved: Normed, gradient: Tensor
) -> Tensor:
    """Go back through a norm and the matrix behind it: write both gradients, return that of the norm's input."""
    weight, after = parameters[norm], parameters[matrix]
    of_folded = product(saved.value.transpose(1, 2), gradient)
    torch.sum(of_folded * after, -1, out=into[norm])
    torch.mul(of_folded, weight[..., None], out=into[matrix])
    return _unnormed(product(gradient, (weight[..., None] * after).transpose(1, 2)), saved)


def _attend_backward(
    upper: Tensor, saved: LayerTape, layout: Layout, back: Tensor, architecture: Architecture
) -> Tensor:
    """Return the gradient [C, N, projections D] of the projected, given that of the attended [C, N, heads D].

    ``back`` undoes the layout's rotation.
    """
    settings = architecture.settings
    _, size, width, _ = layout.shape
    heads, head_size = saved.heads, settings.head_size
    chunk, total, wide = upper.shape
    batch = len(heads.prompt_key)

    rows = upper.new_empty(chunk * total + 1, wide)
    rows[-1] = 0
    rows[:-1] = upper.view(-1, wide)
    outputs = rows.view(-1, head_size).index_select(0, layout.spread_out)
    cut = heads.prompt_query.numel() // head_size
    of_prompt, of_response = outputs[:cut].view(batch, -1, head_size), outputs[cut:]
    of_group, of_each = of_response.view(batch, -1, head_size), of_response.view(batch * size, -1, head_size)

    slots = upper.new_empty(len(layout.spread) + 1, head_size)
    slots[-1] = 0  # what rows without a place show
    into = _parts(slots[:-1], layout, architecture, chunk)
    over_prompt, over_own = _split(saved.response_attention, batch, width)
    by_prompt = saved.prompt_attention.view(batch, -1, width)

    torch.bmm(by_prompt.transpose(1, 2), of_prompt, out=into.prompt_value)
    into.prompt_value.baddbmm_(over_prompt.transpose(1, 2), of_group)
    torch.bmm(over_own.transpose(1, 2), of_each, out=into.response_value)

    scores = torch.bmm(of_prompt, heads.prompt_value.transpose(1, 2)).view_as(saved.prompt_attention)
    scores = _softmax_backward(scores, saved.prompt_attention).view(batch, -1, width)
    torch.bmm(scores, heads.prompt_key, out=into.prompt_query)
    torch.bmm(scores.transpose(1, 2), heads.prompt_query, out=into.prompt_key)

    scores = torch.empty_like(saved.response_attention)
    to_prompt, to_own = _split(scores, batch, width)
    to_prompt.copy_(torch.bmm(of_group, heads.prompt_value.transpose(1, 2)))
    to_own.copy_(torch.bmm(of_each, heads.response_value.transpose(1, 2)))
    scores = _softmax_backward(scores, saved.response_attention)
    to_prompt, to_own = _split(scores, batch, width)
    group_query = heads.response_query.view(batch, -1, head_size)
    torch.bmm(to_own, heads.response_key, out=into.response_query)
    into.response_query.view(batch, -1, head_size).baddbmm_(to_prompt, heads.prompt_key)
    into.prompt_key.baddbmm_(to_prompt.transpose(1, 2), group_query)
    torch.bmm(to_own.transpose(1, 2), heads.response_query, out=into.response_key)

    packed = slots.index_select(0, layout.collect).view(chunk * total, -1, head_size)
    rotate_(packed, back)
    return packed.view(chunk, total, -1)


def _softmax_backward(gradient: Tensor, probability: Tensor) -> Tensor:
    return torch._softmax_backward_data(gradient, probability, -1, torch.float32)
