"""Key files are dated so that Snakemake reruns exactly what other content made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.workflow.keys import LONG_AGO, first_line, settle


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text("{}")
    os.utime(path, (2e9, 2e9))  # later than now: clocks differ between machines
    return path


def test_a_key_that_its_output_records_is_older_than_any_output(tmp_path: Path, output: Path) -> None:
    key = tmp_path / "keys/a.txt"
    settle(key, "k1", "k1", output)
    assert key.stat().st_mtime == LONG_AGO
    assert first_line(key) == "k1"


def test_a_key_that_its_output_does_not_record_is_newer_than_the_output(tmp_path: Path, output: Path) -> None:
    key = tmp_path / "a.txt"
    settle(key, "k2", "k1", output)
    assert key.stat().st_mtime > output.stat().st_mtime
    assert first_line(key) == "k2"


def test_a_stale_key_stays_as_it_is_until_its_output_is_made_again(tmp_path: Path, output: Path) -> None:
    key = tmp_path / "a.txt"
    settle(key, "k2", "k1", output)
    dated = key.stat().st_mtime
    settle(key, "k2", "k1", output)
    assert key.stat().st_mtime == dated
    settle(key, "k2", "k2", output)
    assert key.stat().st_mtime == LONG_AGO


def test_a_key_that_returns_to_an_earlier_content_does_not_look_like_it(tmp_path: Path, output: Path) -> None:
    key = tmp_path / "a.txt"
    settle(key, "k1", None, output)
    first = key.read_text()
    settle(key, "k1", "k2", output)  # Snakemake ignores a newer input with the content that it remembers
    assert key.read_text() != first
    assert first_line(key) == "k1"


def test_words_follow_the_key(tmp_path: Path, output: Path) -> None:
    key = tmp_path / "a.txt"
    settle(key, "k1", "k1", output, "rows: 3")
    assert key.read_text() == "k1\nrows: 3\n"


def test_a_key_that_cannot_be_written_is_one_sentence(tmp_path: Path, output: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/a\.txt: cannot be written"):
        settle(tmp_path / "file" / "a.txt", "k", None, output)
