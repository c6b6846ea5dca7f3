"""What a row does to one batch of responses: advantages, weights, ratios, clips, KL and gradient, by token."""

from grpo_ablate.explain.explanation import Explanation, explain, run
from grpo_ablate.explain.text import format_text

__all__ = ["Explanation", "explain", "format_text", "run"]
