"""What was planned before anything was seen: seeds and claims of every experiment, as a history on disk.

``results/planned/<experiment>.json`` is a list of entries, one per change of the plan, the oldest first; none is
ever altered. An executing workflow writes it before it trains, and so does ``grpo-ablate train``. An entry that
was made when runs or tables of the experiment existed is marked as made after a look. So tables and archives can
say which seeds and claims were decided on results. Light: nothing here reads a run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record
from grpo_ablate.spec.cells import row_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment


@dataclass(frozen=True)
class Plan:
    """One state of an experiment's plan. ``claims`` maps an id to all that its verdict depends on."""

    seeds: int
    claims: dict[str, dict[str, Any]]
    recorded: str  # time, ISO 8601
    looked: bool  # runs or tables of the experiment existed

    def decides_as(self, other: Plan) -> bool:
        """Whether both plan the same seeds and claims."""
        return (self.seeds, self.claims) == (other.seeds, other.claims)


def path_of(results: Path, name: str) -> Path:
    """Return where the history of an experiment lies."""
    return results / "planned" / f"{name}.json"


def record_plan(experiment: Experiment, results: Path) -> bool:
    """Append today's plan to the history unless it ends with the same; return whether it was appended.

    Raises:
        UserError: the history is damaged or cannot be written.
    """
    known = history(experiment.name, results)
    now = _today(experiment, results)
    if known and known[-1].decides_as(now):
        return False
    _write([*known, now], path_of(results, experiment.name))
    return True


def merge_history(name: str, other: Path, results: Path) -> None:
    """Add the entries of another machine's history to this one's, by the time when they were recorded.

    Raises:
        UserError: a history is damaged or cannot be written.
    """
    own = history(name, results)
    both = own + [entry for entry in history(name, other) if entry not in own]
    if len(both) > len(own):
        _write(sorted(both, key=lambda entry: entry.recorded), path_of(results, name))


def history(name: str, results: Path) -> list[Plan]:
    """Return every entry of an experiment's history, the oldest first; none where nothing was recorded.

    Raises:
        UserError: the file is not what `record_plan` writes.
    """
    path = path_of(results, name)
    try:
        found = json.loads(path.read_bytes())
        entries = [Plan(**entry) for entry in found]
        if not all(_is_sound(entry) for entry in entries):
            raise ValueError
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError):
        raise UserError(f"{path}: is not a history of plans; restore it from where it came.") from None
    return entries


def seeds_added_after_a_look(experiment: Experiment, results: Path) -> str:
    """Return a sentence where the experiment asks for more seeds than were planned before results existed.

    Empty where it does not, and where no plan was recorded (`history` tells which).
    """
    known = history(experiment.name, results)
    if not known:
        return ""
    planned = _before_a_look(known).seeds
    if experiment.seeds <= planned or not _looked(known, experiment, results):
        return ""
    added = experiment.seeds - planned
    return f"{added} of {experiment.seeds} seeds {'was' if added == 1 else 'were'} added after a look at results."


def claims_changed_after_a_look(experiment: Experiment, results: Path) -> dict[str, str]:
    """Return the id of every claim that is not as it was planned before results existed, with what happened to it.

    It was ``added``, ``changed`` (statement, test, metric or margin) or ``dropped``.
    """
    known = history(experiment.name, results)
    if not known or not _looked(known, experiment, results):
        return {}
    planned, now = _before_a_look(known).claims, _claims(experiment)
    changed = {
        name: "added" if name not in planned else "changed" for name in now if now[name] != planned.get(name)
    }
    return changed | {name: "dropped" for name in planned if name not in now}


def _before_a_look(known: list[Plan]) -> Plan:
    """The last plan before the first look; the first one where there was a look before any was recorded."""
    first = next((index for index, entry in enumerate(known) if entry.looked), len(known))
    return known[max(0, first - 1)]


def _looked(known: list[Plan], experiment: Experiment, results: Path) -> bool:
    """Whether today's plan was made, or would be recorded, after a look."""
    now = _today(experiment, results)
    return known[-1].looked if known[-1].decides_as(now) else now.looked


def _write(entries: list[Plan], path: Path) -> None:
    text = json.dumps([asdict(entry) for entry in entries], indent=1, sort_keys=True, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())


def _today(experiment: Experiment, results: Path) -> Plan:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return Plan(experiment.seeds, _claims(experiment), time, _has_results(experiment, results))


def _has_results(experiment: Experiment, results: Path) -> bool:
    return (results / "tables" / f"{experiment.name}.csv").exists() or any(
        has_record(results / cell.folder) for row in experiment.rows for cell in row_cells(experiment, row)
    )


def _claims(experiment: Experiment) -> dict[str, dict[str, Any]]:
    found = {}
    for claim in experiment.claims:
        test = claim.test.model_dump(by_alias=True, mode="json")
        test["metric"] = test["metric"] or experiment.metric
        test["margin"] = experiment.margin if test["margin"] is None else test["margin"]
        found[claim.id] = {"statement": claim.statement, **test}
    return found


def _is_sound(entry: Plan) -> bool:
    return type(entry.seeds) is int and isinstance(entry.claims, dict) and isinstance(entry.looked, bool)
