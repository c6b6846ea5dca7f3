"""A throwaway project: this workflow and package over experiments that train in a second each."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Project, build, build_language


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose every target has been made. Not to be changed: ``fresh`` is a copy that may be."""
    project = build(tmp_path_factory.mktemp("workflow") / "project")
    project.run("--cores", "2")
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, Snakemake's memory included."""
    return finished.copied(tmp_path / "project")


@pytest.fixture(scope="session")
def finished_language(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same of a tiny language model: a warm start, two rows, two controls. Not to be changed."""
    project = build_language(tmp_path_factory.mktemp("language") / "project")
    project.run("--cores", "2")
    return project


@pytest.fixture
def language(finished_language: Project, tmp_path: Path) -> Project:
    """A copy of the finished project of the language model."""
    return finished_language.copied(tmp_path / "project")
