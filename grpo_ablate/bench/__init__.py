"""``grpo-ablate bench``: how fast training is on this machine, beside other trainers on the same work."""
