"""What every table of an experiment must say of how it was decided on. Light: planning reads it too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ablate.analysis.planned import claims_changed_after_a_look, seeds_added_after_a_look

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment


def notes(experiment: Experiment, results: Path) -> list[str]:
    """Return a sentence for the seeds, and for each claim, that were decided on after a look at results."""
    seeds = seeds_added_after_a_look(experiment, results)
    changed = claims_changed_after_a_look(experiment, results)
    return [
        *([seeds] if seeds else []),
        *(f"The claim {name} was {what} after a look at results." for name, what in changed.items()),
    ]
