"""Ablations of GRPO's switches: which of them matter, by how much, and how would we know."""

__version__ = "0.1.0"
