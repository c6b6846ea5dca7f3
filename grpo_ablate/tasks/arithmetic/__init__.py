"""A chain of additions and subtractions with labelled steps: prompts, demonstrations, and a grader."""

from grpo_ablate.tasks.arithmetic.task import Arithmetic

__all__ = ["Arithmetic"]
