"""What was planned before anything was seen: seeds, rows and claims of every experiment, as a history on disk.

``results/planned/<experiment>.json`` is a list of entries, one per change of the plan, the oldest first; none is
ever altered, and each holds a checksum of its own. An executing workflow writes it before it trains, and so does
``grpo-ablate train``. An entry that was made when runs or tables of the experiment existed is marked as made after
a look. So tables and archives can say what was decided on results: `notes`. Light: nothing here reads a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError
from grpo_ablate.runs.record_files import has_record, sealed
from grpo_ablate.spec.cells import experiment_cells

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment


TERMS = ("baseline", "metric", "margin", "held quantity", "learning rates")
TABLES = (".csv", "-runs.parquet", "-comparison.json")  # what `collect` and `compare` write first and last


@dataclass(frozen=True)
class Plan:
    """One state of an experiment's plan. ``claims`` maps an id to all that its verdict depends on.

    ``rows`` maps a row's id to its hash, ``terms`` the name of what else decides a comparison (`TERMS`) to its
    value.
    """

    seeds: int
    claims: dict[str, dict[str, Any]]
    recorded: str  # time, ISO 8601
    looked: bool  # runs or tables of the experiment existed
    rows: dict[str, str]
    terms: dict[str, Any]

    def decides_as(self, other: Plan) -> bool:
        """Whether both plan the same seeds, rows, claims and terms."""
        return (self.seeds, self.claims, self.rows, self.terms) == (
            other.seeds, other.claims, other.rows, other.terms,
        )  # fmt: skip

    @property
    def time(self) -> datetime:
        """When it was recorded."""
        return datetime.fromisoformat(self.recorded)


def path_of(results: Path, name: str) -> Path:
    """Return where the history of an experiment lies."""
    return results / "planned" / f"{name}.json"


def record_plan(experiment: Experiment, results: Path) -> bool:
    """Append today's plan to the history unless it ends with the same; return whether it was appended.

    Raises:
        UserError: the history is damaged or cannot be written.
    """
    known = history(experiment.name, results)
    now = plan_today(experiment, results, known)
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
        _write(sorted(both, key=lambda entry: entry.time), path_of(results, name))


def history(name: str, results: Path) -> list[Plan]:
    """Return every entry of an experiment's history, the oldest first; none where nothing was recorded.

    Raises:
        UserError: the file is not what `record_plan` writes, or an entry differs from its checksum.
    """
    path = path_of(results, name)
    try:
        return [_entry(stated, f"{path}: entry {place}") for place, stated in _numbered(path.read_bytes())]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: is not a history of plans; restore it from where it came.") from None


def plan_today(experiment: Experiment, results: Path, known: Sequence[Plan]) -> Plan:
    """Return the plan that the experiment's file states now, as it would be recorded after ``known``."""
    rates = sorted({row.spec.optimizer.learning_rate for rows in experiment.tuned.values() for row in rows})
    stated = (experiment.baseline, experiment.metric, experiment.margin, experiment.held, rates)
    return Plan(
        seeds=experiment.seeds,
        claims=_claims(experiment),
        recorded=datetime.now(UTC).isoformat(timespec="seconds"),
        looked=has_results(experiment, results, known),
        rows={row.id: row.hash for row in experiment.rows},
        terms=dict(zip(TERMS, stated, strict=True)),
    )


def has_results(experiment: Experiment, results: Path, known: Sequence[Plan]) -> bool:
    """Whether any table of the experiment exists, or any run of its rows as they are or as they were planned."""
    tables = (results / "tables" / f"{experiment.name}{ending}" for ending in TABLES)
    earlier = {digest[:8] for plan in known for digest in plan.rows.values()}
    return (
        any(path.exists() for path in tables)
        or any(has_record(results / cell.folder) for cell in experiment_cells(experiment))
        or any(any((results / "runs").glob(f"*/{digest}/*/run.json")) for digest in sorted(earlier))
    )


def _numbered(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    return iter(enumerate(json.loads(content), 1))


def _entry(stated: dict[str, Any], where: str) -> Plan:
    """Return an entry as written."""
    told = {key: value for key, value in stated.items() if key != "checksum"}
    plan = Plan(**told)
    sound = (
        type(plan.seeds) is int
        and isinstance(plan.looked, bool)
        and all(isinstance(part, dict) for part in (plan.claims, plan.rows, plan.terms))
        and plan.time.tzinfo is not None
    )
    if not sound:
        raise ValueError
    if sealed(told) != stated:
        raise UserError(f"{where} differs from the checksum in it; restore the file from where it came.")
    return plan


def _write(entries: list[Plan], path: Path) -> None:
    stated = [sealed(asdict(entry)) for entry in entries]
    text = json.dumps(stated, indent=1, sort_keys=True, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())


def _claims(experiment: Experiment) -> dict[str, dict[str, Any]]:
    found = {}
    for claim in experiment.claims:
        test = claim.test.model_dump(by_alias=True, mode="json")
        test["metric"] = test["metric"] or experiment.metric
        test["margin"] = experiment.margin if test["margin"] is None else test["margin"]
        found[claim.id] = {"statement": claim.statement, **test}
    return found
