"""What one (spec, seed) of a record becomes in MLflow: parameters, tags, metric points, artifacts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo_ablate.runs.mlflow_lines import Lines, Points, encode, timestamps
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.schema import Spec

if TYPE_CHECKING:
    from grpo_ablate.runs.record import Record

PARAMETER_LENGTH = 500  # MLflow cuts at 6,000 without a word; a chart needs far less
SAMPLES = "samples.jsonl"
DIRECTIONS = ("budget.hold", "evaluation.last", "update.force")
TAG_LENGTH = 5000  # and at 8,000 for a tag
INTEGERS = ("seed", "round", "updates", "rollouts", "tokens")


@dataclass(frozen=True)
class RunContent:
    """Everything that MLflow holds of one run."""

    hash: str
    seed: int
    status: str  # FINISHED or FAILED, as MLflow writes it
    start: int  # milliseconds since 1970
    end: int
    lines: Lines
    timestamp: NDArray[np.int64]  # of each line
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    artifacts: Mapping[str, bytes] = field(repr=False)

    def points(self) -> Points:
        """The metric points of every line."""
        return encode(self.lines, self.timestamp)


def fingerprint(run: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change when a record's measurements or times do."""
    text = json.dumps([run["checksums"], run["status"], timing.get("curve")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parameters(spec: Spec) -> dict[str, str]:
    """Return every resolved switch under its dotted name; a long value as its digest, the spec tags have it whole.

    Directions that are no property of a run (they stay outside its identity) are left out.

    >>> from grpo_ablate.spec.schema import Kl
    >>> flat = _flat("kl", Kl(beta=0.05).model_dump(mode="json"))
    >>> flat["kl.beta"], flat["kl.place"]
    ('0.05', 'loss')
    """
    flat = _flat("", spec.model_dump(mode="json"))
    return {name: text for name, text in flat.items() if name not in DIRECTIONS}


def _flat(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict) and value:
        prefix = f"{name}." if name else ""
        return {
            key: text for part, inner in value.items() for key, text in _flat(f"{prefix}{part}", inner).items()
        }
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > PARAMETER_LENGTH:
        text = (
            f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]} ({len(text)} characters, in the tags spec.*)"
        )
    return {name: text}


def spec_tags(text: str) -> dict[str, str]:
    """Return the sparse spec as tags ``spec.0``, ``spec.1``, ... that join to the whole text."""
    parts = [text[start : start + TAG_LENGTH] for start in range(0, len(text), TAG_LENGTH)] or [""]
    return {f"spec.{number}": part for number, part in enumerate(parts)}


def joined_spec(tags: Mapping[str, str]) -> str:
    """Return the sparse spec that ``spec_tags`` took apart.

    >>> joined_spec(spec_tags("x" * 12345)) == "x" * 12345
    True
    """
    numbers = sorted(int(key[5:]) for key in tags if re.fullmatch(r"spec\.\d+", key))
    return "".join(tags[f"spec.{number}"] for number in numbers)


def seconds_at(timing: Mapping[str, Any], rounds: NDArray[np.int64], seeds: int) -> NDArray[np.float64]:
    """Return one seed's share of the block's cumulative seconds at each round; NaN where none was taken."""
    curve = {int(number): float(value) / seeds for number, value in timing.get("curve") or ()}
    return np.array([curve.get(number, np.nan) for number in rounds.tolist()], dtype=np.float64)


def lines_by_seed(record: Record) -> dict[int, Lines]:
    """Return the lines of each seed of a record, by round."""
    table = record.metrics
    whole = {name: table.column(name).to_numpy().astype(np.int64) for name in INTEGERS}
    metrics = {
        name: table.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
        for name in table.column_names
        if name not in INTEGERS
    }
    seconds = seconds_at(record.timing, whole["round"], len(record.run["seeds"]))
    result = {}
    for seed in np.unique(whole["seed"]).tolist():
        rows = np.flatnonzero(whole["seed"] == seed)
        rows = rows[np.argsort(whole["round"][rows], kind="stable")]
        counters = {name: whole[name][rows] for name in INTEGERS if name != "seed"}
        result[seed] = Lines(
            **counters, seconds=seconds[rows], metrics={name: column[rows] for name, column in metrics.items()}
        )
    return result


def contents(
    record: Record, folder: str, artifacts: Mapping[str, bytes], seeds: Iterable[int]
) -> Iterator[RunContent]:
    """Yield what MLflow shall hold of the given seeds of a record; ``folder`` is relative to the results.

    ``artifacts`` are the block's files by name; of ``samples.jsonl`` each seed gets its own lines.
    """
    run, wanted = record.run, set(seeds)
    text = json.dumps(run["spec"], sort_keys=True, separators=(",", ":"))  # as in the spec's identity
    flat, start = parameters(from_canonical(text)), _started(record.provenance)
    tags = {
        "hash": run["hash"],
        "testbed": run["testbed"],
        "folder": folder,
        "digest": str(run["digest"]),
        "record": fingerprint(run, record.timing),
        **_provenance_tags(record.provenance),
        **spec_tags(text),
    }
    samples = _samples_by_seed(artifacts.get(SAMPLES, b""))
    for seed, lines in lines_by_seed(record).items():
        if seed not in wanted:
            continue
        stamps = timestamps(start, lines.seconds * len(run["seeds"]))
        diverged = run["diverged"].get(str(seed))
        own = {"seed": str(seed), "status": "finished" if diverged is None else "diverged"}
        yield RunContent(
            hash=run["hash"],
            seed=seed,
            status="FINISHED" if diverged is None else "FAILED",
            start=start,
            end=int(stamps[-1]),
            lines=lines,
            timestamp=stamps,
            parameters=flat,
            tags={**tags, **own, **({} if diverged is None else {"diverged": str(diverged)})},
            artifacts={**artifacts, **({SAMPLES: samples.get(seed, b"")} if SAMPLES in artifacts else {})},
        )


def _samples_by_seed(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for line in data.splitlines(keepends=True):
        seed = json.loads(line)["seed"]
        found[seed] = found.get(seed, b"") + line
    return found


def _started(provenance: Mapping[str, Any]) -> int:
    """When the first session of the run began, in milliseconds since 1970."""
    first = (provenance.get("interrupted") or [provenance])[0]
    return int(datetime.fromisoformat(first["started"]).timestamp() * 1000)


def _provenance_tags(provenance: Mapping[str, Any]) -> dict[str, str]:
    kept = {key: provenance.get(key) for key in ("commit", "dirty", "versions", "processor", "threads")}
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in kept.items()
        if value is not None
    }
