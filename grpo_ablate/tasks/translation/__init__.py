"""Sentences of a small English grammar into French or Spanish: prompts, demonstrations, and a grader."""

from grpo_ablate.tasks.translation.task import Translation

__all__ = ["Translation"]
