"""Throwaway projects: this workflow and package over experiments that train in a second each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from project import Project, build, build_language


def _fixtures(write: Callable[[Path], Project], whole: str, copy: str) -> tuple[Any, Any]:
    """Two fixtures: a project whose every target has been made, and a copy, Snakemake's memory included.

    The first is made once and not to be changed; the copy is a test's own.
    """

    @pytest.fixture(scope="session", name=whole)
    def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
        project = write(tmp_path_factory.mktemp(whole) / "project")
        project.run("--cores", "2")
        return project

    @pytest.fixture(name=copy)
    def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
        return request.getfixturevalue(whole).copied(tmp_path / "project")

    return finished, copied


finished, project = _fixtures(build, "finished", "project")
finished_language, language = _fixtures(build_language, "finished_language", "language")
