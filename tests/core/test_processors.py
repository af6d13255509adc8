"""The number of processors that a process may use."""

import os

from headway.core import processors


def test_a_container_may_have_fewer_cores_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    for told, number in (("200000 100000", 2), ("250000 100000", 3), ("5000 100000", 1), ("max 100000", 64), ("", 64)):
        (tmp_path / "cpu.max").write_text(told)
        assert processors.cores(tmp_path / "cpu.max") == number
    assert processors.cores(tmp_path / "nothing") == 64
