"""Group-relative policy optimisation written by hand around transformers' ``generate``.

What a competent user would write for one model in plain PyTorch (Shao et al. 2024, DeepSeekMath, algorithm 1).
It shares with this project the task and the order of the prompts, and none of the algorithm: it is here to be
compared with, in speed and, as a test, in its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_ablate.spec.schema import Advantage, Spec, Update
from grpo_ablate.tasks.protocol import LanguageTask

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class Rollouts:
    """N = B G responses, the G of a prompt side by side; prompts of P tokens, responses of up to T."""

    tokens: Tensor  # int64 [N, P + T], padded on the left of the prompt and on the right of the response
    attention: Tensor  # int64 [N, P + T], 1 where there is a token
    scored: Tensor  # bool [N, T], the response's tokens up to its end token
    advantages: Tensor  # float32 [N]
    old_logprobs: Tensor  # float32 [N, T]


def left_padded(tokens: Tensor, lengths: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Move prompts int64 [B, P] padded on the right to the right edge; return them and their attention mask.

    >>> left_padded(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1]), 0)
    (tensor([[5, 6, 7],
            [0, 0, 8]]), tensor([[1, 1, 1],
            [0, 0, 1]]))
    """
    width = int(lengths.max())
    place = torch.arange(width) - (width - lengths[:, None])
    attention = place >= 0
    moved = tokens.gather(1, place.clamp(min=0))
    return moved.where(attention, pad), attention.long()


def until_end(responses: Tensor, end: int) -> Tensor:
    """Return which tokens of responses int64 [N, T] come before or are the first end token, bool [N, T].

    >>> until_end(torch.tensor([[4, 1, 1], [4, 5, 6]]), 1)
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    ended = (responses == end).long()
    return ended.cumsum(1) - ended == 0


def group_advantages(rewards: Tensor, advantage: Advantage) -> Tensor:
    """Return (r - mean) / (std + eps) within each group of rewards [B, G], 0 in a constant group.

    >>> group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), Advantage())
    tensor([[ 1., -1.],
            [ 0.,  0.]])
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    if advantage.scale == "group-std":
        spread = rewards.std(1, keepdim=True, correction=advantage.ddof) + advantage.eps
        centred = centred / spread
    constant = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return centred.where(~constant, 0.0)


def response_logprobs(model: Any, tokens: Tensor, attention: Tensor, length: int, temperature: float) -> Tensor:
    """Return the log-probabilities float32 [N, length] of the last ``length`` of ``tokens`` int64 [N, P + T]."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=tokens,
        attention_mask=attention,
        position_ids=positions,
        logits_to_keep=length + 1,
        use_cache=False,
    ).logits[:, :-1]
    if temperature != 1:
        logits = logits / temperature
    return logits.log_softmax(-1).gather(2, tokens[:, -length:, None])[..., 0]


def reduced(values: Tensor, scored: Tensor, update: Update, max_tokens: int) -> Tensor:
    """Reduce values [N, T] over the scored tokens: the mean of sequence means, of tokens, or over L_max."""
    values = values.where(scored, 0.0)
    if update.reduction == "sequence-mean":
        return (values.sum(1) / scored.sum(1)).mean()
    if update.reduction == "token-mean":
        return values.sum() / scored.sum()
    return values.sum() / (len(values) * (max_tokens if update.constant == "max-tokens" else update.constant))


class HandWritten:
    """One model, its optimiser, and the two halves of a round."""

    def __init__(self, model: LlamaForCausalLM, task: LanguageTask, spec: Spec, device: str = "cpu"):
        from transformers import GenerationConfig

        self.model: Any = model.train()  # typed, transformers 5 refuses its own methods
        self.model.to(device)
        self.task, self.spec = task, spec
        settings, sampling = spec.optimizer, spec.sampling
        if settings.name == "adamw":
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                model.parameters(),
                settings.learning_rate,
                (settings.betas[0], settings.betas[1]),
                weight_decay=settings.weight_decay,
                fused=True,
            )
        else:
            self.optimizer = torch.optim.SGD(
                model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
            )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / max(1, settings.warmup))
        )
        self.generation = GenerationConfig(
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=sampling.max_tokens,
            pad_token_id=task.pad,
            eos_token_id=task.end,
            use_cache=True,
        )

    @torch.no_grad()
    def sample(self, prompts: Tensor) -> Rollouts:
        """Draw and score G responses to each of ``prompts`` int64 [B], numbers of the task's prompts."""
        group = self.spec.sampling.group_size
        tokens, attention = left_padded(*self.task.prompt_tokens(prompts), self.task.pad)
        tokens, attention = (
            each.repeat_interleave(group, 0).to(self.model.device) for each in (tokens, attention)
        )
        whole = self.model.generate(tokens, attention_mask=attention, generation_config=self.generation)
        assert isinstance(whole, Tensor)
        return self.rollouts(prompts, whole, attention)

    @torch.no_grad()
    def rollouts(self, prompts: Tensor, tokens: Tensor, prompt_attention: Tensor) -> Rollouts:
        """Score responses that were drawn: ``tokens`` int64 [N, P + T] begin with the padded prompts [N, P]."""
        group, width = self.spec.sampling.group_size, prompt_attention.shape[1]
        responses = tokens[:, width:]
        scored = until_end(responses, self.task.end)
        shape = (1, len(prompts), group, responses.shape[1])
        scores = self.task.score(prompts[None], responses.cpu().view(shape), scored.cpu().view(shape))
        advantages = group_advantages(scores.reward[0].float(), self.spec.advantage).flatten().to(tokens.device)
        attention = torch.cat([prompt_attention, scored.long()], 1)
        old = response_logprobs(self.model, tokens, attention, responses.shape[1], self.spec.sampling.temperature)
        return Rollouts(tokens, attention, scored, advantages, old)

    def train(self, drawn: Rollouts, orders: Sequence[Tensor] | None = None) -> None:
        """Take the inner steps: passes over the groups in random order, each in ``minibatches`` parts.

        ``orders`` gives the groups int64 [minibatches, n] of each pass in place of random ones.
        """
        sampling, update = self.spec.sampling, self.spec.update
        for inner_pass in range(update.inner_passes):
            dealt = (
                orders[inner_pass]
                if orders is not None
                else torch.randperm(sampling.prompts).view(update.minibatches, -1)
            )
            for groups in dealt:
                rows = (groups[:, None] * sampling.group_size + torch.arange(sampling.group_size)).flatten()
                self.step(drawn, rows.to(drawn.tokens.device))

    def step(self, drawn: Rollouts, rows: Tensor) -> None:
        """Take one optimiser step on those responses, int64 [n], cut to the longest of them."""
        sampling, update = self.spec.sampling, self.spec.update
        scored = drawn.scored[rows]
        length, width = int(scored.sum(1).max()), drawn.tokens.shape[1] - scored.shape[1]
        scored = scored[:, :length]
        tokens, attention = drawn.tokens[rows, : width + length], drawn.attention[rows, : width + length]
        current = response_logprobs(self.model, tokens, attention, length, sampling.temperature)
        ratio = (current - drawn.old_logprobs[rows, :length]).exp()
        low = 0.0 if update.clip_low == "off" else 1 - update.clip_low
        high = math.inf if update.clip_high == "off" else 1 + update.clip_high
        advantages = drawn.advantages[rows, None]
        gain = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        loss = -reduced(gain, scored, update, sampling.max_tokens)
        self.optimizer.zero_grad()
        loss.backward()
        if self.spec.optimizer.max_grad_norm != "off":
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.optimizer.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
