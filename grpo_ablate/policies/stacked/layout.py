"""Where every token of a batch stands: packed for matrix products, padded for attention.

A prompt is computed once for all responses of its group, and nothing is computed for padding: the tokens that
are fed to the model are packed into N rows a member. Attention sees them in padded rectangles, of prompts
[B, P] and of responses [B, G, S]; index tensors lead from one form to the other. The last token of a
response is never fed, and its first is predicted by the last token of the prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.products import ROW_STEP


@dataclass(frozen=True)
class Layout:
    """Indices for C members; "slots" are rows of one head in the padded form, queries first."""

    tokens: Tensor  # int64 [C, N], what is fed, packed; the first Q rows predict response tokens
    queries: int  # Q
    turn: Tensor  # complex [C N, heads + kv heads, D/2], the rotation of each row
    spread: Tensor  # int64 [slots], the packed row and head of a slot; empty slots show a row of zeros
    spread_out: Tensor  # int64 [query slots], the same among the heads' outputs
    collect: Tensor  # int64 [C N (heads + 2 kv heads)], the slot of a packed row and head
    collect_out: Tensor  # int64 [C N heads], the query slot of a packed row and head
    shape: tuple[int, int, int, int]  # B, G, P, S
    prompt_mask: Tensor  # [P, P], 0 or -inf
    response_mask: Tensor  # [C, 1, B, 1, 1, S, P + S], 0 or -inf
    rows: Tensor  # int64 [C, B, G, S + 1], the row among C Q that predicts each response token
    scored: Tensor  # bool [C, B, G, S + 1]
    targets: Tensor  # int64 [C, B, G, S + 1], the response tokens; 0 where none is scored


@dataclass(frozen=True)
class Slots:
    """What depends on the shape of the padded form alone."""

    place: Tensor  # int64 [slots], the token of a slot: prompts [C, B, P], then responses [C, B, G, S]
    head: Tensor  # int64 [slots], among queries, keys and values
    queries: int  # slots of queries, which come first
    numbers: Tensor  # int64 [slots], 0, 1, ...
    causal_prompt: Tensor  # [P, P], 0 or -inf
    causal_response: Tensor  # [S, S], 0 or -inf


@lru_cache(maxsize=64)
def slots(
    chunk: int, groups: int, size: int, width: int, steps: int, heads: int, shared: int, device: torch.device
) -> Slots:
    """Return the slots of C = ``chunk`` members, B, G, P and S being the next four numbers.

    Their order is [C, kv heads, B, queries to each, P] and [C, kv heads, B, G, queries to each, S] for queries of
    prompts and responses, then the same without queries for keys and for values.
    """

    def numbers(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), device=device).view(shape)

    prompts = numbers(chunk, groups, width)[:, None, :, None, :]
    responses = numbers(chunk, groups, size, steps)[:, None, :, :, None, :] + chunk * groups * width
    query = numbers(shared, heads // shared)
    key = heads + numbers(shared)[:, None]
    places, chosen = [], []
    for head in (query, key, key + shared):
        for place, by_head in (
            (prompts, head[:, None, :, None]),
            (responses, head[:, None, None, :, None]),
        ):
            both = torch.broadcast_tensors(place, by_head)
            places.append(both[0].flatten())
            chosen.append(both[1].flatten())
    place = torch.cat(places)

    def causal(length: int) -> Tensor:
        step = numbers(length)
        return torch.where(step <= step[:, None], 0.0, -torch.inf)

    return Slots(
        place=place,
        head=torch.cat(chosen),
        queries=len(places[0]) + len(places[1]),
        numbers=numbers(len(place)),
        causal_prompt=causal(width),
        causal_response=causal(steps),
    )


def layout(
    prompts: Tensor,
    prompt_length: Tensor,
    tokens: Tensor,
    scored: Tensor,
    architecture: Architecture,
    turns: Tensor,
) -> Layout:
    """Return the layout of responses ``tokens`` int64 [C, B, G, T], ``scored`` bool, a prefix of each.

    ``prompts`` int64 [C, B, P] are padded on the right to ``prompt_length`` int64 [C, B], ``turns`` the rotations
    of every position. Groups without any scored token cost nothing beyond their place in the padded form.
    """
    device = tokens.device
    chunk, groups, size, _ = tokens.shape
    length = scored.sum(-1)
    steps = max(1, int(length.max()) - 1)
    # torch's softmax over fewer than 16 numbers is many times slower.
    width = max(16, int(prompt_length.max()))
    scored = scored[..., : steps + 1]
    targets = torch.where(scored, tokens[..., : steps + 1], 0)
    place, step = torch.arange(width, device=device), torch.arange(steps, device=device)

    used = length.amax(-1) > 0  # [C, B]
    last = place == prompt_length[..., None] - 1
    earlier = (place < prompt_length[..., None] - 1) & used[..., None]
    fed = step < (length - 1)[..., None]
    # Rows that predict come first: last tokens of prompts, then responses; then the rest of the prompts.
    predicting = torch.cat([used, fed.flatten(1)], 1)
    rank = predicting.cumsum(1) - 1
    behind = earlier.flatten(1).cumsum(1) - 1
    count = torch.stack([rank[:, -1], behind[:, -1]]).amax(1) + 1
    predicted, others = (int(number) for number in count.tolist())
    total = _stepped(predicted + others)
    nothing = chunk * total
    member = torch.arange(chunk, device=device)[:, None]
    row = torch.where(predicting, rank + member * total, nothing)
    row_behind = torch.where(earlier.flatten(1), behind + member * total + predicted, nothing).unflatten(
        1, earlier.shape[1:]
    )
    row_prompt = torch.where(last & used[..., None], row[:, :groups, None], row_behind)  # [C, B, P]
    row_response = row[:, groups:].unflatten(1, (groups, size, steps))  # [C, B, G, S]

    filled = torch.cat([row_prompt.flatten(), row_response.flatten()])
    shown = functional.pad(prompts, (0, max(0, width - prompts.shape[-1])))[..., :width]
    behind_prompt = prompt_length[..., None, None] + step
    packed = torch.zeros(2, nothing + 1, dtype=torch.int64, device=device)
    packed[0, filled] = torch.cat([shown.flatten(), targets[..., :steps].flatten()])
    packed[1, filled] = torch.cat(
        [place.expand_as(row_prompt).flatten(), behind_prompt.expand_as(row_response).flatten()]
    )
    ids, position = packed[:, :nothing]

    settings = architecture.settings
    heads, projections = settings.heads, architecture.projections
    cut = slots(chunk, groups, size, width, steps, heads, settings.kv_heads, device)
    rows = filled.index_select(0, cut.place)
    spread = rows * projections + cut.head
    spread_out = rows[: cut.queries] * heads + cut.head[: cut.queries]
    collect = torch.full(((nothing + 1) * projections,), len(spread), dtype=torch.int64, device=device)
    collect[spread] = cut.numbers
    collect = collect[: nothing * projections]
    collect_out = collect.view(nothing, projections)[:, :heads].clamp(max=len(spread_out)).flatten()

    hidden = torch.where(place < prompt_length[..., None], 0.0, -torch.inf)[:, None, :, None, None, None]
    shape = (chunk, 1, groups, 1, 1, steps)
    predicts = torch.cat([row[:, :groups, None, None].expand(-1, -1, size, -1), row_response], -1)
    predicts = predicts[..., : scored.shape[-1]]  # one less where no response may have two tokens
    queries = _stepped(predicted)  # some rows of prompts may be among them, whose logits nobody reads
    among = predicts - member[..., None, None] * (total - queries)
    return Layout(
        tokens=ids.view(chunk, total),
        queries=queries,
        turn=turns.index_select(0, position),
        spread=spread,
        spread_out=spread_out,
        collect=collect,
        collect_out=collect_out,
        shape=(groups, size, width, steps),
        prompt_mask=cut.causal_prompt,
        response_mask=torch.cat([hidden.expand(*shape, width), cut.causal_response.expand(*shape, steps)], -1),
        rows=torch.where(scored, among, 0),
        scored=scored,
        targets=targets,
    )


def _stepped(rows: int) -> int:
    """Round up to whole steps of rows, at least one."""
    return max(1, -(-rows // ROW_STEP)) * ROW_STEP
