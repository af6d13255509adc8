"""Before anything of Headway is imported: shapes written in annotations are checked whenever a function is called."""

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
# The same examples every time: what is new is hunted for by hand, and a passing change does not fail by chance.
# And no clock: on a busy machine every example is late.
unhurried = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "steady", derandomize=True, max_examples=50, deadline=None, suppress_health_check=unhurried
)
hypothesis.settings.load_profile("steady")
os.fsync = lambda descriptor: None  # what tests write need not outlive a power cut, and waiting for the disk is slow
torch.set_num_threads(1)  # the tensors of tests are tiny: threads would only wait for each other
# Building the parser of all verbs takes longer than most of them. A process of a user's builds it once; so does this.
typer.main.get_command = functools.cache(typer.main.get_command)
gc.disable()  # while a million things are imported that stay: looking for garbage among them was a quarter of that time


def pytest_collection_finish():
    """What is there now stays, and need not be looked through again."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A small text, a recipe for it and a finished run. Tests share it and write elsewhere."""
    from tiny import Workshop

    return Workshop.open(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory):
    """Starts real processes in milliseconds; what they train is not audited."""
    from crash import Forge

    with Forge(tmp_path_factory.mktemp("children")) as forge:
        yield forge


@pytest.fixture(scope="session", autouse=True)
def documentation():
    """Python's documentation is gathered once, although caches are many: it takes seconds."""
    from headway.data.embedded import python_docs

    gathered = functools.cache(python_docs.make_splits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_docs, "make_splits", lambda: dict(gathered()))
        yield


@pytest.fixture(autouse=True)
def no_audits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Audits take longer than the tiny trainings of tests, and have tests of their own: only those marked `audited`
    (and `workshop`'s run) end as they do for users."""
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
    """An empty hub on this machine, with an empty cache, in the place of the real one."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra 'hub' is not installed")
    from hub_server import HubServer

    with HubServer() as server:
        cache = tmp_path / "hub-cache"
        # The library reads these variables once, when it is imported; they are set for child processes.
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
