"""Runs: training a block of seeds, its record on disk, resume, provenance, MLflow."""
