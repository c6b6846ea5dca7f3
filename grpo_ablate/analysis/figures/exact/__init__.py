"""Figures of exact experiments: a module per kind, each drawn from the experiment's table alone."""
