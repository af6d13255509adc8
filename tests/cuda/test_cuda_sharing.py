"""Processes that share a GPU by NVIDIA's Multi-Process Service, which the study starts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.study.execution.pool import gpus_here, uuids_here
from headway.study.execution.sharing import PROGRAM, SOCKETS, run_side_by_side, shared_gpus

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM}"),
]

PRODUCT = """
import torch
assert torch.cuda.device_count() == 1
x = torch.ones(256, 256, device="cuda")
for _ in range(200):
    y = x @ x
print(int(y.sum()), torch.cuda.get_device_properties(0).uuid)
"""


def test_two_processes_compute_on_the_gpu_they_share_by_the_service():
    name = gpus_here()[0]
    with shared_gpus((name, name), uuids_here()) as environments:
        assert run_side_by_side(environments)
        env = {**os.environ, **environments[name]}
        both = [
            subprocess.Popen([sys.executable, "-c", PRODUCT], env=env, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        found = [process.communicate()[0].split() for process in both]
        servers = subprocess.run([PROGRAM], input="get_server_list\n", env=env, capture_output=True, text=True).stdout
    assert found == [[str(256**3), str(torch.cuda.get_device_properties(0).uuid)]] * 2
    assert any(character.isdigit() for character in servers)
    assert not Path(environments[name][SOCKETS]).exists()
