"""Records, checkpoints and locks on disk."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from training_specs import demanding, finish, make_loop, make_spec

from grpo_ablate.algorithm.packing import pack, unpack
from grpo_ablate.algorithm.records import Batch, Steps
from grpo_ablate.algorithm.rollout import Rollout
from grpo_ablate.errors import UserError
from grpo_ablate.metrics import METRICS
from grpo_ablate.runs import checkpoint
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.progress import Progress
from grpo_ablate.runs.record import json_bytes, read_record, sealed_bytes
from grpo_ablate.runs.record_files import CHECKED, RECORD, read_samples, sealed, verify
from grpo_ablate.runs.train import run_in_memory, train
from grpo_ablate.spec.identity import from_canonical, spec_hash

SEEDS = range(2, 5)


@pytest.fixture
def trained(tmp_path):
    spec = make_spec(rounds=6, evaluation={"every": 2})
    train(spec, SEEDS, tmp_path / "run", tmp_path / "scratch", testbed="bench")
    return spec, tmp_path


def files(folder):
    return {name: (folder / name).read_bytes() for name in (*CHECKED, "run.json")}


def test_a_record_holds_what_the_loop_did(trained):
    spec, path = trained
    record = read_record(path / "run")
    loop = finish(make_loop(spec, SEEDS))
    columns = loop.history.columns(list(SEEDS))
    assert record.metrics.column_names == list(columns)
    assert record.metrics.column_names[:5] == ["seed", "round", "updates", "rollouts", "tokens"]
    for name, values in columns.items():
        assert str(record.metrics.schema.field(name).type) == ("double" if values.is_floating_point() else "int64")
        assert record.metrics.column(name).null_count == 0  # NaN is a number here, never null
        stored = torch.tensor(record.metrics.column(name).to_pylist(), dtype=values.dtype)
        assert torch.equal(stored.nan_to_num(), values.nan_to_num())
    assert record.metrics.column("seed").to_pylist() == [2] * 4 + [3] * 4 + [4] * 4
    assert record.metrics.column("round").to_pylist() == [0, 2, 4, 6] * 3
    run = record.run
    assert (run["hash"], run["testbed"], run["seeds"]) == (spec_hash(spec), "bench", [2, 3, 4])
    assert run["status"] == "finished" and run["diverged"] == {}
    assert from_canonical(json.dumps(run["spec"])) == spec
    assert run["budget"] == {"rollouts": [96] * 3, "tokens": [96] * 3, "updates": [6] * 3}
    parameters = load_file(path / "run" / "parameters.safetensors")
    assert torch.equal(parameters["logits"], loop.policy.logits.detach())
    for sample in read_samples(path / "run"):
        prompt = next(p for p in spec.task.prompts if p.source == sample["prompt"])
        assert sample["reward"] == next(c.quality for c in prompt.candidates if c.text == sample["response"])
    assert [point[0] for point in record.timing["curve"]] == [0, 2, 4, 6]
    assert record.timing["updates"] == 18 and record.timing["peak_memory_bytes"] > 0
    assert {"commit", "dirty", "versions", "processor", "threads", "command", "started"} <= set(record.provenance)
    assert record.provenance["threads"] == 1


def test_every_metric_of_a_record_is_published_with_its_meaning(tmp_path):
    spec = demanding("resample", evaluation={"samples": 4}, kl={"beta": 0.1, "estimator": "exact"})
    train(spec, SEEDS, tmp_path / "run", tmp_path / "scratch", testbed="bench")
    names = read_record(tmp_path / "run").metrics.column_names[5:]
    known = set(METRICS) | {f"eval/pass_at_{k}" for k in (1, 2, 4)}
    known |= {f"{part}/component_{name}" for part in ("train", "eval") for name in spec.task.components}
    assert set(names) <= known


def test_equal_runs_write_equal_bytes_wherever_and_however_often_they_run(trained, tmp_path):
    spec, path = trained
    train(spec, SEEDS, tmp_path / "other" / "run", tmp_path / "other" / "scratch", testbed="bench")
    assert files(tmp_path / "other" / "run") == files(path / "run")


def test_a_finished_run_is_published_again_without_training(trained, monkeypatch):
    spec, path = trained
    before = files(path / "run")
    timing = (path / "run" / "timing.json").read_bytes()
    for file in (path / "run").iterdir():
        file.unlink()
    monkeypatch.setattr("grpo_ablate.algorithm.loop.Loop.advance", lambda *_: pytest.fail("trained again"))
    train(spec, SEEDS, path / "run", path / "scratch", testbed="bench")
    assert files(path / "run") == before
    assert (path / "run" / "timing.json").read_bytes() == timing


@pytest.mark.parametrize(
    ("name", "harm"),
    [(name, harm) for name in RECORD for harm in ("missing", "cut")] + [(name, "changed") for name in CHECKED],
)
def test_a_damaged_record_is_refused_by_the_name_of_its_file(trained, name, harm):
    file = trained[1] / "run" / name
    if harm == "missing":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if harm == "cut" else content[:-9] + b"9" + content[-8:])
    for read in (read_record, verify):
        with pytest.raises(UserError, match=rf"{name}: .*; remove .*/run to train it again\.$"):
            read(trained[1] / "run")
    if name in ("run.json", "samples.jsonl"):
        with pytest.raises(UserError, match=name):
            read_samples(trained[1] / "run")


NO_RECORD = {
    "run.json": {
        "[]": "is not part of the record of a run",
        '{"hash": 1}': "hash is 1, expected a word",
        '{"seeds": []}': "seeds is [], expected at least 1 entries",
        '{"seeds": [2, 3]}': "metrics.parquet: has not the lines of the seeds in run.json",
        '{"status": "done"}': "status is 'done', expected finished or diverged",
        '{"diverged": []}': "diverged is [], expected a mapping",
        '{"budget": {"updates": 3}}': "budget.updates is 3, expected a list",
        '{"checksums": {}}': "checksums names other files",
    },
    "timing.json": {
        "[" * 100_000: "is not JSON",
        '{"curve": "x"}': "curve is 'x', expected a list",
        '{"curve": [[1, "x"]]}': "curve.0.1 is 'x', expected a number",
        '{"curve": [[1]]}': "curve.0 is [1], expected at least 2 entries",
        '{"seconds": NaN}': "seconds is nan, expected a finite number",
        '{"updates": "3"}': "updates is '3', expected a whole number",
    },
    "provenance.json": {
        "7": "is not part of the record of a run",
        '{"started": "yesterday"}': "started is 'yesterday', expected a date and time as ISO 8601 writes them",
        '{"versions": {"torch": 2}}': "versions.torch is 2, expected a word",
        '{"interrupted": [{}]}': "interrupted.0.commit' is missing",
    },
}
MISSING = {
    "run.json": "schema_version hash spec testbed seeds status diverged digest budget checksums checksum",
    "timing.json": "seconds parts curve peak_memory_bytes updates machine",
    "provenance.json": "commit dirty versions processor threads started interrupted",
}


EDITS = {
    "digest": "0" * 16, "testbed": "other", "seeds": [2, 4], "checksum": "0" * 64, "more": 1,
    "budget": {"rollouts": [], "tokens": [], "updates": []},
}  # fmt: skip


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_run_file_contradicts_its_own_checksum(trained, key):
    path = trained[1] / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: EDITS[key]}))
    for read in (read_record, verify):
        with pytest.raises(UserError, match=r"run\.json: differs from the checksum in it; remove .* to train it"):
            read(path.parent)


def test_the_checksum_of_a_run_file_is_over_what_it_says_and_not_over_its_bytes(trained):
    """Recomputed by hand: sha256 of the compact JSON, keys sorted, without the checksum itself."""
    path = trained[1] / "run" / "run.json"
    run = json.loads(path.read_text())
    stated = run.pop("checksum")
    text = json.dumps(run, sort_keys=True, separators=(",", ":"))
    assert stated == hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps({"checksum": stated, **run}, indent=7))
    assert read_record(path.parent).run == {**run, "checksum": stated}


def test_a_checksum_is_of_what_is_written_where_null_stands_for_what_is_no_number(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(
        sealed_bytes({"loss": [1.5, float("nan")], "kl": float("inf"), "deep": {"a": (float("nan"),)}})
    )
    read = json.loads(path.read_text())
    assert read["loss"] == [1.5, None] and read["kl"] is None and read["deep"] == {"a": [None]}
    assert sealed(read) == read


@pytest.mark.parametrize("name", NO_RECORD)
def test_json_that_is_no_record_is_one_sentence_with_its_file_its_key_and_what_to_do(trained, name):
    path = trained[1] / "run" / name
    sound = json.loads(path.read_text())
    told = {text: words for text, words in NO_RECORD[name].items() if not text.startswith("{")}
    for text, words in NO_RECORD[name].items() - told.items():
        said = sound | json.loads(text)
        told[json.dumps(sealed(said) if name == "run.json" else said)] = words
    for key in MISSING[name].split():
        without = {other: value for other, value in sound.items() if other != key}
        told[json.dumps(without)] = f"the key '{key}' is missing"
    for text, words in told.items():
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            read_record(trained[1] / "run")
        sentence = str(caught.value)
        assert words in sentence and (name in sentence)
        assert sentence.endswith(f"; remove {path.parent} to train it again.") and "\n" not in sentence


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"x":1}', "line 2: the key 'seed' is missing"),
        ("{", "line 2 is not JSON"),
        ("3", "line 2 is not part of the record"),
        ('{"seed":0,"reward":"1","prompt":"a","response":"b"}', "line 2: reward is '1', expected a number"),
    ],
)
def test_a_line_that_is_no_sample_is_named(trained, line, words):
    folder = trained[1] / "run"
    content = (folder / "samples.jsonl").read_text().splitlines()
    (folder / "samples.jsonl").write_text("\n".join([content[0], line, *content[2:]]) + "\n")
    with pytest.raises(UserError, match=r"samples\.jsonl: differs from the checksum in run\.json; remove"):
        read_samples(folder)
    run = json.loads((folder / "run.json").read_text())
    run["checksums"]["samples.jsonl"] = hashlib.sha256((folder / "samples.jsonl").read_bytes()).hexdigest()
    (folder / "run.json").write_text(json.dumps(sealed(run)))
    with pytest.raises(UserError, match=rf"samples\.jsonl: {words}.*; remove .* to train it again"):
        read_samples(folder)


def test_a_table_of_other_columns_or_with_gaps_is_refused(trained):
    folder = trained[1] / "run"
    sound = pq.read_table(folder / "metrics.parquet")
    gap = pa.array([None, *sound["eval/reward"].to_pylist()[1:]], pa.float64())
    place = sound.column_names.index("eval/reward")
    for table, words in (
        (sound.drop_columns(["updates"]), "has not the columns seed, round, updates"),
        (sound.set_column(place, "eval/reward", sound["round"]), "has not the columns"),
        (sound.set_column(place, "eval/reward", gap), "has lines without a number"),
        (sound.slice(0, 4), "has not the lines of the seeds in run.json"),
    ):
        pq.write_table(table, folder / "metrics.parquet")
        run = json.loads((folder / "run.json").read_text())
        run["checksums"]["metrics.parquet"] = hashlib.sha256((folder / "metrics.parquet").read_bytes()).hexdigest()
        (folder / "run.json").write_text(json.dumps(sealed(run)))
        with pytest.raises(UserError, match=rf"metrics\.parquet: {words}"):
            read_record(folder)


def test_a_record_is_whole_before_run_json_appears(tmp_path, monkeypatch):
    spec = make_spec(rounds=2)
    seen = []
    replace = type(tmp_path).replace

    def watched(self, target):
        result = replace(self, target)
        if target.parent == tmp_path / "run":
            seen.append((target.name, sorted(p.name for p in target.parent.iterdir())))
        return result

    monkeypatch.setattr(type(tmp_path), "replace", watched)
    train(spec, range(1), tmp_path / "run", tmp_path / "scratch", testbed="bench")
    assert seen[-1][0] == "run.json" and len(seen[-1][1]) == 6
    assert all("run.json" not in there for name, there in seen[:-1])


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/scratch: cannot be written"):
        train(make_spec(rounds=2), range(1), tmp_path / "run", tmp_path / "file" / "scratch", testbed="bench")
    with pytest.raises(UserError, match=r"file/run: cannot be made: .*file is not a folder"):
        train(make_spec(rounds=2), range(1), tmp_path / "file" / "run", tmp_path / "scratch", testbed="bench")


def test_numbers_that_are_not_finite_are_null_in_json():
    assert json.loads(json_bytes({"a": [1.5, float("nan"), float("inf")], "b": "[ x ]"})) == {
        "a": [1.5, None, None],
        "b": "[ x ]",
    }


def test_parquet_is_read_by_another_reader(trained):
    table = pq.read_table(trained[1] / "run" / "metrics.parquet", columns=["seed", "eval/reward"])
    assert table.num_rows == 12


def test_packing_a_record_and_unpacking_it_loses_nothing():
    shape = (2, 3, 4)
    numbers = torch.rand(*shape, dtype=torch.float64)
    steps = Steps(torch.ones(*shape, 2, dtype=torch.int64), torch.rand(*shape, 2), torch.ones(*shape, 2) > 0)
    batch = Batch(
        prompts=torch.arange(6).view(2, 3), tokens=torch.ones(*shape, 1, dtype=torch.int64),
        token=torch.ones(*shape, 1) > 0, present=numbers > 0.5, truncated=numbers > 0.9, reward=numbers,
        components={"a": numbers + 1, "b.c": numbers + 2}, sampler_logprobs=numbers[..., None],
        old_logprobs=numbers[..., None], steps=steps,
    )  # fmt: skip
    rollout = Rollout(batch, batch, torch.tensor([True, False]), torch.tensor([False, False]))
    packed = pack(rollout)
    again = pack(unpack(Rollout, packed))
    assert packed.keys() == again.keys()
    assert all(torch.equal(packed[name], again[name]) for name in packed)


IDENTITY = {"spec": "a", "seeds": "0-1", "training code": "b"}
TENSORS = {"x": torch.arange(6.0).view(2, 3), "mask": torch.tensor(True), "empty": torch.zeros(0, 3)}


def test_a_checkpoint_returns_what_was_saved(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, {**TENSORS, "same": TENSORS["x"][:1].expand(4, 3)}, IDENTITY, {"note": [1, None]})
    found = checkpoint.load(path, IDENTITY)
    assert found.notes == {"note": [1, None]}
    assert torch.equal(found.tensors["x"], TENSORS["x"]) and found.tensors["mask"].item() is True
    assert found.tensors["same"].shape == (4, 3) and found.tensors["empty"].shape == (0, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_tensors_that_share_memory_are_saved_each_for_itself(tmp_path):
    path, one = tmp_path / "checkpoint.safetensors", torch.arange(6.0).reshape(2, 3)
    tensors = {"whole": one, "again": one, "turned": one.T, "part": one[1], "wide": one[:, :1].expand(2, 4)}
    checkpoint.save(path, tensors, IDENTITY, {})
    found = checkpoint.load(path, IDENTITY).tensors
    assert {name: value.tolist() for name, value in found.items()} == {
        "whole": [[0, 1, 2], [3, 4, 5]], "again": [[0, 1, 2], [3, 4, 5]], "turned": [[0, 3], [1, 4], [2, 5]],
        "part": [3, 4, 5], "wide": [[0, 0, 0, 0], [3, 3, 3, 3]],
    }  # fmt: skip


def test_a_checkpoint_that_cannot_be_written_is_an_os_error_with_the_systems_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        checkpoint.save(tmp_path / "gone" / "checkpoint.safetensors", {"x": torch.ones(2)}, IDENTITY, {})


@pytest.mark.parametrize("key", IDENTITY)
def test_a_checkpoint_of_another_run_is_named_and_not_used(tmp_path, key):
    checkpoint.save(tmp_path / "c", TENSORS, IDENTITY, {})
    with pytest.raises(checkpoint.UnusableError, match=f"another {key}"):
        checkpoint.load(tmp_path / "c", IDENTITY | {key: "z"})


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "pickle", "header"])
def test_a_damaged_checkpoint_is_not_used_and_nothing_in_it_is_executed(tmp_path, harm):
    path, spec = tmp_path / "scratch" / "checkpoint.safetensors", make_spec(rounds=3)
    train(spec, range(1), tmp_path / "first", tmp_path / "scratch", testbed="bench")
    content = bytearray(path.read_bytes())
    if harm == "cut":
        content = content[:-10]
    elif harm == "flipped":
        content[-10] ^= 1
    elif harm == "empty":
        content = bytearray()
    elif harm == "pickle":
        import pickle

        class Harmful:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "executed"),)

        content = bytearray(pickle.dumps(Harmful()))
    else:
        content[8:40] = b"\xff" * 32
    path.write_bytes(content)
    train(spec, range(1), tmp_path / "second", tmp_path / "scratch", testbed="bench")
    assert files(tmp_path / "second") == files(tmp_path / "first")
    assert not (tmp_path / "executed").exists()
    checkpoint.load(path, {})  # a sound one has taken its place


def test_an_unused_checkpoint_is_a_sentence_on_stderr(tmp_path, capsys):
    train(make_spec(rounds=3), range(1), tmp_path / "run", tmp_path / "scratch", testbed="bench")
    train(make_spec(rounds=2), range(1), tmp_path / "run", tmp_path / "scratch", testbed="bench")
    assert (
        "not used, the training starts anew: it was written by a run with another spec" in capsys.readouterr().err
    )
    assert read_record(tmp_path / "run").run["budget"]["updates"] == [2]


def test_a_second_process_waits_for_the_lock_and_gives_up_with_a_sentence(tmp_path):
    with exclusive(tmp_path):
        held = (tmp_path / "lock").read_text().strip()
        began = time.monotonic()
        with (
            pytest.raises(UserError, match=rf"process {held} has been training this run"),
            exclusive(tmp_path, 0.2),
        ):
            pass
        assert time.monotonic() - began < 5
    told = pytest.raises(UserError, match=r"stopped while waiting for process \d+: SIGTERM")
    with exclusive(tmp_path), told, exclusive(tmp_path, 5, stop=lambda: "SIGTERM"):
        pass
    with exclusive(tmp_path, 0.2):  # free again
        pass


def test_the_lock_dies_with_its_holder(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from grpo_ablate.runs.lock import exclusive
from grpo_ablate.runs.progress import Progress
with exclusive(Path({str(tmp_path)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        handle = os.open(tmp_path / "lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    finally:
        holder.kill()
        holder.wait()
    with exclusive(tmp_path, 5):
        pass


def test_training_in_memory_is_the_same_training(trained):
    spec, path = trained
    table = read_record(path / "run").metrics
    last = [
        r
        for s, r, k in zip(*(table.column(n).to_pylist() for n in ("seed", "eval/reward", "round")), strict=True)
        if k == 6
    ]
    assert run_in_memory(spec, SEEDS)["eval/reward"] == last


def test_a_diverged_seed_is_marked_and_published(tmp_path):
    spec = make_spec(
        qualities=[[1] + [0] * 11], rounds=22, sampling={"prompts": 1, "group_size": 3},
        reward={"transform": "affine", "scale": 1e308}, advantage={"scale": "none"},
        optimizer={"learning_rate": 1e-308},
    )  # fmt: skip
    train(spec, range(6), tmp_path / "run", tmp_path / "scratch", testbed="bench")
    record = read_record(tmp_path / "run")
    assert record.run["status"] == "diverged" and 0 < len(record.run["diverged"]) < 6
    for seed, round in record.run["diverged"].items():
        rows = [
            k
            for s, k in zip(record.metrics["seed"].to_pylist(), record.metrics["round"].to_pylist(), strict=True)
            if s == int(seed)
        ]
        assert rows[-1] == round


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_is_quiet_for_a_second_then_moves_on_a_terminal_and_is_plain_elsewhere(stream, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("grpo_ablate.runs.progress.time.monotonic", lambda: now[0])
    told = stream()
    progress = Progress("bench 12345678", 100, told)
    for round in range(1, 5):
        now[0] += 0.2
        progress.round(round, 0.5)
    assert told.getvalue() == ""
    for round in range(5, 101):
        now[0] += 0.2
        progress.round(round, None)
    progress.close()
    text = told.getvalue()
    assert "bench 12345678: round 5 of 100, reward 0.5000, 19 s left" in text
    lines = text.split("\r") if stream is Terminal else text.splitlines()
    assert len(lines) > 50 if stream is Terminal else len(lines) == 2
    assert text.endswith("\n")
