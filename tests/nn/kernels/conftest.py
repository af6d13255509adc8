"""The kernels for a GPU, run as programs on a CPU."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from triton_on_cpu import triton_on_cpu

from headway.nn.kernels import fused, launching


@pytest.fixture
def kernels(monkeypatch):
    found = spec_from_file_location("kernels_on_cpu", Path(fused.__file__).with_name("fused_kernels.py"))
    assert found is not None and found.loader is not None
    made = module_from_spec(found)
    with triton_on_cpu():
        found.loader.exec_module(made)
        monkeypatch.setattr(launching, "kernels", lambda: made)
        yield made
