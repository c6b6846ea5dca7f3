"""``python -m grpo_ablate`` is the same as the ``grpo-ablate`` command."""

from grpo_ablate.cli import main

main()
