"""Runs in MLflow: whole, once, under whatever happens to writers, folders and servers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fabricated import client, rows_only, write_record

from grpo_ablate.analysis.collect import tidy
from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_content import parameters
from grpo_ablate.runs.mlflow_store import create_store
from grpo_ablate.runs.mlflow_writer import Logged, log_experiment
from grpo_ablate.runs.record_files import sealed
from grpo_ablate.runs.samples import as_text
from grpo_ablate.spec import identity
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Kl

WITH_TESTS = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics", "experiments")


def rows(results: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(results / "mlflow.db")) as opened:
        return sorted(opened.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


def query(results: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(results / "mlflow.db")) as opened:
        return opened.execute(text).fetchall()


def runs_of(results: Path, name: str = "tiny"):
    remote = client(results)
    return remote, remote.search_runs([remote.get_experiment_by_name(name).experiment_id])


def test_every_run_has_parameters_history_tags_and_artifacts(recorded, results):
    log_experiment(recorded, results)
    remote, runs = runs_of(results)
    assert len(runs) == 2 * 3  # two specs (base and its twin are one) on three seeds
    by_key = {(run.data.tags["hash"], run.data.tags["seed"]): run for run in runs}
    row = recorded.row("mean-only")
    run = by_key[row.hash, "2"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "mean-only seed 2"
    assert run.data.params == parameters(row.effective)
    assert run.data.params["advantage.scale"] == "none"
    assert run.data.tags["row.small"] == "mean-only"
    assert by_key[recorded.row("base").hash, "0"].data.tags["row.small"] == "base, twin"
    assert run.data.tags["folder"] == f"runs/tiny/{row.hash[:8]}/seeds-2-3"
    assert run.data.tags["commit"] == "c0ffee"
    history = remote.get_metric_history(run.info.run_id, "eval/reward")
    assert sorted(point.step for point in history) == [0, 1, 1, 2, 3]
    names = {file.path for file in remote.list_artifacts(run.info.run_id)}
    assert names == {"run.json", "samples.jsonl"}
    samples = Path(remote.download_artifacts(run.info.run_id, "samples.jsonl")).read_text()
    assert [json.loads(line)["seed"] for line in samples.splitlines()] == [2]


def test_a_second_import_adds_nothing(recorded, results):
    first = log_experiment(recorded, results)
    before = {table: rows(results, table) for table in TABLES}
    second = log_experiment(recorded, results)
    assert (first.written, first.unchanged) == (6, 0)
    assert (second.written, second.unchanged) == (0, 6)
    assert {table: rows(results, table) for table in TABLES} == before


def test_controls_and_learning_rates_are_logged_and_tagged_as_what_they_are(results, tmp_path, experiment):
    text = experiment.path.read_text() + "tune: {learning_rate: [0.1, 0.3]}\n"  # 0.3 is the testbed's own
    experiment.path.write_text(text)
    tuned = load_experiment(experiment.path)
    for cell in cells([tuned]):
        write_record(results, cell)
    logged = log_experiment(tuned, results)
    _, runs = runs_of(results)
    roles = {(run.data.tags["row.small"], run.data.tags["role.small"], int(run.data.tags["seed"])) for run in runs}
    assert len(runs) == logged.written == len(roles)
    of = {seed: {(row, role) for row, role, number in roles if number == seed} for seed in (0, 2, 4, 6)}
    same = "base, twin, base@0.3, twin@0.3"
    assert of[0] == of[2] == {
        (same, "row"), ("mean-only, mean-only@0.3", "row"), ("base@0.1, twin@0.1", "tuning"),
        ("mean-only@0.1", "tuning"), ("control.a-a", "control"), ("control.random-reward", "control"),
    }  # fmt: skip
    assert of[4] == of[6] == {  # seeds that no row is compared on
        ("base@0.3, twin@0.3", "tuning"), ("mean-only@0.3", "tuning"), ("base@0.1, twin@0.1", "tuning"),
        ("mean-only@0.1", "tuning"),
    }  # fmt: skip
    assert {run.info.run_name for run in runs if run.data.tags["role.small"] == "control"} == {
        f"{row} seed {seed}" for row in ("control.a-a", "control.random-reward") for seed in range(3)
    }
    assert log_experiment(tuned, results).written == 0


def test_parameters_are_the_switches_that_identify_a_run(experiment):
    names = set(parameters(experiment.row("base").effective))
    outside = {f"{section}.{key}" for section, keys in identity._OUTSIDE.items() for key in keys}
    assert not names & outside
    assert {f"kl.{key}" for key in Kl.model_fields} | {"task.version", "policy.name"} <= names


@pytest.mark.slow
def test_eight_writers_on_a_fresh_store_log_each_run_once(recorded, results):
    (results / "mlflow.db").unlink()
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.runs.mlflow_writer import log_experiment\n"
        "from fabricated import rows_only\n"
        f"log_experiment(rows_only(Path({str(recorded.path)!r})), Path({str(results)!r}))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code], env=WITH_TESTS, stderr=subprocess.PIPE) for _ in range(8)
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 8
    assert len(rows(results, "runs")) == 6
    assert query(results, "SELECT DISTINCT status, experiment_id FROM runs") == [("FINISHED", 1)]
    assert query(results, "SELECT name FROM experiments ORDER BY 1") == [("Default",), ("tiny",)]
    counts = query(results, "SELECT count(*) FROM metrics WHERE key = 'eval/reward' GROUP BY run_uuid")
    assert counts == [(5,)] * 6


@pytest.mark.parametrize("call", ["log_batch", "set_terminated"])  # before the numbers, and after them
def test_what_a_killed_importer_left_is_completed(recorded, results, call):
    code = (
        "import os, signal; from pathlib import Path; from mlflow.tracking import MlflowClient\n"
        "from grpo_ablate.runs.mlflow_writer import log_experiment\n"
        "from fabricated import rows_only\n"
        f"done, call = [], MlflowClient.{call}\n"
        "def deadly(*arguments, **named):\n"
        "    done.append(0)\n"
        "    return os.kill(os.getpid(), signal.SIGKILL) if len(done) == 4 else call(*arguments, **named)\n"
        f"MlflowClient.{call} = deadly\n"
        f"log_experiment(rows_only(Path({str(recorded.path)!r})), Path({str(results)!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=WITH_TESTS).returncode == -9
    logged = log_experiment(recorded, results)
    assert logged == Logged(written=3, unchanged=3)
    assert ("RUNNING",) not in query(results, "SELECT status FROM runs")
    _, runs = runs_of(results)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len({(run.data.tags["hash"], run.data.tags["seed"]) for run in runs}) == len(runs) == 6
    assert tidy(recorded, results, "mlflow").to_pandas().equals(tidy(recorded, results).to_pandas())


def test_a_retrained_run_replaces_the_older_and_keeps_its_other_labels(recorded, results):
    log_experiment(recorded, results)
    remote, before = runs_of(results)
    for run in before:
        remote.set_tag(run.info.run_id, "row.other", "somewhere")
    for cell in cells([recorded]):
        write_record(results, cell, salt=1)
    assert log_experiment(recorded, results) == Logged(written=6, unchanged=0)
    _, after = runs_of(results)
    assert len(after) == 6 and not {run.info.run_id for run in after} & {run.info.run_id for run in before}
    assert {run.data.tags["row.other"] for run in after} == {"somewhere"}
    assert tidy(recorded, results, "mlflow").to_pandas().equals(tidy(recorded, results).to_pandas())


def test_a_run_whose_times_alone_changed_is_written_anew(recorded, results):
    log_experiment(recorded, results)
    write_record(results, cells([recorded])[0], curve=[[number, 7.0] for number in range(5)])
    assert log_experiment(recorded, results) == Logged(written=2, unchanged=4)


def test_a_diverged_seed_is_failed_and_its_neighbour_finished(experiment, results):
    for cell in cells([experiment]):
        write_record(results, cell, diverged={"1": 3} if cell.first_seed == 0 else None)
    log_experiment(experiment, results)
    found = query(
        results,
        "SELECT seed.value, status, tags.value FROM runs JOIN tags seed USING (run_uuid) LEFT JOIN tags "
        "ON tags.run_uuid = runs.run_uuid AND tags.key = 'diverged' WHERE seed.key = 'seed'",
    )
    assert sorted(set(found), key=str) == [("0", "FINISHED", None), ("1", "FAILED", "3"), ("2", "FINISHED", None)]


def test_a_renamed_row_changes_a_tag_and_a_removed_row_loses_it(recorded, results):
    log_experiment(recorded, results)
    text = recorded.path.read_text()
    recorded.path.write_text(text.replace("twin:", "double:").replace("mean-only: {advantage: {scale: none}}", ""))
    changed = rows_only(recorded.path)
    assert log_experiment(changed, results).written == 0
    _, runs = runs_of(results)
    tags = {(run.data.tags["hash"], run.data.tags.get("row.small")) for run in runs}
    assert tags == {(changed.row("base").hash, "base, double"), (recorded.row("mean-only").hash, None)}


def test_another_experiment_of_the_same_rows_adds_a_tag_and_no_run(recorded, results, tmp_path):
    log_experiment(recorded, results)
    path = tmp_path / "experiments" / "again.yaml"
    path.write_text(recorded.path.read_text().replace("mean-only:", "unscaled:"))
    assert log_experiment(rows_only(path), results).written == 0
    _, runs = runs_of(results)
    labels = {(run.data.tags["row.small"], run.data.tags["row.again"]) for run in runs}
    assert labels == {("base, twin", "base, twin"), ("mean-only", "unscaled")}
    assert {run.info.run_name for run in runs} == {
        f"{row} seed {n}" for row in ("base", "unscaled") for n in range(3)
    }


@pytest.mark.parametrize("seeds", [1, 4])
def test_experiments_that_share_rows_on_other_numbers_of_seeds_log_once(recorded, results, tmp_path, seeds):
    path = tmp_path / "experiments" / "other.yaml"
    path.write_text(recorded.path.read_text().replace("seeds: 3", f"seeds: {seeds}"))
    other = rows_only(path)
    assert set(cells([other])) <= set(cells([recorded]))  # whole blocks: no seed is trained in two places
    assert log_experiment(recorded, results) == Logged(written=6, unchanged=0)
    assert log_experiment(other, results) == Logged(written=2 * max(0, seeds - 3), unchanged=2 * min(seeds, 3))
    before = {table: rows(results, table) for table in TABLES}
    assert log_experiment(recorded, results) == Logged(written=0, unchanged=6)
    assert log_experiment(other, results) == Logged(written=0, unchanged=2 * seeds)
    assert {table: rows(results, table) for table in TABLES} == before
    for experiment in (recorded, other):
        found = tidy(experiment, results)
        assert set(found.column("seed").to_pylist()) == set(range(experiment.seeds))
        assert found.to_pandas().equals(tidy(experiment, results, "mlflow").to_pandas())


def test_samples_are_those_of_the_experiments_seeds_and_true_to_their_checksum(recorded, results):
    text = as_text(recorded, recorded.row("base"), results)
    told = [line for line in text.splitlines() if line.startswith("seed ")]
    assert told == [f"seed {seed}, round 4" for seed in range(3)]  # and no 3
    cell = next(cell for cell in cells([recorded]) if cell.hash == recorded.row("base").hash)
    (results / cell.folder / "samples.jsonl").write_text('{"x":1}\n')
    with pytest.raises(UserError, match=r"samples\.jsonl: differs from the checksum"):
        as_text(recorded, recorded.row("base"), results)


def test_a_long_spec_is_whole_and_no_parameter_is_cut(experiment, results):
    path = experiment.path.parent / "testbeds" / "tiny.yaml"
    path.write_text(path.read_text().replace("Good night", "Good night, " + "sleep tight, " * 1500))
    long = rows_only(experiment.path)
    for cell in cells([long]):
        write_record(results, cell)
    log_experiment(long, results)
    _, runs = runs_of(results)
    run = next(run for run in runs if run.data.tags["hash"] == long.row("base").hash)
    count = sum(key.startswith("spec.") for key in run.data.tags)
    text = "".join(run.data.tags[f"spec.{number}"] for number in range(count))
    assert len(text) > 18_000
    assert from_canonical(text) == from_canonical(
        next(c.spec_json for c in cells([long]) if c.hash == run.data.tags["hash"])
    )
    assert run.data.params["task.prompts"].startswith("sha256:")
    assert max(map(len, run.data.params.values())) <= 500


def test_a_moved_results_folder_keeps_its_artifacts(recorded, results, tmp_path):
    log_experiment(recorded, results)
    moved = tmp_path / "elsewhere" / "new name"
    moved.parent.mkdir()
    results.rename(moved)
    create_store(moved)
    remote, runs = runs_of(moved)
    assert all(len(remote.list_artifacts(run.info.run_id)) == 2 for run in runs)
    assert log_experiment(recorded, moved).written == 0
    for cell in cells([recorded]):
        write_record(moved, cell, salt=5)
    assert log_experiment(recorded, moved).written == 6
    assert not results.exists()


def test_neither_mlruns_nearby_nor_the_environment_redirects(recorded, results, tmp_path, monkeypatch):
    meta = tmp_path / "cwd" / "mlruns" / "0" / "meta.yaml"
    meta.parent.mkdir(parents=True)
    meta.write_text("experiment_id: '0'\n")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/wrong.db")
    log_experiment(recorded, Path(os.path.relpath(results)))
    assert len(rows(results, "runs")) == 6
    assert sorted(path.name for path in (tmp_path / "cwd").rglob("*")) == ["0", "meta.yaml", "mlruns"]
    assert not (tmp_path / "wrong.db").exists()
    locations = query(results, "SELECT artifact_location FROM experiments WHERE name = 'tiny'")
    assert {location.rpartition("/")[0] for (location,) in locations} == {(results / "mlflow-artifacts").as_uri()}


def test_an_unreachable_server_is_one_sentence_within_seconds(recorded, results):
    began = time.monotonic()
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be used .* records .* intact"):
        log_experiment(recorded, results, "http://127.0.0.1:9")
    assert time.monotonic() - began < 20
    assert log_experiment(recorded, results).written == 6


@pytest.mark.parametrize("uri", ["ftp://host/x", "./mlruns", "file:///tmp/mlruns", "sqlite://"])
def test_an_address_that_is_no_store_is_refused_by_name(recorded, results, uri):
    with pytest.raises(UserError, match="expected http://HOST:PORT, sqlite"):
        log_experiment(recorded, results, uri)


def test_missing_blocks_are_named_after_the_others_are_logged(recorded, results):
    gone = cells([recorded])[-1].folder
    shutil.rmtree(results / gone)
    with pytest.raises(UserError, match=f"1 seed blocks have no record .* {gone}"):
        log_experiment(recorded, results)
    assert len(rows(results, "runs")) == 5


@pytest.mark.parametrize("uri", [None, "else/mlflow.db"])
def test_without_a_sound_record_nothing_is_written(recorded, tmp_path, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "nothing"
    with pytest.raises(
        UserError, match=r"small\.yaml: none of its 4 seed blocks has a record in .*nothing; train"
    ):
        log_experiment(recorded, results, uri)
    assert not results.exists() and not Path("else").exists()
    folder = write_record(results, cells([recorded])[0])
    (folder / "provenance.json").write_text("{}")
    with pytest.raises(UserError, match=r"provenance\.json: the key 'commit' is missing; remove"):
        log_experiment(recorded, results, uri)
    assert [path.name for path in results.iterdir()] == ["runs"] and not Path("else").exists()


@pytest.mark.parametrize("change", [{"hash": "0" * 64}, {"seeds": [4, 5]}])
def test_a_record_of_another_spec_or_other_seeds_is_refused(recorded, results, change):
    cell = cells([recorded])[0]
    if "seeds" in change:  # whole in itself, but in the wrong folder
        made = write_record(results, dataclasses.replace(cell, first_seed=4, last_seed=5))
        shutil.rmtree(results / cell.folder)
        made.rename(results / cell.folder)
    else:
        path = results / cell.folder / "run.json"
        path.write_text(json.dumps(sealed(json.loads(path.read_text()) | change)))
    for read in (log_experiment, tidy):
        with pytest.raises(
            UserError,
            match=r"run\.json: (is of another spec or other seeds than|the hash is not that of the spec)",
        ):
            read(recorded, results)


@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "timing.json"])
def test_a_corrupt_record_is_named(recorded, results, name):
    path = results / cells([recorded])[0].folder / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        log_experiment(recorded, results)


def test_a_file_that_is_no_database_is_named(recorded, results):
    (results / "mlflow.db").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(UserError, match=r"mlflow\.db: the MLflow database cannot be used"):
        log_experiment(recorded, results)


def test_a_store_that_cannot_be_written_is_named(recorded, results, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="file: cannot be written"):
        log_experiment(recorded, results, str(blocked / "mlflow.db"))


def test_what_a_killed_creation_left_is_no_obstacle(recorded, results):
    (results / "mlflow.db").write_bytes(b"")
    (results / "mlflow.db.new-01234567").write_bytes(b"half a schema")
    assert log_experiment(recorded, results).written == 6
    assert not list(results.glob("mlflow.db.new*"))


def test_a_deleted_experiment_comes_back(recorded, results):
    log_experiment(recorded, results)
    remote = client(results)
    remote.delete_experiment(remote.get_experiment_by_name("tiny").experiment_id)
    create_store(results, None, ["tiny"])
    assert remote.get_experiment_by_name("tiny").lifecycle_stage == "active"
