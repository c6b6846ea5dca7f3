"""Text tasks from their sections of a spec, through the tokenizer of a policy; what they need is imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_ablate.spec.schema import AdditionTask, HuggingFacePolicy, JsonlTask, ReasoningGymTask

if TYPE_CHECKING:
    from grpo_ablate.tasks.text.protocol import TextTask
    from grpo_ablate.tasks.text.tokenized import Tokenized


def addition(settings: AdditionTask, policy: HuggingFacePolicy) -> Tokenized:
    """Sums of two numbers."""
    from grpo_ablate.tasks.text.addition import Addition

    return _tokenized(Addition(settings), policy)


def reasoning_gym(settings: ReasoningGymTask, policy: HuggingFacePolicy) -> Tokenized:
    """A data set of reasoning-gym."""
    from grpo_ablate.tasks.text.reasoning_gym import ReasoningGym

    return _tokenized(ReasoningGym(settings), policy)


def jsonl(settings: JsonlTask, policy: HuggingFacePolicy) -> Tokenized:
    """Questions and answers out of a file."""
    from grpo_ablate.tasks.text.jsonl import Jsonl

    return _tokenized(Jsonl(settings), policy)


def _tokenized(task: TextTask, policy: HuggingFacePolicy) -> Tokenized:
    from grpo_ablate.policies.huggingface.loading import end_tokens, load_tokenizer
    from grpo_ablate.tasks.text.tokenized import Tokenized

    tokenizer = load_tokenizer(policy)
    return Tokenized(task, tokenizer, end_tokens(policy, tokenizer))
