"""A sequence-classification model as the scorer of responses, kept as it is or refreshed on the task's verdicts.

The score is a logit: that of a model with one label, as reward models are trained, or of the last label against
the others. A *refresh* trains the model further, every so many rounds, to tell right responses from wrong ones: on
the responses since the last refresh and a share of earlier ones (Shao et al. 2024, DeepSeekMath, section 4.1.4,
which replays a tenth). Between refreshes the scorer is frozen.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface.loading import (
    DTYPES,
    TOKENIZER_FILES,
    context_length,
    device_of,
    without_dropout,
)
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.spec.model_files import fingerprint
from grpo_ablate.spec.paths import named_path
from grpo_ablate.spec.schema import HuggingFacePolicy, Reward, Spec
from grpo_ablate.tasks.protocol import Scores
from grpo_ablate.tasks.text.protocol import Fault, Prompt
from grpo_ablate.tasks.text.tokenized import Tokenized, with_template

COMPONENT = "model"
TOKENS = 16384  # of one forward pass, filling included; one response at least
BATCH = 32  # responses of one step of a refresh
EARLIER = 3  # of them that were drawn before the last refresh, where there are such: about one in ten
HISTORY = 8192  # earlier responses that are kept
LARGEST_NORM = 1.0  # of a refresh's gradients


class Example(NamedTuple):
    """A response that the task has judged."""

    number: int  # of the prompt
    response: str
    right: float


class RewardModel:
    """The model of a reward section on one device, and its tokenizer."""

    def __init__(self, settings: Reward, device: torch.device):
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self.settings, self.device = settings, device
        folder = named_path(settings.model)
        if settings.model_digest not in ("", fingerprint(folder)):
            raise UserError(f"reward.model: the files in {folder} have changed since the row was resolved.")
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise UserError(
                f"reward.model: {folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); save the "
                "model's tokenizer there."
            )
        try:
            config = without_dropout(AutoConfig.from_pretrained(folder, trust_remote_code=False))
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder,
                config=config,
                dtype=DTYPES[settings.model_dtype],
                output_loading_info=True,
                trust_remote_code=False,
            )
        except Exception as error:  # transformers and tokenizers raise what they please
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"reward.model: no sequence-classification model can be loaded from {folder}: {said[:300]}"
            ) from None
        self.model, told = loaded
        if told["missing_keys"]:  # transformers draws them at random
            raise UserError(
                f"reward.model: the weights in {folder} lack {sorted(told['missing_keys'])[0]}: it is no "
                "sequence-classification model."
            )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.tokenizer.pad_token_id is None:
            raise UserError(f"reward.model: the tokenizer in {folder} has neither a pad token nor an end token.")
        self.tokenizer.padding_side = "right"
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model.to(device).eval()
        self.longest = context_length(self.model.config)

    def encoded(self, prompt: Prompt, response: str) -> list[int]:
        """Return the tokens of a prompt and its response: by the chat template if there is one, else as a text."""
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt + response)["input_ids"])
        messages = [*prompt, {"role": "assistant", "content": response}]
        if self.tokenizer.chat_template:
            return with_template(self.tokenizer, messages, "reward.model")
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return list(self.tokenizer(text)["input_ids"])

    def scores(self, rows: list[list[int]]) -> Tensor:
        """Return the score of each row of tokens, float64 [N], with gradient where that is on."""
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]]) <= TOKENS:
                end += 1
            batch = order[start:end]
            for row, score in zip(batch, self._forward([rows[row] for row in batch]), strict=True):
                found[row] = score
            start = end
        return torch.stack(found)

    def _forward(self, rows: list[list[int]]) -> Tensor:
        filled = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.device)
        logits = self.model(input_ids=filled["input_ids"], attention_mask=filled["attention_mask"]).logits.double()
        if logits.shape[-1] == 1:
            return logits[:, 0]
        return logits[:, -1] - logits[:, :-1].logsumexp(-1)

    def refresh(self, rows: list[list[int]], right: Tensor, batches: Tensor) -> None:
        """Take a step of AdamW on the cross-entropy for each of ``batches`` int64 [steps, n], places in ``rows``.

        ``right`` float64 [N]: the probability of being right that the model is to give a response.
        """
        rate = self.settings.refresh_learning_rate
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.0)
        for batch in batches.tolist():
            scores = self.scores([rows[place] for place in batch])
            targets = right[batch].to(scores.device)
            functional.binary_cross_entropy_with_logits(scores, targets).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_NORM)
            optimizer.step()
            optimizer.zero_grad()


class ModelScored(Tokenized):
    """A text task whose reward is a reward model's score; the task's own verdicts stay as components.

    Only responses to training prompts are kept for refreshes.
    """

    def __init__(self, task: Tokenized, spec: Spec, keys: Keys):
        super().__init__(task.text, task.tokenizer, task.ends)
        assert isinstance(spec.policy, HuggingFacePolicy)
        self.settings, self.keys = spec.reward, keys
        self.model = RewardModel(spec.reward, device_of(spec.policy))
        self.fresh: list[Example] = []
        self.past: list[Example] = []

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Judge responses as the task does, and let the model score them; NaN where it cannot."""
        judged = super().score(prompts, tokens, token)
        places, numbers, responses = self.drawn(prompts, tokens, token)
        if self.settings.refresh_model:
            right = judged.components["accuracy"].flatten()[places].tolist()
            told = (Example(*three) for three in zip(numbers, responses, right, strict=True))
            self.fresh += [one for one in told if one.number < self.prompt_count and one.right == one.right]
        score = torch.full_like(judged.reward, torch.nan)
        score.view(-1)[places] = self._scored(numbers, responses).to(score)
        return replace(judged, reward=score, components={**judged.components, COMPONENT: score})

    @torch.no_grad()
    def _scored(self, numbers: list[int], responses: list[str]) -> Tensor:
        rows = [self._row(number, response) for number, response in zip(numbers, responses, strict=True)]
        longest = self.model.longest
        readable = [place for place, row in enumerate(rows) if longest is None or len(row) <= longest]
        found = torch.full((len(rows),), torch.nan, dtype=torch.float64)
        if readable:
            found[readable] = self.model.scores([rows[place] for place in readable]).cpu()
        found[~found.isfinite()] = torch.nan
        for place in found.isnan().nonzero()[:, 0].tolist():
            too_long = longest is not None and len(rows[place]) > longest
            reason = f"is longer than the {longest} tokens it reads" if too_long else "its score is not finite"
            self.faults.append(Fault(numbers[place], responses[place], f"the reward model: {reason}"))
        return found

    def _row(self, number: int, response: str) -> list[int]:
        return self.model.encoded(self.text.prompt(number), response)

    def refresh(self, round: int) -> None:
        """Train the model on the responses since the last refresh, one in ten drawn from earlier ones."""
        longest = self.model.longest
        fresh, past = (
            [(self._row(one.number, one.response), one.right) for one in some] for some in (self.fresh, self.past)
        )
        fresh, past = (
            [pair for pair in some if longest is None or len(pair[0]) <= longest] for some in (fresh, past)
        )
        if fresh:
            rows = [row for row, _ in (*fresh, *past)]
            right = torch.tensor([value for _, value in (*fresh, *past)], dtype=torch.float64)
            self.model.refresh(rows, right, self._batches(round, len(fresh), len(past)))
        self.past = (self.past + self.fresh)[-HISTORY:]
        self.fresh = []

    def _batches(self, round: int, fresh: int, past: int) -> Tensor:
        """Return keyed places int64 [steps, n]: the first ``fresh`` are new, the ``past`` after them earlier."""
        uniform = self.keys.uniform(
            Purpose.REWARD_MODEL,
            round=round,
            sample=torch.arange(self.settings.refresh_steps)[:, None],
            token=torch.arange(BATCH),
            dimensions=3,
        )[0]
        earlier = torch.arange(BATCH) < (EARLIER if past else 0)
        return torch.where(earlier, fresh + (uniform * past).long(), (uniform * fresh).long())

    def state(self) -> dict[str, Tensor]:
        """Return what refreshes change: the weights, and the responses that are kept."""
        if not self.settings.refresh_model:
            return {}
        kept = json.dumps([self.fresh, self.past]).encode()
        weights = {f"model.{name}": value.detach().cpu() for name, value in self.model.model.state_dict().items()}
        return {"kept": torch.frombuffer(bytearray(kept), dtype=torch.uint8), **weights}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        if not state:
            return
        fresh, past = json.loads(state["kept"].numpy().tobytes())
        self.fresh, self.past = ([Example(*one) for one in some] for some in (fresh, past))
        weights = {name.removeprefix("model."): value for name, value in state.items() if name != "kept"}
        self.model.model.load_state_dict(weights)
