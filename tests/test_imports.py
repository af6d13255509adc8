"""Imports go one way, and looking at Headway costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


def test_the_contracts_of_pyproject_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    answer = subprocess.run([*command, "--no-cache"], cwd=PROJECT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 broken" in answer.stdout


@pytest.mark.parametrize("module", ["headway", "headway.cli", "headway.core.errors"])
def test_importing_it_brings_nothing_heavy_along(module):
    heavy = ("torch", "numpy", "pydantic", "matplotlib", "tokenizers", "transformers", "scipy")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
