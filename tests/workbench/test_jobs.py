"""Jobs started from the page: processes that survive the server."""

import os
import signal
import subprocess
import sys
import time

import pytest
from bench_tools import asker, make_run

from headway.core.errors import UserError
from headway.core.files import locked
from headway.workbench.bench import Bench
from headway.workbench.jobs import Jobs, stop


def ended(jobs, name, seconds=20.0):
    until = time.monotonic() + seconds
    while (told := jobs.told(name))["running"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    return told


def test_a_job_has_its_output_and_exit_code(tmp_path):
    jobs = Jobs(tmp_path)
    name = jobs.start(["runs", "--runs", "nowhere"])["job"]
    told = ended(jobs, name)
    assert told["code"] == 0 and "no runs in nowhere" in told["said"]
    wrong = ended(jobs, jobs.start(["case", "Z9"])["job"])
    assert wrong["code"] == 2 and "Z9" in wrong["said"]
    assert [one["command"] for one in jobs.all()] == ["headway case Z9", "headway runs --runs nowhere"]


def test_a_job_has_its_own_session_and_is_known_to_a_later_server(tmp_path):
    jobs = Jobs(tmp_path)
    told = jobs.start(["runs"])
    assert os.getsid(told["process"]) == told["process"] != os.getsid(0)
    assert Jobs(tmp_path).told(told["job"])["command"] == "headway runs"
    ended(jobs, told["job"])
    with pytest.raises(UserError, match="no job"):
        jobs.told("none")


def test_a_run_that_is_not_training_cannot_be_stopped(tmp_path):
    run = make_run(tmp_path / "one")
    with pytest.raises(UserError, match="nothing to stop"):
        stop(run)
    # locked by this process, which must not interrupt itself
    with locked(run), pytest.raises(UserError, match="nothing to stop"):
        stop(run)


def test_stop_interrupts_the_training_process(tmp_path):
    run = make_run(tmp_path / "one")
    code = "import signal, time; from pathlib import Path; from headway.core.files import locked\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell ignores it in background processes
    code += f"with locked(Path({str(run)!r})): time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        while not (run / "lock").exists() or not (run / "lock").read_text():
            time.sleep(0.02)
        answer = asker(Bench(tmp_path)).post("/api/stop/run/one")
        assert answer.json() == {"stopped": "one", "process": process.pid}
        assert process.wait(10) == -signal.SIGINT
