"""From the tidy table to what is known of an experiment: see `comparison` for the records."""

from __future__ import annotations

from grpo_ablate.analysis.comparison import Comparison, as_json, read_comparison

__all__ = ["Comparison", "as_json", "read_comparison"]
