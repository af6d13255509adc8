"""Helpers for tests of the workbench: requests without a server, and run folders made without training."""

import asyncio
import importlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from headway.core.errors import UserError
from headway.core.files import write_json
from headway.workbench.app import create_app
from headway.workbench.bench import Bench
from headway.workbench.serve import server_of
from headway.workbench.workers import AnsweringProcesses

TOKEN = "a-token-that-nobody-guesses"
HOST = "127.0.0.1:8765"
RECIPE = """# Where every random number comes from.
seed: {seed}

# Which text.
data:
  # Where it comes from.
  source: python-docs

# A decoder.
model:
  # How many blocks are stacked.
  layers: {layers}
"""


def asker(bench: Bench, token: str | None = TOKEN) -> TestClient:
    """A client that sends the token in a header, as programs do."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    client = TestClient(create_app(bench, TOKEN, {HOST}), base_url=f"http://{HOST}", headers=headers)
    client.follow_redirects = False
    return client


def make_run(folder: Path, steps: int = 20, status: str = "finished", **facts: Any) -> Path:
    """A run folder as left by training."""
    folder.mkdir(parents=True)
    layers, seed = facts.pop("layers", 2), facts.pop("seed", 0)
    (folder / "recipe.yaml").write_text(RECIPE.format(layers=layers, seed=seed), "utf-8")
    lines = [{"step": step, "loss": 4.0 / step, "norm": 1.0, "rate": 1e-3} for step in range(1, steps + 1)]
    add_lines(folder, *lines, {"step": steps, "scores": {"valid.loss": 2.5}})
    command = ["headway", "train", "demo", "--name", folder.name]
    write_json(folder / "environment.json", {"command": command, "device": "cpu", "versions": {"headway": "0.1.0"}})
    score = {"value": 12.5, "label": "perplexity per token (char) · valid"}
    write_json(folder / "scores.json", {"valid.perplexity": score})
    findings = [
        {"audit": "causality", "verdict": "fail", "value": 0.5, "sentence": "it sees the future", "seconds": 0.1},
        {"audit": "overlap", "verdict": "pass", "value": 0.0, "sentence": "nothing is in both", "seconds": 0.1},
    ]
    write_json(folder / "audit.json", {"findings": findings, "not_run": {"padding": "there is none"}, "baselines": []})
    known = {
        "format": 1,
        "headway": "0.1.0",
        "name": folder.name,
        "recipe_hash": "abc",
        "status": status,
        "step": None if status == "started" else steps,
    }
    times = {"created": "2026-01-02T03:04:05+00:00", "headline": "perplexity", "steps": steps}
    write_json(folder / "run.json", {**known, "reason": None, **times, **facts})
    return folder


def add_lines(folder: Path, *lines: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def served(bench: Bench, hosts: tuple[str, ...] = ("127.0.0.1",)) -> Iterator[str]:
    """A real server in a thread; yields its address, without the token."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = server_of(create_app(bench, TOKEN, {f"{host}:{port}" for host in hosts}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(10)


class AnsweringHere(AnsweringProcesses):
    """Answers in this process instead of others, which would have to import torch. `fails`: the message of the error it
    raises instead."""

    fails: str | None = None

    def __init__(self) -> None:
        super().__init__(most=0)

    async def ask(self, function: str, about: str = "", **given: Any) -> Any:
        if self.fails:
            raise UserError(self.fails)
        module, _, name = function.partition(":")
        return await asyncio.to_thread(getattr(importlib.import_module(module), name), **given)
