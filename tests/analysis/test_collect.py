"""One tidy table from the records or from MLflow, the same to the last byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fabricated import changed, client, columns, rows_only, write_record

from grpo_ablate.analysis import exact_controls
from grpo_ablate.analysis.collect import KEYS, collect, tidy
from grpo_ablate.analysis.compare_command import write_compared
from grpo_ablate.analysis.comparison import ControlResult
from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.runs.mlflow_store import create_store
from grpo_ablate.runs.mlflow_writer import Logged, log_experiment
from grpo_ablate.runs.record_files import sealed
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import load_experiment


def all_bytes(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_a_line_per_row_seed_and_evaluation_in_order(recorded, results):
    found = tidy(recorded, results).to_pandas()
    assert tuple(found.columns[: len(KEYS)]) == KEYS
    order = [
        (row, seed, number) for row in ("base", "twin", "mean-only") for seed in range(3) for number in range(5)
    ]
    assert list(zip(found["row"], found["seed"], found["round"], strict=True)) == order
    assert set(found["experiment"]) == {"small"} and set(found["testbed"]) == {"tiny"}
    cell = next(cell for cell in cells([recorded]) if cell.hash == recorded.row("mean-only").hash)
    expected = pd.DataFrame(columns([0, 1], int(cell.hash[:6], 16)))
    got = found[(found["row"] == "mean-only") & (found["seed"] < 2)].reset_index(drop=True)
    for name in expected.columns:
        if name != "train/never":
            assert np.array_equal(got[name], expected[name], equal_nan=True), name
    assert "train/never" not in found.columns  # a metric that never applies has no column


def test_twins_share_their_run(recorded, results):
    found = tidy(recorded, results).to_pandas().drop(columns="row")
    assert found.iloc[:15].reset_index(drop=True).equals(found.iloc[15:30].reset_index(drop=True))


def test_seconds_are_the_seeds_share_of_its_block(recorded, results):
    found = tidy(recorded, results).to_pandas()
    assert set(found["seed"]) == {0, 1, 2}  # the last block trains seed 3 as well, which no row asks for
    assert {found[found["seed"] == seed].iloc[4]["seconds"] for seed in (1, 2)} == {0.404 / 2}


def test_tables_from_mlflow_are_those_from_the_records(recorded, results):
    from_records = all_bytes(collect(recorded, results))
    log_experiment(recorded, results)
    shutil.rmtree(results / "tables")
    assert all_bytes(collect(recorded, results, "mlflow")) == from_records
    shutil.rmtree(results / "runs")  # nothing of the records is used
    assert all_bytes(collect(recorded, results, f"sqlite:///{results}/mlflow.db")) == from_records
    assert len(from_records) == 6
    values = tidy(recorded, results, "mlflow").column("eval/hurt").to_numpy()
    assert np.isnan(values[0]) and values[1] == np.inf and values[2] == -np.inf


def test_a_second_build_is_the_same_to_the_byte(recorded, results):
    first = all_bytes(collect(recorded, results))
    shutil.rmtree(results / "tables")
    assert all_bytes(collect(recorded, results)) == first


def test_the_csv_holds_the_numbers_of_the_parquet(recorded, results):
    parquet, text, *_ = collect(recorded, results)
    one, other = pd.read_parquet(parquet), pd.read_csv(text)
    assert set(one.pop("partial")) == {""} and other.pop("partial").isna().all()
    pd.testing.assert_frame_equal(one, other, check_exact=True, check_dtype=False)


def test_missing_runs_are_named_and_partial_uses_the_others(recorded, results):
    shutil.rmtree(results / next(c for c in cells([recorded]) if c.hash == recorded.row("mean-only").hash).folder)
    with pytest.raises(UserError, match=r"2 of 6 runs are missing .* row 'mean-only' seed 0 .* --partial"):
        collect(recorded, results)
    found = tidy(recorded, results, partial=True).to_pandas()
    assert found[found["row"] == "mean-only"]["seed"].unique().tolist() == [2]
    assert len(found[found["row"] == "base"]) == 15


def test_without_any_run_partial_does_not_help(experiment, results):
    with pytest.raises(UserError, match="6 of 6 runs are missing"):
        collect(experiment, results, partial=True)


@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "samples.jsonl", "parameters.safetensors"])
def test_a_corrupt_record_is_named(recorded, results, name):
    path = results / cells([recorded])[0].folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        collect(recorded, results)


def test_a_store_without_the_experiment_is_a_sentence(recorded, results):
    with pytest.raises(UserError, match="no experiment 'tiny'"):
        collect(recorded, results, "mlflow")
    (results / "mlflow.db").unlink()
    with pytest.raises(UserError, match="there is no MLflow database"):
        collect(recorded, results, "mlflow")


def test_a_run_that_is_still_written_is_not_read(recorded, results):
    log_experiment(recorded, results)
    remote = client(results)
    run = remote.search_runs([remote.get_experiment_by_name("tiny").experiment_id], "tags.seed = '2'")[0]
    remote.update_run(run.info.run_id, status="RUNNING")
    with pytest.raises(UserError, match="1 of 6 runs are missing in MLflow"):
        collect(recorded, results, "mlflow")


def test_runs_of_older_code_are_marked_where_the_testbed_keeps_them(recorded, results):
    keeps = replace(recorded, testbed=replace(recorded.testbed, stale="keep"))
    assert not tidy(recorded, results).to_pandas()["stale"].any()
    assert tidy(keeps, results).to_pandas()["stale"].all()
    paths = collect(keeps, results)
    assert "older version of the training code" in next(p for p in paths if p.suffix == ".md").read_text()


def test_seeds_may_differ_in_their_number_of_lines(experiment, results):
    def shorten(table):
        for name in table:
            table[name] = table[name][:-1]

    for cell in cells([experiment]):
        write_record(results, cell, change=shorten)
    log_experiment(experiment, results)
    found = tidy(experiment, results)
    assert len(found) == 3 * (5 + 4 + 5)  # each block's last line is gone: seed 1's, and seed 3's
    assert found.to_pandas().equals(tidy(experiment, results, "mlflow").to_pandas())


def test_a_run_that_holds_no_whole_record_is_not_read(recorded, results):
    log_experiment(recorded, results)
    remote = client(results)
    run = remote.search_runs([remote.get_experiment_by_name("tiny").experiment_id], "tags.seed = '2'")[0]
    remote.delete_tag(run.info.run_id, "record")  # as a streamed run that has ended
    with pytest.raises(UserError, match="1 of 6 runs are missing in MLflow"):
        collect(recorded, results, "mlflow")


@pytest.fixture
def server(tmp_path: Path, made_store: Path) -> Iterator[str]:
    """A real MLflow server with a store of its own."""
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(made_store, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1",
    ]  # fmt: skip
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = (folder / "log").open("wb")
    process = subprocess.Popen(command, cwd=folder, env=quiet, stdout=log, stderr=log, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(900):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # asked politely, it takes a quarter of a minute
        process.wait(timeout=20)
        log.close()


@pytest.mark.slow
def test_tables_from_a_server_over_http_are_those_from_the_records(recorded, results, server):
    from_records = all_bytes(collect(recorded, results))
    assert log_experiment(recorded, results, server) == Logged(6, 0)
    assert log_experiment(recorded, results, server) == Logged(0, 6)
    assert all_bytes(collect(recorded, results, server)) == from_records
    remote = client(results, server)
    number = remote.get_experiment_by_name("tiny").experiment_id
    run = remote.search_runs([number])[0]
    assert {file.path for file in remote.list_artifacts(run.info.run_id)} == {"run.json", "samples.jsonl"}
    recorded.path.write_text(recorded.path.read_text().replace("mean-only: {advantage: {scale: none}}", ""))
    log_experiment(rows_only(recorded.path), results, server)
    create_store(results, server, ["tiny", "another"])
    runs = remote.search_runs([number])
    assert sorted(run.data.tags.get("row.small", "-") for run in runs) == ["-"] * 3 + ["base, twin"] * 3


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spec": {"advantage": {"ddof": 1}}}, "the hash is not that of the spec in it"),
        ({"status": "diverged"}, "says diverged, which the seeds in 'diverged' contradict"),
        ({"diverged": {"0": 1}}, "says finished, which the seeds in 'diverged' contradict"),
        ({"diverged": {"9": 1}, "status": "diverged"}, "names diverged seeds that it has not trained"),
        ({"budget": {"rollouts": [1, 1]}}, "budget is not rollouts, tokens, updates of every seed"),
        (
            {"budget": {"rollouts": [1, 1], "tokens": [40, 40], "updates": [3, 3]}},
            "budget differs from the last lines of metrics.parquet",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(recorded, results, change, fault):
    path = results / cells([recorded])[0].folder / "run.json"
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | change)))
    with pytest.raises(UserError, match=fault):
        tidy(recorded, results)


def test_a_failed_exact_control_stands_above_the_summary_in_every_format(recorded, results):
    tables = results / "tables"
    for holds in (False, True):
        control = ControlResult("one-step", "clipping cannot act", holds, "parameters differ", 1.0, 0.0)
        collect(recorded, results, exact=[control])
        for dialect in ("md", "tex", "typ"):
            above = (tables / f"{recorded.name}.{dialect}").read_text().partition("Row")[0]
            assert ("CONTROL FAILED: clipping cannot act: parameters differ" in above) != holds


@pytest.mark.parametrize("command", ["collect", "compare"])
def test_the_exact_controls_are_judged_for_the_tables_though_no_table_of_them_exists(
    experiment, results, monkeypatch, command
):
    whole = load_experiment(experiment.path)
    for cell in cells([whole]):
        write_record(results, cell)
    broken = ControlResult("one-step", "clipping cannot act", False, "parameters differ", 1.0, 0.0)
    monkeypatch.setattr(exact_controls, "exact_controls", lambda: (broken,))
    with pytest.raises(SystemExit):
        main([command, str(experiment.path), "--results", str(results)])
    for dialect in ("md", "tex", "typ"):
        above = (results / "tables" / f"small.{dialect}").read_text().partition("Row")[0]
        assert "CONTROL FAILED: clipping cannot act: parameters differ" in above


def test_tables_of_an_unfinished_grid_say_so_in_every_format(experiment, results):
    whole = load_experiment(experiment.path)  # base and its twin, mean-only, two controls: four runs a seed
    for cell in cells([whole])[1:]:
        write_record(results, cell)
    collect(whole, results, partial=True)
    write_compared(whole, results, partial=True)
    tables = results / "tables"
    there = 12 - len([seed for seed in cells([whole])[0].seeds if seed < 3])
    said = f"Partial: {there} of 12 runs."
    for part in ("", "-comparison", "-claims"):
        for ending in ("md", "tex", "typ"):
            text = (tables / f"small{part}.{ending}").read_text()
            assert said in text.partition("Row" if part != "-claims" else "Verdict")[0], (part, ending)
    for name in ("small.csv", "small-runs.csv", "small-comparison.csv"):
        assert set(pd.read_csv(tables / name)["partial"]) == {said}, name
    assert "partial" in pd.read_csv(tables / "small-claims.csv")
    assert set(pq.read_table(tables / "small-runs.parquet")["partial"].to_pylist()) == {said}
    write_record(results, cells([whole])[0])
    collect(whole, results)
    write_compared(whole, results, "table")
    assert not any(b"Partial" in path.read_bytes() for path in tables.iterdir())


@pytest.mark.parametrize("command", ["collect", "compare"])
@pytest.mark.parametrize("key", ["budget", "digest"])
def test_an_edit_of_budget_or_digest_is_refused_by_name(recorded, results, capsys, command, key):
    path = results / cells([recorded])[0].folder / "run.json"
    stated = json.loads(path.read_text())
    other = {"digest": "0" * 16, "budget": stated["budget"] | {"tokens": [1, 1]}}[key]
    path.write_text(json.dumps(stated | {key: other}))
    with pytest.raises(SystemExit) as ended:
        main([command, str(recorded.path), "--results", str(results), "--partial"])
    assert ended.value.code == 2
    assert f"{path}: differs from the checksum in it; remove" in capsys.readouterr().err
    assert not (results / "tables").exists()


def test_a_table_of_before_the_file_was_edited_lends_no_row_another_ones_runs(recorded, results):
    collect(recorded, results)
    rows = {"base": {}, "twin": {"update": {"clip_low": 0.1}}, "mean-only": {"advantage": {"ddof": 1}}}
    edited = replace(changed(recorded, rows=rows, seeds=2), controls=())
    found = write_compared(edited, results, "table")
    assert [row.row for row in found.rows] == ["base", "twin"], "mean-only is another row now"
    assert found.row("base").seeds == (0, 1) and found.partial == "Partial: 2 of 4 runs."
    rows = {"base": {"advantage": {"eps": 0.5}}, "mean-only": rows["mean-only"]}
    with pytest.raises(UserError, match=r"holds no run of .*small\.yaml as it stands; make it with `grpo-ablate"):
        write_compared(replace(changed(recorded, rows=rows), controls=()), results, "table")
