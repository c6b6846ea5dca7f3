"""Which margin a claim is judged against: its own, or the file's where that is of the claim's metric. Light."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_ablate.spec.files import Claim
    from grpo_ablate.spec.resolve import Experiment


def margin_of(experiment: Experiment, claim: Claim) -> float | None:
    """Return the margin of a claim, None where it has none.

    The file's margin is a difference of the experiment's metric: it says nothing of another metric, of a ratio,
    or of how far exact histories may differ.
    """
    test = claim.test
    if test.margin is not None:
        return test.margin
    own = test.metric in (None, experiment.metric) and test.kind not in ("ratio", "exact")
    return experiment.margin if own else None
