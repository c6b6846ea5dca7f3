"""What this machine can run, what is missing for the rest, and how to get it."""

from __future__ import annotations

from pathlib import Path


def run(results: Path, json: bool) -> str:
    """Return what `grpo-ablate doctor` prints: a line per capability, and how to get what is missing."""
    from grpo_ablate.doctor.diagnosis import as_json, as_text, diagnose
    from grpo_ablate.doctor.machine import probe

    machine = probe(results)
    return as_json(machine, diagnose(machine)) if json else as_text(diagnose(machine))
