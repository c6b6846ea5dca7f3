"""Sentence chrF and exactness of translations, each different response to a prompt scored once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sacrebleu.metrics import CHRF
from torch import Tensor

from grpo_ablate.tasks.translation.words import END, VOCABULARY, as_text

NO_TOKEN = np.iinfo(np.int16).max
METRIC = CHRF()


@dataclass(frozen=True)
class Grades:
    """What each response earns; all of the shape [M, B, G]."""

    chrf: Tensor  # float64, in [0, 1]
    exact: Tensor  # float64, 1 for the reference itself, ended by the end token
    answers: Tensor  # int64, equal where two responses are equal


def grade(references: list[str], prompts: Tensor, tokens: Tensor, token: Tensor) -> Grades:
    """Grade responses ``tokens`` int64 [M, B, G, T] to ``prompts`` int64 [M, B], numbers of ``references``.

    chrF is sacreBLEU's (Popović 2015) in its default setting: character n-grams up to 6, spaces apart, beta 2.
    """
    responses = torch.where(token, tokens, NO_TOKEN).to(torch.int16).cpu().numpy()
    *shape, width = responses.shape
    asked = prompts.cpu().numpy()[:, :, None].repeat(shape[2], 2).reshape(-1, 1)
    rows = np.concatenate([asked.astype(np.int32).view(np.int16), responses.reshape(-1, width)], 1)
    _, first, answers = np.unique(_as_bytes(rows), return_index=True, return_inverse=True)
    chrf, exact = np.empty(len(first)), np.empty(len(first))
    for place, row in enumerate(first.tolist()):
        found = responses.reshape(-1, width)[row]
        words = found[found != NO_TOKEN].tolist()
        ended = bool(words) and words[-1] == END
        text = as_text([VOCABULARY[word] for word in (words[:-1] if ended else words)])
        reference = references[asked[row, 0]]
        chrf[place] = METRIC.sentence_score(text, [reference]).score / 100
        exact[place] = ended and text == reference
    device = tokens.device
    each = answers.reshape(shape)
    return Grades(
        torch.from_numpy(chrf[each]).to(device),
        torch.from_numpy(exact[each]).to(device),
        torch.from_numpy(each.astype(np.int64)).to(device),
    )


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    """Return each row of a matrix as one value, so that equal rows are equal values."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
