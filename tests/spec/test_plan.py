"""The plan: what it counts as done is what the workflow would not train again for its record."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.runs.record_files import RECORD, sealed
from grpo_ablate.spec.cells import Cell, cells, experiment_cells
from grpo_ablate.spec.estimate import Prices, calibrate, prices_of, start_seconds, works
from grpo_ablate.spec.identity import canonical_json, from_canonical, spec_hash
from grpo_ablate.spec.plan import as_text, plan
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Spec
from grpo_ablate.spec.warmstart import starts
from grpo_ablate.workflow.status import counts, status

Change = Callable[[Path], object]


def write_record(folder: Path, cell: Cell) -> None:
    """Every file of a record, as far as it is looked at without its checksums."""
    run: dict[str, Any] = {"schema_version": 1, "hash": cell.hash, "spec": json.loads(cell.spec_json)}
    run |= {"testbed": "small", "seeds": cell.seeds, "status": "finished", "diverged": {}}
    run |= {"digest": "0123456789abcdef", "budget": {"rollouts": [], "tokens": [], "updates": []}}
    run["checksums"] = dict.fromkeys(("metrics.parquet", "samples.jsonl", "parameters.safetensors"), "")
    folder.mkdir(parents=True)
    for name in RECORD:
        (folder / name).write_text(json.dumps(sealed(run)) if name == "run.json" else "")


def edited(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "run.json"
        path.write_text(json.dumps(sealed(json.loads(path.read_text()) | changes)))

    return change


@pytest.mark.parametrize(
    ("harm", "failed"),
    [
        (lambda folder: None, 0),
        (edited(more="of a later version"), 0),
        (lambda folder: (folder / "run.json").write_text('{"hash": "'), 1),
        (edited(hash="0" * 64), 1),
        (edited(seeds=[0, 1, 2]), 1),
        (edited(checksums={}), 1),
        (lambda folder: (folder / "metrics.parquet").unlink(), 1),
        (lambda folder: (folder / "provenance.json").unlink(), 1),
    ],
)
def test_a_broken_record_is_failed_and_to_run_again(
    write: Callable[..., Path], tmp_path: Path, harm: Change, failed: int
) -> None:
    experiment = load_experiment(write())
    for cell in cells([experiment]):
        write_record(tmp_path / cell.folder, cell)
    block = next(cell for cell in cells([experiment]) if cell.hash == experiment.row("base").hash)
    harm(tmp_path / block.folder)
    found = plan(experiment, tmp_path)
    assert (found.jobs, found.jobs_to_run, found.jobs_failed) == (8, failed, failed)  # two rows and two controls
    row = found.rows[0]
    assert (row.row, row.jobs, row.jobs_done, row.jobs_failed) == ("base", 2, 2 - failed, failed)
    text = as_text([found])
    assert (
        ("1 of 2 jobs done, 1 failed" in text)
        == ("(1 failed: `grpo-ablate status` says why)" in text)
        == (failed == 1)
    )


def test_status_looks_at_the_checksums_too(write: Callable[..., Path], tmp_path: Path) -> None:
    experiment = load_experiment(write())
    for cell in cells([experiment]):
        write_record(tmp_path / cell.folder, cell)  # whose checksums are wrong
    found = status([experiment], tmp_path)
    assert counts(found)["failed"] == 8
    assert all("metrics.parquet: differs from the checksum in run.json; remove" in cell.detail for cell in found)


def test_a_timing_that_cannot_be_read_tells_nothing(write: Callable[..., Path], tmp_path: Path) -> None:
    experiment = load_experiment(write())
    folder = tmp_path / "runs" / "small" / "01234567" / "seeds-0-3"
    folder.mkdir(parents=True)
    for text in ("", "[]", '{"seconds": 1, "updates": "2", "machine": "here"}', '{"seconds": NaN}'):
        (folder / "timing.json").write_text(text)
        assert plan(experiment, tmp_path).seconds is None


LANGUAGE: dict[str, Any] = {
    "task": {"name": "arithmetic", "held_out": 16, "train_prompts": 64},
    "policy": {"name": "stacked", "warmstart": {"steps": 20}},
    "sampling": {"prompts": 4, "group_size": 8, "max_tokens": 24},
    "evaluation": {"every": 5, "samples": 2, "final_samples": 16, "final_evaluations": 2},
    "optimizer": {"name": "adamw", "learning_rate": 3e-4},
    "budget": {"rollouts": 320},
}
ROWS: dict[str, Any] = {
    "base": {},
    "passes": {"update": {"inner_passes": 4, "minibatches": 2}},
    "small-groups": {"sampling": {"group_size": 2}},
    "exact": {"kl": {"beta": 0.1, "estimator": "exact"}},
}


def write_timing(folder: Path, spec: Spec, seeds: int, prices: Prices, machine: str = "") -> None:
    """A record of a job that took exactly what the prices say."""
    write_record(folder, Cell("small", spec_hash(spec), 0, seeds - 1, canonical_json(spec)))
    edited(spec=json.loads(canonical_json(spec)))(folder)
    done = works(spec, seeds)
    parts = {
        part: call * done[part].calls + response * done[part].volume
        for part, (call, response) in prices.parts.items()
    }
    timing = {"seconds": sum(parts.values()), "parts": {"start_up": prices.start, **parts}, "curve": []}
    timing |= {"peak_memory_bytes": 1, "updates": 1, "machine": machine or platform.node()}
    (folder / "timing.json").write_text(json.dumps(timing))


def test_the_estimate_of_other_rows_follows_their_rollouts_passes_and_evaluations(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    experiment = load_experiment(write({"rows": ROWS}, LANGUAGE))
    true = Prices(3.0, {"sampling": (0.01, 2e-4), "training": (0.004, 3e-4), "evaluation": (0.02, 1e-4)})
    for name in ("base", "small-groups"):  # two rows tell a call's price from a response's
        spec = experiment.row(name).effective
        write_timing(tmp_path / "runs" / "other" / name / "seeds-0-3", spec, 4, true)
        write_timing(
            tmp_path / "runs" / "other" / f"{name}-elsewhere" / "seeds-0-3",
            spec,
            4,
            Prices(900.0, true.parts),
            "else",
        )
    found = plan(experiment, tmp_path)
    todo = experiment_cells(experiment)
    assert len(todo) == found.jobs_to_run == 2 * (4 + 2)
    runs = [from_canonical(cell.spec_json) for cell in todo]
    (start,) = starts(todo)
    warm = true.start + 20 * 0.004 + 2 * 20 * 64 * 3e-4  # a demonstration is a prompt and a response
    expected = sum(true.start + true.seconds(works(spec, 4)) for spec in runs) + warm
    assert found.seconds == pytest.approx(expected, rel=1e-6)
    assert [(s.folder, s.trained) for s in found.starts] == [(start.folder, False)]
    assert f"warm start {start.folder}: to train" in as_text([found])


def test_short_answers_are_priced_by_short_answers_once_there_are_any(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    rows = {**ROWS, "short": {"sampling": {"max_tokens": 10}}, "short-passes": {**ROWS["passes"]}}
    rows["short-passes"] |= rows["short"]
    experiment = load_experiment(write({"rows": rows}, LANGUAGE))
    long = Prices(3.0, {"sampling": (0.0, 2e-4), "training": (0.0, 3e-4), "evaluation": (0.0, 1e-4)})
    short = Prices(3.0, {part: (0.0, price / 2) for part, (_, price) in long.parts.items()})

    def told(name: str) -> float:
        spec = experiment.row(name).effective
        found = prices_of(spec, calibrate(tmp_path))
        assert found is not None
        return found.seconds(works(spec, 4))

    for name, prices in {"base": long, "short": short}.items():
        spec = experiment.row(name).effective
        write_timing(tmp_path / "runs" / "other" / name / "seeds-0-3", spec, 4, prices)
        if name == "base":
            assert told("short") == pytest.approx(told("base"))
    assert told("short-passes") == pytest.approx(told("passes") / 2)


def test_the_work_of_a_part_is_counted_by_hand(write: Callable[..., Path]) -> None:
    experiment = load_experiment(write({"rows": ROWS}, LANGUAGE))
    found = {name: works(experiment.row(name).effective, 4) for name in ROWS}
    # 10 rounds of 4 prompts with 8 responses each, 4 seeds; evaluations after rounds 0, 5 and 10
    assert found["base"]["sampling"] == (10, 10 * 4 * 9 * 4)
    assert found["base"]["training"] == (10, 10 * 4 * 9 * 4)
    assert found["base"]["evaluation"] == (3, 16 * 4 * ((2 + 2) + 2 * (16 + 2)))
    assert found["passes"]["training"] == (10 * 8, 4 * 10 * 4 * 9 * 4)
    assert found["small-groups"]["sampling"] == (10, 10 * 16 * 3 * 4)
    assert found["exact"]["training"].volume == pytest.approx(4 / 3 * 10 * 4 * 9 * 4)


def test_an_earlier_warm_start_tells_the_time_of_another(write: Callable[..., Path], tmp_path: Path) -> None:
    experiment = load_experiment(write({"rows": ROWS}, LANGUAGE))
    (start,) = starts(experiment_cells(experiment))
    stated = json.loads(start.spec_json)
    stated["policy"]["warmstart"]["steps"] = 40
    folder = tmp_path / "warmstarts" / "01234567"
    folder.mkdir(parents=True)
    told = {"schema_version": 1, "hash": "0" * 64, "spec": stated, "seeds": None, "digest": "", "sha256": ""}
    (folder / "start.json").write_text(json.dumps(sealed(told | {"evaluation": {}, "loss": []})))
    timing = {"seconds": 9.0, "parts": {"start_up": 1.0}, "curve": [], "peak_memory_bytes": 1, "updates": 40}
    (folder / "timing.json").write_text(json.dumps(timing | {"machine": platform.node()}))
    assert start_seconds(start, tmp_path, None) == pytest.approx(10.0 / 2)


def test_planning_says_when_the_seeds_cannot_confirm_any_claim(write: Callable[..., Path], tmp_path: Path) -> None:
    test = {"is": "better", "row": "mean-only", "than": "base"}
    claims = [{"id": f"c{i}", "statement": "It is better.", "source": "folklore", "test": test} for i in range(2)]
    few, enough = (
        as_text([plan(load_experiment(write({"claims": claims, "seeds": seeds})), tmp_path)]) for seeds in (4, 8)
    )
    # two-sided: 2 / 2^n <= .05 / 2 needs n = 7
    assert "with 4 seeds and 2 claims no sign-flip test can reach" in few and "7 seeds" in few
    assert "sign-flip" not in enough


def test_controls_and_learning_rates_are_planned_beside_the_rows(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    experiment = load_experiment(write({"tune": {"learning_rate": [0.1, 0.3]}}))
    found = plan(experiment, tmp_path)
    assert [row.row for row in found.controls] == ["control.a-a", "control.random-reward"]
    assert [row.row for row in found.tuned] == ["base@0.1", "base@0.3", "mean-only@0.1", "mean-only@0.3"]
    assert found.jobs == len(experiment_cells(experiment))
    text = as_text([found])
    assert "control.a-a (to train), control.random-reward (to train)" in text
    assert "4 rows at a rate of their own" in text
