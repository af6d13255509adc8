"""CUDA and Triton are started in a thread where there is a GPU; here both are pretended."""

import sys
import threading
from types import ModuleType

import pytest

from headway.core import gpu_start


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """The device file of a driver."""
    path = tmp_path / "nvidiactl"
    path.touch()
    monkeypatch.setattr(gpu_start, "DRIVER", path)
    return path


@pytest.fixture
def cuda(monkeypatch):
    """What is called, in order."""
    torch, called = ModuleType("torch"), []
    torch.cuda = ModuleType("torch.cuda")  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.is_available = lambda: True
    torch.cuda.init = lambda: called.append("init")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(gpu_start, "load_kernel_compiler", lambda: called.append("compiler"))
    return called


def test_cuda_is_started_before_the_compiler(driver, cuda):
    gpu_start.start_gpu_meanwhile()
    gpu_start.wait_for_gpu()
    assert cuda == ["init", "compiler"]
    assert not any(thread.name == gpu_start.THREAD for thread in threading.enumerate())


def test_without_a_driver_nothing_is_started(driver, cuda):
    driver.unlink()
    gpu_start.start_gpu_meanwhile()
    gpu_start.wait_for_gpu()
    assert cuda == []


def test_a_gpu_that_cannot_be_started_is_reported_by_the_one_who_needs_it(driver, cuda, monkeypatch, capsys):
    def broken():
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(sys.modules["torch"].cuda, "init", broken)
    gpu_start.start_gpu_meanwhile()
    gpu_start.wait_for_gpu()
    assert cuda == [] and capsys.readouterr() == ("", "")


def test_without_triton_nothing_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it could not be imported
    gpu_start.load_kernel_compiler()
