"""The server as a process: what it prints, that it survives being killed, and many connections at once."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_tools import TOKEN, add_lines, make_run, served

from headway.core.errors import UserError
from headway.workbench import serve
from headway.workbench.bench import Bench


@contextmanager
def opened(folder, *words):
    """`headway open FOLDER …`, after it has printed its address."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / ".state")}
    command = [sys.executable, "-m", "headway.cli", "open", str(folder), "--no-browser", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    process = subprocess.Popen(command, **pipes)
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(3))
        found = re.search(r"(http://\S+?)/\?token=(\S+)", said)
        assert found, said + process.stderr.read()
        yield process, *found.groups()
    finally:
        process.kill()
        process.communicate()


def ask(address, path, token=TOKEN):
    request = urllib.request.Request(f"{address}{path}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_killed_and_started_again_it_has_the_same_address(tmp_path):
    make_run(tmp_path / "runs" / "one")
    with opened(tmp_path) as (process, address, token):
        assert len(ask(address, "/api/table", token)["runs"]) == 1
        (kept,) = (tmp_path / ".state" / "headway" / "workbench").iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        process.send_signal(signal.SIGKILL)
    with opened(tmp_path) as (_, again, same):
        assert (again, same) == (address, token)
        assert len(ask(again, "/api/table", same)["runs"]) == 1
        assert "torch" not in Path(f"/proc/{_.pid}/maps").read_text()


def test_a_thousand_idle_connections_do_not_block_others(tmp_path):
    make_run(tmp_path / "runs" / "one")
    serve._allow_files()
    idle = []
    with served(Bench(tmp_path)) as address:
        host, port = address.removeprefix("http://").split(":")
        try:
            for _ in range(1000):
                idle.append(socket.create_connection((host, int(port)), timeout=5))
            began = time.monotonic()
            assert len(ask(address, "/api/table")["runs"]) == 1
            assert time.monotonic() - began < 10
        finally:
            for one in idle:
                one.close()


def test_a_connection_without_a_request_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "FIRST_REQUEST", 0.2)
    with served(Bench(tmp_path)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-")  # and never an end of it
            try:
                left = slow.recv(100)
            except ConnectionResetError:
                left = b""
            assert left == b""


def test_a_step_is_sent_to_every_watcher_within_seconds(tmp_path):
    run = make_run(tmp_path / "runs" / "one", status="started")
    with served(Bench(tmp_path)) as address:
        at = ask(address, "/api/metrics/runs/one")["at"]
        url = f"{address}/api/events?topic=run:runs/one@{at}"
        watching = [
            urllib.request.urlopen(urllib.request.Request(url, headers={"authorization": f"Bearer {TOKEN}"}), timeout=5)
            for _ in range(20)
        ]
        time.sleep(0.6)
        add_lines(run, {"step": 21, "loss": 1.25})
        began = time.monotonic()
        for one in watching:
            lines = iter(one.readline, b"")
            told = next(next(lines) for line in lines if line == b"event: metrics\n")
            assert json.loads(told.removeprefix(b"data: "))["lines"] == [{"step": 21, "loss": 1.25}]
        assert time.monotonic() - began < 3.0  # benchmarks.workbench measures it; here the machine may be busy
        for one in watching:
            one.close()


def test_listening_on_another_host_is_warned_about(tmp_path):
    with opened(tmp_path, "--host", "0.0.0.0") as (process, address, token):
        port = address.rpartition(":")[2]
        assert ask(f"http://127.0.0.1:{port}", "/api/table", token)["runs"] == []
        process.kill()
        assert "warning" in process.stderr.read()


def test_paths_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="no folder"):
        serve.serve(tmp_path / "none", "127.0.0.1", None, False, False, False)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="cannot listen"):
        serve.serve(tmp_path, "127.0.0.1", taken.getsockname()[1], False, False, False)
    with pytest.raises(UserError, match="cannot listen"):
        serve.serve(tmp_path, "192.0.2.1", None, False, False, False)


def test_which_hosts_are_this_machine():
    assert all(map(serve.is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(serve.is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_it_ends_at_once_and_silently_while_pages_watch(tmp_path):
    make_run(tmp_path / "runs" / "one")
    with opened(tmp_path) as (process, address, token):
        url = f"{address}/api/events?topic=runs"
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=20) as watching:
            watching.readline()
            process.send_signal(signal.SIGINT)
            watching.read()
        process.wait(20)
        assert process.stderr.read() == ""
