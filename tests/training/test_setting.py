"""Device, precision and compilation are chosen once, with reasons."""

import os
import platform
import resource

import pytest
import torch

from headway.core.errors import UserError
from headway.training.parallel import Fsdp
from headway.training.processes import Processes
from headway.training.setting import choose, keep_freed_memory
from headway.training.spec import TrainingSpec


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "as it was is put back afterwards")
        monkeypatch.delenv(variable)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def test_without_a_gpu_everything_is_plain_with_reasons(no_cuda):
    setting = choose(TrainingSpec(), width=128)
    assert (setting.device.type, setting.precision, setting.compiled) == ("cpu", torch.float32, False)
    assert [reason.split(":")[0] for reason in setting.reasons] == ["cpu", "float32", "not compiled"]
    assert "no CUDA device found" in setting.reasons[0]


@pytest.mark.parametrize("able", [True, False])
def test_the_note_about_bf16_on_a_cpu_depends_on_its_instructions(no_cuda, able: bool, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able}, raising=False)
    for width in (128, 512):
        by_default = choose(TrainingSpec(), width)
        assert by_default.precision == torch.float32
        assert ("training.precision=bf16" in by_default.reasons[1]) == able
    asked = choose(TrainingSpec(precision="bf16"), 512)
    assert asked.precision == torch.bfloat16 and ("float32 would be faster" in asked.reasons[1]) == (not able)


def test_with_a_gpu_everything_is_fast_with_reasons(two_gpus):
    setting = choose(TrainingSpec(), width=128)
    assert (setting.device.type, setting.precision) == ("cuda", torch.bfloat16)
    assert (setting.compiled, setting.may_compile) == (False, True)  # training decides this itself
    assert "Some GPU" in setting.reasons[0] and "SM 90" in setting.reasons[1]


def test_compiled_programs_are_stored_in_the_cache(two_gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    choose(TrainingSpec(), width=128)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled" / "programs")
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"  # as set by the user


def test_an_old_gpu_has_no_bf16(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    setting = choose(TrainingSpec(), width=128)
    assert setting.precision == torch.float32 and "SM 75 has no bf16" in setting.reasons[1]


def test_explicit_settings_are_used(two_gpus):
    setting = choose(TrainingSpec(device="cuda:1", precision="float32", compile="off"), 128)
    assert (str(setting.device), setting.precision, setting.compiled) == ("cuda:1", torch.float32, False)
    assert all(reason.endswith("as requested") for reason in setting.reasons[:3])
    setting = choose(TrainingSpec(device="cpu", precision="bf16", compile="on"), 128)
    assert (str(setting.device), setting.precision, setting.compiled) == ("cpu", torch.bfloat16, True)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:", "mps", "", "cuda:-1"])
def test_an_unknown_device_is_refused_with_a_message(no_cuda, device: str):
    with pytest.raises(UserError, match=f"training.device: .*'{device}'"):
        choose(TrainingSpec(device=device), 128)


def test_a_missing_gpu_is_refused_with_a_message(no_cuda):
    with pytest.raises(UserError, match=r"no CUDA device is available here; set training.device=cpu or auto"):
        choose(TrainingSpec(device="cuda"), 128)


def test_a_gpu_beyond_the_last_is_refused_with_a_message(two_gpus):
    with pytest.raises(UserError, match="there is no 'cuda:2'; the last one is cuda:1"):
        choose(TrainingSpec(device="cuda:2"), 128)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32)])
def test_autocast_computes_products_in_the_chosen_precision(no_cuda, precision, dtype):
    with choose(TrainingSpec(precision=precision), 128).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


# More than one process


def test_each_process_uses_its_own_gpu_with_the_reason(two_gpus):
    setting = choose(TrainingSpec(), 128, Processes(rank=3, world=4, local_rank=1))
    assert str(setting.device) == "cuda:1" and not setting.recorded and setting.compiled
    assert setting.reasons[0] == "cuda:1: one Some GPU per process; they communicate by NCCL"
    assert any("not recorded as a CUDA graph" in reason for reason in setting.reasons)
    assert "4 processes (ddp)" in setting.reasons[-1]


def test_more_processes_than_gpus_are_refused_with_a_message(two_gpus):
    with pytest.raises(UserError, match=r"the last on this machine is cuda:1; start torchrun with --nproc-per-node 2"):
        choose(TrainingSpec(), 128, Processes(rank=2, world=3, local_rank=2))


def test_one_gpu_for_several_processes_is_refused_with_a_message(two_gpus):
    with pytest.raises(UserError, match="'cuda:1' is one GPU, but there are 2 processes"):
        choose(TrainingSpec(device="cuda:1"), 128, Processes(rank=0, world=2))


def test_processes_on_cpus_use_gloo(no_cuda):
    setting = choose(TrainingSpec(parallel=Fsdp()), 128, Processes(rank=0, world=2))
    assert setting.device.type == "cpu" and "gloo" in setting.reasons[0]
    assert "not compiled: fsdp" in setting.reasons[2] and "each keeps 1/2 of the weights" in setting.reasons[-1]


def test_freed_memory_is_kept_for_the_next_step():
    """With any C library: keeping memory is a request, which may be repeated."""
    keep_freed_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        torch.ones(1 << 20)  # 4 MB, whose pages would otherwise be allocated again
    pages = 50 * (4 << 20) // resource.getpagesize()
    if platform.libc_ver()[0] == "glibc":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages / 4
    keep_freed_memory()
