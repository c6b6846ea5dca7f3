"""A task in words as the training loop and a language model see it: tokens by the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.tasks.protocol import Scores
from grpo_ablate.tasks.text.protocol import Fault, Message, Prompt, TextTask

NO_ANSWER = -1


def with_template(tokenizer: Any, messages: list[Message], key: str, **settings: Any) -> list[int]:
    """Return the tokens of chat messages. Raises UserError that names ``key`` where the template refuses them."""
    from jinja2.exceptions import TemplateError

    try:
        return list(tokenizer.apply_chat_template(messages, return_dict=False, **settings))
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise UserError(f"the chat template of {key} refuses messages of the roles {roles}: {error}.") from None


class Tokenized:
    """The prompts of a text task as tokens, and scores of responses that are decoded.

    ``tokenizer`` is one of transformers; ``ends`` are the tokens that end a response, which the model may have
    several of (default: that of the tokenizer). A response goes up to the first of the task's stop texts; an end
    token is no part of it. ``faults`` collects the responses on which the verifier gave no verdict.
    """

    def __init__(self, text: TextTask, tokenizer: Any, ends: tuple[int, ...] | None = None):
        self.text, self.tokenizer = text, tokenizer
        self.prompt_count, self.held_out_count = text.prompt_count, text.held_out_count
        self.stop = text.stop
        own = tokenizer.eos_token_id
        self.ends = ends if ends is not None else () if own is None else (int(own),)
        self.end = int(own) if own is not None else self.ends[0] if self.ends else None
        self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end or 0)
        self.groups = {name: torch.tensor(members) for name, members in text.groups.items()}
        self.faults: list[Fault] = []
        self._encoded: dict[int, list[int]] = {}

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of each token id."""
        return tuple(self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))]))

    def encoded(self, number: int) -> list[int]:
        """Return the tokens of one prompt. Raises UserError for chat messages without a chat template."""
        if number not in self._encoded:
            self._encoded[number] = self._encode(self.text.prompt(number))
        return self._encoded[number]

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        if not self.tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of policy.model has no chat template, which the task {self.text.name} needs in "
                "task.form chat: choose another form, or a model that was trained on chats."
            )
        return with_template(self.tokenizer, prompt, "policy.model", add_generation_prompt=True)

    def prompt_tokens(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens int64 [..., P] of ``prompts`` int64 [...], padded on the right, and lengths [...]."""
        rows = [self.encoded(number) for number in prompts.flatten().tolist()]
        width = max(map(len, rows), default=0)
        tokens = torch.tensor([row + [self.pad] * (width - len(row)) for row in rows], dtype=torch.int64)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        shape, device = prompts.shape, prompts.device
        return tokens.view(*shape, width).to(device), lengths.view(shape).to(device)

    def responses(self, tokens: Tensor, token: Tensor) -> list[str]:
        """Return the texts of responses ``tokens`` int64 [..., T], scored where ``token``, as one list."""
        rows = tokens.flatten(0, -2).tolist()
        kept = token.flatten(0, -2).tolist()
        return [
            self.decoded([number for number, is_scored in zip(row, scored, strict=True) if is_scored])
            for row, scored in zip(rows, kept, strict=True)
        ]

    def decoded(self, tokens: list[int]) -> str:
        """Return the text of a response up to the first stop text, without its end token."""
        if tokens and tokens[-1] in self.ends:
            tokens = tokens[:-1]
        said = str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
        return said[: min((place for text in self.stop if (place := said.find(text)) >= 0), default=len(said))]

    def drawn(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> tuple[list[int], list[int], list[str]]:
        """Return the places [N] of the responses that were drawn, their prompts and their texts.

        A slot that the policy left alone, as dynamic sampling wants it, has no token: every response has one.
        """
        rows, scored = tokens.flatten(0, -2), token.flatten(0, -2)
        places = [place for place, any_token in enumerate(scored.any(-1).tolist()) if any_token]
        numbers = prompts[..., None].expand(tokens.shape[:-1]).flatten().tolist()
        return places, [numbers[place] for place in places], self.responses(rows[places], scored[places])

    def score(self, prompts: Tensor, tokens: Tensor, token: Tensor) -> Scores:
        """Judge responses [M, B, G, T] to ``prompts`` [M, B]; NaN where there is none, or no verdict on it."""
        places, numbers, responses = self.drawn(prompts, tokens, token)
        judged = self.text.judge(numbers, responses)
        self.faults += judged.faults
        known: dict[str, int] = {}
        answers = [
            NO_ANSWER if answer is None else known.setdefault(answer, len(known)) for answer in judged.answers
        ]

        def placed(values: Sequence[float], missing: float, dtype: torch.dtype) -> Tensor:
            found = torch.full(tokens.shape[:-1], missing, dtype=dtype)
            found.view(-1)[places] = torch.tensor(values, dtype=dtype)
            return found.to(tokens.device)

        components = {n: placed(values, torch.nan, torch.float64) for n, values in judged.components.items()}
        reward = placed(judged.reward, torch.nan, torch.float64)
        return Scores(reward, components, answers=placed(answers, NO_ANSWER, torch.int64))

    def take_faults(self) -> list[Fault]:
        """Return the faults since the last call."""
        found, self.faults = self.faults, []
        return found

    def exhibit(self, prompt: int, tokens: list[int]) -> dict[str, Any]:
        """Return the prompt, what the task says of it, and the response, in words."""
        return {
            "prompt": self.prompt_text(prompt),
            **self.text.exhibit(prompt),
            "response": self.decoded(tokens),
        }

    def prompt_text(self, number: int) -> str:
        """Return a prompt as one text; each message of a chat after its role."""
        prompt = self.text.prompt(number)
        if isinstance(prompt, str):
            return prompt
        return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
