"""Where every token of a batch stands: packed for matrix products, padded for attention.

A prompt is computed once for all responses of its group, and nothing is computed for padding: the tokens that
are fed to the model are packed into N rows a member. Attention sees them in padded rectangles, of prompts
[B, P] and of responses [B, G, S]; index tensors lead from one form to the other. The last token of a
response is never fed, and its first is predicted by the last token of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    collect: Tensor  # int64 [C N, heads + 2 kv heads], the slot of a packed row and head
    shape: tuple[int, int, int, int]  # B, G, P, S
    prompt_mask: Tensor  # [C, 1, B, 1, P, P], 0 or -inf
    response_mask: Tensor  # [C, 1, B, 1, 1, S, P + S], 0 or -inf
    rows: Tensor  # int64 [C, B, G, S + 1], the row among C Q that predicts each response token
    scored: Tensor  # bool [C, B, G, S + 1]
    targets: Tensor  # int64 [C, B, G, S + 1], the response tokens; 0 where none is scored


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
    settings = architecture.settings
    heads, shared = settings.heads, settings.kv_heads
    repeat, everything = heads // shared, architecture.projections
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

    packed = torch.zeros(nothing + 1, dtype=torch.int64, device=device)
    packed[row_prompt.flatten()] = functional.pad(prompts, (0, max(0, width - prompts.shape[-1])))[
        ..., :width
    ].flatten()
    packed[row_response.flatten()] = targets[..., :steps].flatten()
    position = torch.zeros(nothing + 1, dtype=torch.int64, device=device)
    position[row_prompt.flatten()] = place.expand(row_prompt.shape).flatten()
    position[row_response.flatten()] = (prompt_length[..., None, None] + step).expand(row_response.shape).flatten()

    query = torch.arange(heads, device=device).reshape(shared, repeat)
    key = heads + torch.arange(shared, device=device)
    prompt_rows = row_prompt[:, None]  # [C, 1, B, P]
    response_rows = row_response[:, None]  # [C, 1, B, G, S]
    prompt_heads, response_heads = query[:, None, :, None], query[:, None, None, :, None]
    prompt_query, response_query = prompt_rows[..., None, :], response_rows[..., None, :]

    def index(rows: Tensor, head: Tensor, stride: int) -> Tensor:
        return (rows * stride + head).flatten()

    key_prompt, key_response = key[:, None, None], key[:, None, None, None]
    spread = torch.cat(
        [
            index(prompt_query, prompt_heads, everything),
            index(response_query, response_heads, everything),
            index(prompt_rows, key_prompt, everything),
            index(response_rows, key_response, everything),
            index(prompt_rows, key_prompt + shared, everything),
            index(response_rows, key_response + shared, everything),
        ]
    )
    spread_out = torch.cat(
        [index(prompt_query, prompt_heads, heads), index(response_query, response_heads, heads)]
    )
    collect = torch.full(((nothing + 1) * everything,), len(spread), dtype=torch.int64, device=device)
    collect[spread] = torch.arange(len(spread), device=device)

    hidden = torch.where(place < prompt_length[..., None], 0.0, -torch.inf)[:, None, :, None, None, None]
    causal = torch.where(place <= place[:, None], 0.0, -torch.inf)
    own = torch.where(step <= step[:, None], 0.0, -torch.inf)
    shape = (chunk, 1, groups, 1, 1, steps)
    predicts = torch.cat([row[:, :groups, None, None].expand(-1, -1, size, -1), row_response], -1)
    predicts = predicts[..., : scored.shape[-1]]  # one less where no response may have two tokens
    queries = _stepped(predicted)  # some rows of prompts may be among them, whose logits nobody reads
    among = predicts - member[..., None, None] * (total - queries)
    return Layout(
        tokens=packed[:nothing].reshape(chunk, total),
        queries=queries,
        turn=turns.index_select(0, position[:nothing]),
        spread=spread,
        spread_out=spread_out,
        collect=collect[: nothing * everything].reshape(nothing, everything),
        shape=(groups, size, width, steps),
        prompt_mask=causal.expand(chunk, 1, groups, 1, width, width),
        response_mask=torch.cat([hidden.expand(*shape, width), own.expand(*shape, steps)], -1),
        rows=torch.where(scored, among, 0),
        scored=scored,
        targets=targets,
    )


def _stepped(rows: int) -> int:
    """Round up to whole steps of rows, at least one."""
    return max(1, -(-rows // ROW_STEP)) * ROW_STEP
