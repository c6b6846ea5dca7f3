"""Data-parallel training: several processes, started by torchrun, train one run together."""
