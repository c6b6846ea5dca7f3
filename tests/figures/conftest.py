"""Invented tables of every shipped experiment, and their figures, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import invented
import pytest
import thinned

from grpo_ablate.analysis import figures


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the tables and figures of every shipped experiment; not to be written to."""
    folder = tmp_path_factory.mktemp("results")
    invented.write(folder, *invented.NAMES)
    for name in invented.NAMES:
        figures.draw(invented.experiment(name), folder)
    return folder


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of every exact experiment, their tables enumerated over a few points."""
    folder = tmp_path_factory.mktemp("exact")
    thinned.write(folder)
    for experiment in thinned.experiments().values():
        figures.draw(experiment, folder)
    return folder


@pytest.fixture
def place(results: Path, exact: Path, tmp_path: Path) -> Path:
    """A folder with the paper's sources and results of its own."""
    for made in (results, exact):
        shutil.copytree(made, tmp_path / "results", dirs_exist_ok=True)
    shutil.copytree(invented.ROOT / "paper", tmp_path / "paper", ignore=shutil.ignore_patterns("*.pdf"))
    return tmp_path
