"""A kernel that agreed is not compared again on the same machine, unless something it depends on has changed."""

import json
import threading
from contextlib import nullcontext

import pytest
import torch

from headway.core.files import checksum_of_files
from headway.data import cache
from headway.nn.kernels import comparison_cache, trusted

CPU = torch.device("cpu")
H200 = {"torch": "2.11", "triton": "3.6", "gpu": "NVIDIA H200"}


class Kernel:
    """A kernel with this error, which counts how often it was compared."""

    def __init__(self, off: float = 0.0):
        self.off, self.times = off, 0

    def is_trusted(self, *case) -> bool:
        """As in a process that has just started."""

        def check(device, *case) -> float:
            self.times += 1
            return self.off

        trusted._verdicts.clear()
        return trusted.trusted("norm", CPU, check, *case)


@pytest.fixture(autouse=True)
def on_a_gpu(tmp_path, monkeypatch):
    """As far as the cache is concerned."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trusted, "_verdicts", {})
    monkeypatch.setattr(comparison_cache, "machine", lambda device: H200)


def kept():
    return [entry.path for entry in cache.entries()]


def test_a_kernel_that_agrees_is_compared_once():
    kernel = Kernel(1e-6)
    assert [kernel.is_trusted(64, torch.float32) for _ in range(3)] == [True] * 3 and kernel.times == 1
    assert len(kept()) == 1  # in a folder that `headway cache` lists
    assert kernel.is_trusted(128, torch.float32) and kernel.times == 2  # another width is another case
    assert cache.clear(cache.entries()) > 0
    assert kernel.is_trusted(64, torch.float32) and kernel.times == 3


def test_a_kernel_that_does_not_agree_is_compared_every_time(caplog):
    kernel = Kernel(0.5)
    assert [kernel.is_trusted(64, torch.float32) for _ in range(2)] == [False] * 2
    assert kernel.times == 2 and not kept() and caplog.text.count("not used") == 2


@pytest.mark.parametrize("changed", ["torch", "triton", "gpu"])
def test_another_machine_is_another_comparison(monkeypatch, changed):
    kernel = Kernel()
    assert kernel.is_trusted(64)
    monkeypatch.setattr(comparison_cache, "machine", lambda device: H200 | {changed: "another"})
    assert kernel.is_trusted(64) and kernel.times == 2


def test_another_source_is_another_comparison(monkeypatch):
    kernel = Kernel()
    assert kernel.is_trusted(64)
    monkeypatch.setattr(comparison_cache, "checksum_of_files", lambda *sources: "another")
    assert kernel.is_trusted(64) and kernel.times == 2


def test_the_sources_of_kernels_and_checks_are_included(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("x = 1")
    other.write_text("x = 2")
    assert checksum_of_files(one) != checksum_of_files(other) != checksum_of_files(one, other)


@pytest.mark.parametrize(
    "spoilt", [b"", b"\0\xff", b"[]", b'"off"', b'{"off": 0.0}', b'{"off": true, "of": {}}', b"[" * 100_000]
)
def test_a_damaged_entry_is_compared_again(spoilt):
    kernel = Kernel()
    assert kernel.is_trusted(64)
    (path,) = kept()
    path.write_bytes(spoilt)
    assert kernel.is_trusted(64) and kernel.times == 2
    assert kernel.is_trusted(64) and kernel.times == 2  # the entry was written again


@pytest.mark.parametrize("off", [0.5, float("nan"), -1.0, "0", None])
def test_an_entry_with_a_bad_error_is_compared_again(off):
    kernel = Kernel()
    assert kernel.is_trusted(64)
    (path,) = kept()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"off": off}))
    assert kernel.is_trusted(64) and kernel.times == 2


def test_an_entry_of_another_comparison_is_ignored():
    kernel = Kernel()
    assert kernel.is_trusted(64)
    (path,) = kept()
    content = path.read_bytes()
    assert kernel.is_trusted(128)
    (other,) = set(kept()) - {path}
    other.write_bytes(content)
    assert kernel.is_trusted(128) and kernel.times == 3


def test_without_a_cache_a_kernel_is_compared_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file"))
    kernel = Kernel()
    assert kernel.is_trusted(64) and kernel.is_trusted(64) and kernel.times == 2


def test_the_entry_of_a_kernel_that_fails_later_is_removed():
    assert trusted.by_kernel("norm", CPU, lambda device: 0.0, (), lambda: 5) == 5
    assert kept()
    assert trusted.by_kernel("norm", CPU, lambda device: 0.0, (), lambda: 1 / 0) is None
    assert not kept()


def test_on_a_cpu_nothing_is_cached(monkeypatch):
    monkeypatch.undo()
    assert comparison_cache.machine(CPU) is None


GPU = torch.device("cuda:0")


@pytest.fixture
def on_its_gpu(monkeypatch):
    """Comparisons for a GPU, which run on a CPU here."""
    monkeypatch.setattr(trusted, "_in_this_thread", lambda device: nullcontext())


def asked(names, off=0.0, running=None):
    """Ask for kernels of these names, and count comparisons."""
    told, compared = [], []

    def check(device, name) -> float:
        if running is not None:
            running.wait(10)
        compared.append(name)
        return off

    told = [trusted.trusted("norm", GPU, check, name) for name in names]
    return told, compared


def test_kernels_that_are_asked_for_together_are_compared_at_the_same_time(on_its_gpu):
    """Each comparison waits until all of them have begun."""
    running = threading.Barrier(4)
    with trusted.compared_together():
        told, compared = asked("abcd", running=running)
        assert told == [False] * 4 and not compared
        assert asked("a")[0] == [False]  # asked for once more: still one comparison
    assert sorted(compared) == [*"abcd"]
    assert asked("abcd") == ([True] * 4, [])
    assert len(kept()) == 4


def test_a_kernel_that_is_wrong_is_refused_among_others_too(on_its_gpu, caplog):
    with trusted.compared_together():
        asked("a"), asked("b", off=0.5)
    assert asked("ab") == ([True, False], []) and caplog.text.count("not used") == 1


def test_only_known_kernels_are_used_where_building_one_does_not_pay(on_its_gpu):
    assert asked("a") == ([True], ["a"])
    with trusted.using_known_kernels() as in_vain:
        assert asked("ab") == ([True, False], [])
    assert [kernel.case for kernel in in_vain.values()] == [("b",)]
    assert asked("b") == ([True], ["b"])  # it was not refused, only postponed
    trusted._verdicts.clear()
    with trusted.using_known_kernels():
        assert asked("ab") == ([True, True], [])  # known from the cache
    assert not trusted._postponed


def test_kernels_on_a_cpu_are_compared_at_once_everywhere():
    """They need not be built."""
    with trusted.using_known_kernels():
        assert trusted.trusted("norm", CPU, lambda device: 0.0)
