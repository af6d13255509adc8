"""Fixtures for commands: a folder with a recipe, a text and a run."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def home(workshop, tmp_path, monkeypatch) -> Path:
    """The current folder of a test: a recipe, its text, and runs/ with a finished run that may be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    shutil.copytree(workshop.runs, tmp_path / "runs")
    shutil.copy(workshop.recipe, tmp_path)
    shutil.copy(workshop.text, tmp_path)
    return tmp_path


@pytest.fixture
def headway(home, command_line):
    """Runs a command line in this process."""
    return command_line
