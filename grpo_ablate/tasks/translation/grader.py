"""Sentence chrF and exactness of translations, each different response to a prompt scored once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_ablate.tasks.translation.chrf import sentence_chrf
from grpo_ablate.tasks.translation.words import END, VOCABULARY, as_text

NO_TOKEN = np.iinfo(np.int16).max


@dataclass(frozen=True)
class Grades:
    """What each response earns; all of the shape [M, B, G]."""

    chrf: Tensor  # float64, in [0, 1]
    exact: Tensor  # float64, 1 for the reference itself, ended by the end token
    answers: Tensor  # int64, equal where two responses are equal


def grade(references: list[str], prompts: Tensor, tokens: Tensor, token: Tensor) -> Grades:
    """Grade responses ``tokens`` int64 [M, B, G, T] to ``prompts`` int64 [M, B], numbers of ``references``."""
    responses = torch.where(token, tokens, NO_TOKEN).to(torch.int16).cpu().numpy()
    *shape, width = responses.shape
    asked = prompts.cpu().numpy()[:, :, None].repeat(shape[2], 2).reshape(-1, 1)
    rows = np.concatenate([asked.astype(np.int32).view(np.int16), responses.reshape(-1, width)], 1)
    _, first, answers = np.unique(_as_bytes(rows), return_index=True, return_inverse=True)
    texts, ended = _read(responses.reshape(-1, width)[first])
    wanted = [references[number] for number in asked[first, 0].tolist()]
    chrf = sentence_chrf(texts, wanted)
    exact = np.array(
        [done and text == reference for done, text, reference in zip(ended, texts, wanted, strict=True)]
    )
    device = tokens.device
    each = answers.reshape(shape)
    return Grades(
        torch.from_numpy(chrf[each]).to(device),
        torch.from_numpy(exact[each].astype(np.float64)).to(device),
        torch.from_numpy(each.astype(np.int64)).to(device),
    )


def _read(responses: NDArray[np.int16]) -> tuple[list[str], list[bool]]:
    """Return the texts of responses [N, T] without the end token, and whether the end token came."""
    texts, ended = [], []
    for row, length in zip(responses.tolist(), (responses != NO_TOKEN).sum(1).tolist(), strict=True):
        done = length > 0 and row[length - 1] == END
        texts.append(as_text([VOCABULARY[word] for word in row[: length - done]]))
        ended.append(done)
    return texts, ended


def _as_bytes(rows: NDArray[np.int16]) -> NDArray[np.void]:
    """Return each row of a matrix as one value, so that equal rows are equal values."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
