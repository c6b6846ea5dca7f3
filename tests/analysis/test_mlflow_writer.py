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

import numpy as np
import pytest
from fabricated import write_record

from grpo_ablate.errors import UserError
from grpo_ablate.runs import mlflow_sqlite
from grpo_ablate.runs.mlflow_content import joined_spec, parameters
from grpo_ablate.runs.mlflow_store import client, create_store, locate
from grpo_ablate.runs.mlflow_writer import log_experiment
from grpo_ablate.spec import identity
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Kl

TABLES = ("runs", "tags", "params", "metrics", "latest_metrics", "experiments")


def rows(results: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(results / "mlflow.db")) as opened:
        return sorted(opened.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


def query(results: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(results / "mlflow.db")) as opened:
        return opened.execute(text).fetchall()


def runs_of(results: Path, name: str = "tiny"):
    remote = client(locate(results).uri)
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
    assert run.data.tags["folder"] == f"runs/tiny/{row.hash[:8]}/seeds-2-2"
    assert run.data.tags["commit"] == "c0ffee"
    history = remote.get_metric_history(run.info.run_id, "eval/reward")
    assert sorted(point.step for point in history) == [0, 1, 1, 2, 3]
    names = {file.path for file in remote.list_artifacts(run.info.run_id)}
    assert names == {"run.json", "provenance.json", "samples.jsonl"}
    samples = Path(remote.download_artifacts(run.info.run_id, "samples.jsonl")).read_text()
    assert [json.loads(line)["seed"] for line in samples.splitlines()] == [2]


def test_a_second_import_adds_nothing(recorded, results):
    first = log_experiment(recorded, results)
    before = {table: rows(results, table) for table in TABLES}
    second = log_experiment(recorded, results)
    assert (first.written, first.unchanged) == (6, 0)
    assert (second.written, second.unchanged) == (0, 6)
    assert {table: rows(results, table) for table in TABLES} == before


def test_direct_rows_equal_those_of_mlflows_own_client(recorded, results, tmp_path, monkeypatch):
    log_experiment(recorded, results)
    other = tmp_path / "other"
    shutil.copytree(results / "runs", other / "runs")
    monkeypatch.setattr(mlflow_sqlite, "understood", lambda *_: False)
    log_experiment(recorded, other)

    def content(root: Path, table: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(root / "mlflow.db")) as opened:
            names = dict(
                opened.execute(
                    "SELECT h.run_uuid, h.value || s.value FROM tags h JOIN tags s USING (run_uuid) "
                    "WHERE h.key = 'hash' AND s.key = 'seed'"
                )
            )
            found = opened.execute(f"SELECT * FROM {table}").fetchall()
        tidy = [
            tuple(
                names[value]
                if value in names
                else value.replace(str(root), "").replace(identity, names[identity])
                if isinstance(value, str) and (identity := next((n for n in names if n in value), ""))
                else value
                for value in row
            )
            for row in found
        ]
        return sorted((row for row in tidy if "mlflow.user" not in row), key=repr)

    for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
        assert content(results, table) == content(other, table), table


def test_parameters_are_the_switches_that_identify_a_run(experiment):
    names = set(parameters(experiment.row("base").effective))
    outside = {f"{section}.{key}" for section, keys in identity._OUTSIDE.items() for key in keys}
    assert not names & outside
    assert {f"kl.{key}" for key in Kl.model_fields} | {"task.version", "policy.name"} <= names


def test_a_log_into_an_existing_store_does_not_import_mlflow(recorded, results):
    create_store(results, None, ["tiny"])
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.runs.mlflow_writer import log_experiment\n"
        "from grpo_ablate.spec.resolve import load_experiment\n"
        f"log_experiment(load_experiment(Path({str(recorded.path)!r})), Path({str(results)!r}))\n"
        "assert 'mlflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(rows(results, "runs")) == 6


@pytest.mark.slow
def test_eight_writers_on_a_fresh_store_log_each_run_once(recorded, results):
    (results / "mlflow.db").unlink()
    code = (
        "import sys; from pathlib import Path; from grpo_ablate.runs.mlflow_writer import log_experiment\n"
        "from grpo_ablate.spec.resolve import load_experiment\n"
        f"log_experiment(load_experiment(Path({str(recorded.path)!r})), Path({str(results)!r}))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(8)]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 8
    assert len(rows(results, "runs")) == 6
    assert query(results, "SELECT DISTINCT status, experiment_id FROM runs") == [("FINISHED", 1)]
    assert query(results, "SELECT name FROM experiments ORDER BY 1") == [("Default",), ("tiny",)]
    counts = query(results, "SELECT count(*) FROM metrics WHERE key = 'eval/reward' GROUP BY run_uuid")
    assert counts == [(5,)] * 6


def test_a_writer_killed_between_statements_leaves_nothing_of_its_block(recorded, results):
    create_store(results, None, ["tiny"])
    code = (
        "import os, signal; from pathlib import Path\n"
        "from grpo_ablate.runs import mlflow_sqlite; from grpo_ablate.runs.mlflow_writer import log_experiment\n"
        "from grpo_ablate.spec.resolve import load_experiment\n"
        "tables = dict(mlflow_sqlite.TABLES)\n"
        "class Deadly(dict):\n"
        "    def items(self):\n"
        "        for number, item in enumerate(tables.items()):\n"
        "            if number == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "            yield item\n"
        "mlflow_sqlite.TABLES = Deadly(tables)\n"
        f"log_experiment(load_experiment(Path({str(recorded.path)!r})), Path({str(results)!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert rows(results, "runs") == rows(results, "metrics") == []
    assert log_experiment(recorded, results).written == 6


def test_a_retrained_run_replaces_its_numbers_under_the_same_id(recorded, results):
    log_experiment(recorded, results)
    before = {row[0] for row in rows(results, "runs")}
    old = query(results, "SELECT value FROM metrics WHERE key = 'train/noisy'")
    for cell in cells([recorded]):
        write_record(results, cell, salt=1)
    assert log_experiment(recorded, results).written == 6
    assert {row[0] for row in rows(results, "runs")} == before
    new = query(results, "SELECT value FROM metrics WHERE key = 'train/noisy'")
    assert len(new) == len(old)
    assert not set(new) & set(old) - {(0.0,)}


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
    changed = load_experiment(recorded.path)
    assert log_experiment(changed, results).written == 0
    _, runs = runs_of(results)
    tags = {(run.data.tags["hash"], run.data.tags.get("row.small"), run.info.run_name[:4]) for run in runs}
    gone = recorded.row("mean-only").hash
    assert tags == {(changed.row("base").hash, "base, double", "base"), (gone, None, gone[:4])}


def test_another_experiment_of_the_same_rows_adds_a_tag_and_no_run(recorded, results, tmp_path):
    log_experiment(recorded, results)
    path = tmp_path / "experiments" / "again.yaml"
    path.write_text(recorded.path.read_text().replace("mean-only:", "unscaled:"))
    assert log_experiment(load_experiment(path), results).written == 0
    _, runs = runs_of(results)
    labels = {(run.data.tags["row.small"], run.data.tags["row.again"]) for run in runs}
    assert labels == {("base, twin", "base, twin"), ("mean-only", "unscaled")}


def test_a_long_spec_is_whole_and_no_parameter_is_cut(experiment, results):
    path = experiment.path.parent / "testbeds" / "tiny.yaml"
    path.write_text(path.read_text().replace("Good night", "Good night, " + "sleep tight, " * 1500))
    long = load_experiment(experiment.path)
    for cell in cells([long]):
        write_record(results, cell)
    log_experiment(long, results)
    _, runs = runs_of(results)
    run = next(run for run in runs if run.data.tags["hash"] == long.row("base").hash)
    text = joined_spec(run.data.tags)
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
    assert all(len(remote.list_artifacts(run.info.run_id)) == 3 for run in runs)
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
    locations = query(results, "SELECT artifact_location FROM experiments")
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
    assert log_experiment(recorded, results, partial=True).missing == (gone,)
    assert len(rows(results, "runs")) == 5


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


def test_a_results_path_that_cannot_be_written_is_named(recorded, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="file: cannot be written"):
        log_experiment(recorded, blocked)


def test_what_a_killed_creation_left_is_no_obstacle(recorded, results):
    (results / "mlflow.db").write_bytes(b"")
    (results / "mlflow.db.new-01234567").write_bytes(b"half a schema")
    assert log_experiment(recorded, results).written == 6
    assert not list(results.glob("mlflow.db.new*"))
    (results / "mlflow.db").unlink()  # and in the same process again
    assert log_experiment(recorded, results).written == 6


def test_a_deleted_experiment_comes_back(recorded, results):
    log_experiment(recorded, results)
    remote = client(locate(results).uri)
    remote.delete_experiment(remote.get_experiment_by_name("tiny").experiment_id)
    create_store(results, None, ["tiny"])
    assert remote.get_experiment_by_name("tiny").lifecycle_stage == "active"


def test_a_started_run_is_continued_by_the_client_and_replaced_where_it_disagrees(recorded, results, monkeypatch):
    from grpo_ablate.runs.mlflow_content import lines_by_seed
    from grpo_ablate.runs.mlflow_lines import encode
    from grpo_ablate.runs.mlflow_server import metrics
    from grpo_ablate.runs.record import read_record

    monkeypatch.setattr(mlflow_sqlite, "understood", lambda *_: False)
    create_store(results, None, ["tiny"])
    remote = client(locate(results).uri)
    number = remote.get_experiment_by_name("tiny").experiment_id
    cell = next(cell for cell in cells([recorded]) if cell.first_seed == 0)
    lines = lines_by_seed(read_record(results / cell.folder))
    started = {}
    for seed, wrong in ((0, False), (1, True)):
        run = remote.create_run(number, tags={"hash": cell.hash, "seed": str(seed)})
        part = dataclasses.replace(lines[seed].part(0, 3), seconds=np.full(3, np.nan))
        if wrong:
            part.metrics["eval/reward"][2] += 1
        remote.log_batch(run.info.run_id, metrics=metrics(encode(part, np.array([10, 20, 30]))))
        started[seed] = run.info.run_id
    assert log_experiment(recorded, results).written == 6
    _, runs = runs_of(results)
    ids = {int(run.data.tags["seed"]): run for run in runs if run.data.tags["hash"] == cell.hash}
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED"}
    assert ids[0].info.run_id == started[0]
    assert ids[1].info.run_id != started[1]
    history = remote.get_metric_history(started[0], "round")
    assert sorted(point.value for point in history) == [0, 1, 2, 3, 4]
    assert len(remote.get_metric_history(started[0], "seconds")) == 5
