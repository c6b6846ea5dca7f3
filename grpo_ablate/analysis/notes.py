"""What every table of an experiment must say of how it was decided on: what its plan became after a look.

The plan of before results existed (`planned`) is set beside the experiment's file as it stands. Rows are told by
what they train: a row under another name is the same row, another spec under the same name is not. Light:
planning reads it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.planned import TERMS, Plan, has_results, history, plan_today
from grpo_ablate.spec.cells import experiment_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment

AFTER = "after a look at results"
DOUBT = f"seeds, rows and claims may have been chosen {AFTER}"
SKEW = timedelta(minutes=5)  # by which the clocks of machines may differ
NAMED = 6  # rows that a sentence names


Happened = tuple[tuple[str, str], ...]  # an id, and what became of it


@dataclass(frozen=True)
class Changes:
    """What was decided on results, or cannot be known not to be. Empty where all is as it was planned.

    ``claims`` and ``rows`` are ids with what happened to them: ``added``, ``changed`` or ``dropped``. A claim
    changes with its statement, test, metric or margin, and with the rows that it names.
    """

    unplanned: str = ""  # a sentence, where no plan is older than the results
    seeds: str = ""  # a sentence
    terms: tuple[str, ...] = ()  # sentences
    rows: Happened = ()
    claims: Happened = ()

    @property
    def sentences(self) -> list[str]:
        """One for each thing that a table must say."""
        return [
            *([self.unplanned] if self.unplanned else []),
            *([self.seeds] if self.seeds else []),
            *self.terms,
            *_rows_said(self.rows),
            *(f"The claim {name} was {what} {AFTER}." for name, what in self.claims),
        ]


AS_PLANNED = Changes()


def notes(experiment: Experiment, results: Path) -> list[str]:
    """Return a sentence for each thing that was decided on after a look at results."""
    return changes_after_a_look(experiment, results).sentences


def changes_after_a_look(experiment: Experiment, results: Path) -> Changes:
    """Return in what the experiment differs from its plan of before any result existed.

    Raises:
        UserError: the history of plans is damaged.
    """
    known = history(experiment.name, results)
    if not known:
        existing = has_results(experiment, results, ())
        return Changes(unplanned=f"No plan was recorded before these runs: {DOUBT}." if existing else "")
    now = plan_today(experiment, results, known)
    unplanned = _unplanned(known[0], experiment, results)
    looked = known[-1].looked if known[-1].decides_as(now) else now.looked
    if not looked:
        return Changes(unplanned=unplanned)
    planned = _before_a_look(known)
    rows = _rows(planned, now)
    return Changes(unplanned, _seeds(planned, now), _terms(planned, now), rows, _claims(planned, now))


def _before_a_look(known: Sequence[Plan]) -> Plan:
    """The last plan before the first look; the first one where there was a look before any was recorded."""
    first = next((index for index, entry in enumerate(known) if entry.looked), len(known))
    return known[max(0, first - 1)]


def _unplanned(first: Plan, experiment: Experiment, results: Path) -> str:
    """Say where the first plan is younger than runs, as it is when its history was lost or never written."""
    begun = list(_begun(experiment, results))
    older = sum(time < first.time - SKEW for time in begun)
    if older:
        said = f"when the training of {older} of {len(begun)} seed blocks had begun"
    elif first.looked:
        said = "when results existed"
    else:
        return ""
    return f"The plan was first recorded {said}: {DOUBT}."


def _begun(experiment: Experiment, results: Path) -> Iterator[datetime]:
    """When the training of each block began; a record that does not say it is left out: `verify` names it."""
    for cell in experiment_cells(experiment):
        try:
            found = json.loads((results / cell.folder / "provenance.json").read_bytes())
            sessions = [found, *found["interrupted"]]
            yield min(datetime.fromisoformat(session["started"]).astimezone() for session in sessions)
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _seeds(planned: Plan, now: Plan) -> str:
    more = now.seeds - planned.seeds
    if more > 0:
        return f"{more} of {now.seeds} seeds {'was' if more == 1 else 'were'} added {AFTER}."
    if more < 0:
        return f"{-more} of {planned.seeds} planned seeds {'was' if more == -1 else 'were'} dropped {AFTER}."
    return ""


def _terms(planned: Plan, now: Plan) -> tuple[str, ...]:
    def value(plan: Plan, name: str) -> Any:
        stated = plan.terms[name]
        return plan.rows.get(stated, stated) if name == "baseline" else stated

    return tuple(
        f"The {name} {'were' if name.endswith('s') else 'was'} changed from {_shown(planned.terms[name])} to "
        f"{_shown(now.terms[name])} {AFTER}."
        for name in TERMS
        if name in planned.terms and value(planned, name) != value(now, name)
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


def _rows(planned: Plan, now: Plan) -> Happened:
    if not planned.rows:
        return ()
    before, today = set(planned.rows.values()), set(now.rows.values())
    found = [
        (name, "changed" if name in planned.rows else "added")
        for name, digest in now.rows.items()
        if planned.rows.get(name, digest if digest in before else None) != digest
    ]
    gone = ((name, digest) for name, digest in planned.rows.items() if name not in now.rows)
    return (*found, *((name, "dropped") for name, digest in gone if digest not in today))


def _rows_said(rows: Happened) -> Iterator[str]:
    for what in ("added", "changed", "dropped"):
        names = [name for name, happened in rows if happened == what]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            listed = ", ".join(names[:NAMED]) + more
            yield f"{'Row' if len(names) == 1 else 'Rows'} {what} {AFTER}: {listed}."


def _claims(planned: Plan, now: Plan) -> Happened:
    before, today = _meant(planned, now), _meant(now, planned)
    found = [
        (name, "changed" if name in before else "added")
        for name, claim in today.items()
        if before.get(name) != claim
    ]
    return (*found, *((name, "dropped") for name in before if name not in today))


def _meant(plan: Plan, other: Plan) -> dict[str, dict[str, Any]]:
    """The claims of a plan with the hashes of the rows that they name, where both plans know those."""
    if not (plan.rows and other.rows):
        return plan.claims
    return {
        name: claim | {key: plan.rows.get(claim[key], claim[key]) for key in ("row", "than")}
        for name, claim in plan.claims.items()
    }
