"""Shared fixtures. Shape checks are installed first, before any module of Headway is imported."""

import functools
import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest
import torch
import typer.main
from shapes import check_shapes_of

LOOKING = [f"headway.look.{module}" for module in ("head_statistics", "reading", "maps", "gradients")]
check_shapes_of(
    [
        *("headway.nn", "headway.models", "headway.scoring", "headway.core.random"),
        *("headway.training.optimizers", "headway.training.adam"),
        *("headway.solve.geometry", "headway.solve.construction", "headway.solve.kronecker", *LOOKING),
    ]
)
# Derandomised, so that a change does not fail by chance; searching for new examples is done by hand. No deadline,
# because on a busy machine any example can be slow.
unhurried = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "steady", derandomize=True, max_examples=50, deadline=None, suppress_health_check=unhurried
)
hypothesis.settings.load_profile("steady")
os.fsync = lambda descriptor: None  # tests do not need to survive a power cut, and fsync is slow
torch.set_num_threads(1)  # the tensors are tiny, so several threads would only wait for each other
# Building the parser of all verbs takes longer than running most of them. A real process builds it once; so do the
# tests.
typer.main.get_command = functools.cache(typer.main.get_command)
# The imports create a million lasting objects; garbage collection took a quarter of their time.
gc.disable()


def pytest_collection_finish():
    """Excludes all objects that exist by now from garbage collection."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A small text, a recipe for it and a finished run. Tests share them and write elsewhere."""
    from tiny import Workshop

    return Workshop.open(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory):
    """Starts real processes in milliseconds, without audits."""
    from crash import Forge

    with Forge(tmp_path_factory.mktemp("children")) as forge:
        yield forge


@pytest.fixture(scope="session", autouse=True)
def documentation():
    """Gathers Python's documentation once for all caches, because that takes seconds."""
    from headway.data.embedded import python_docs

    gathered = functools.cache(python_docs.make_splits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_docs, "make_splits", lambda: dict(gathered()))
        yield


@pytest.fixture(autouse=True)
def no_audits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Audits take longer than tiny trainings and have their own tests, so they only run in tests marked `audited`, and
    for the run in `workshop`."""
    from headway.audit.audit import Report

    if "audited" not in request.keywords:
        monkeypatch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [Report()] * len(runs))


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs `headway …` in this process."""
    from command_line import Answer

    from headway.cli import main

    def run(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["headway", *words])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty local hub, with an empty cache, instead of the real one."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra 'hub' is not installed")
    from hub_server import HubServer

    with HubServer() as server:
        cache = tmp_path / "hub-cache"
        # huggingface_hub reads these variables only when it is imported; they are set for child processes.
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield server
