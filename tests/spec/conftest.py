"""A small experiment on a small testbed, written to files that a test may change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

TESTBED: dict[str, Any] = {
    "description": "two prompts of two candidates",
    "seeds_per_job": 4,
    "task": {
        "prompts": [
            {
                "source": f"sentence {i}",
                "target": "French",
                "candidates": [{"text": "wrong", "quality": 0}, {"text": "right", "quality": 1}],
            }
            for i in range(2)
        ]
    },
    "sampling": {"prompts": 2, "group_size": 4, "prompt_order": "each-once"},
    "budget": {"rollouts": 80},
}
EXPERIMENT: dict[str, Any] = {
    "question": "Does it matter?",
    "testbed": "small",
    "baseline": "base",
    "seeds": 8,
    "rows": {"base": {}, "mean-only": {"advantage": {"scale": "none"}}},
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes experiment and testbed and returns the experiment's path."""

    def _write(experiment: dict[str, Any] | None = None, testbed: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / "experiments"
        (folder / "testbeds").mkdir(parents=True, exist_ok=True)
        (folder / "testbeds" / "small.yaml").write_text(yaml.safe_dump({**TESTBED, **(testbed or {})}))
        path = folder / "case.yaml"
        path.write_text(yaml.safe_dump({**EXPERIMENT, **(experiment or {})}, sort_keys=False))
        return path

    return _write
