"""Imports go one way, and commands import only what they need."""

import ast
import json
import resource
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
def test_importing_headway_imports_nothing_heavy(module):
    heavy = ("torch", "numpy", "pydantic", "matplotlib", "tokenizers", "transformers", "scipy")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["study", "factors", "questions", "claims", "measures", "mistakes", "__init__"])
def test_a_study_is_described_without_torch(module):
    """Editors, web pages and `--help` read and write designs too."""
    heavy = ("torch", "numpy", "scipy", "tokenizers", "transformers")
    code = f"import sys, headway.study.design.{module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_training_imports_only_what_it_always_needs():
    """Every import delays the first step."""
    unused = ("scipy", "transformers", "matplotlib", "triton", "torch._dynamo", "torch._inductor")
    unused += ("sklearn", "sacrebleu", "jinja2", "optuna", "peft", "pyarrow", "huggingface_hub")
    modules = "headway.experiment.population, headway.cli.printing, headway.cli.progress"
    code = f"import sys, {modules}; print([name for name in {unused} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_garbage_collection_is_off_while_training_is_imported():
    """None of the imports is garbage, and searching for garbage took a twelfth of the start-up time."""
    code = """
import gc, sys
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]) if "torch" in sys.modules else None)
from headway.cli.options import importing
with importing():
    import headway.experiment.population
print(looked, gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[] True True"


def test_the_help_of_a_verb_is_fast():
    """In half a second of CPU time; the test allows a second, because machines that run tests are busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "headway.cli", "study", "plan", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "Usage" in answer.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize(
    "verb", [["recipes"], ["cases"], ["runs", "--runs", "here"], ["runs", "--runs", "here", "--json"]]
)
def test_lists_need_no_torch(verb, tmp_path):
    """And without anything else that loads slowly."""
    run = tmp_path / "here" / "one"
    run.mkdir(parents=True)
    facts = {"format": 1, "headway": "0.1", "headline": "perplexity", "status": "finished", "step": 3, "reason": None}
    (run / "run.json").write_text(json.dumps(facts))
    (run / "recipe.yaml").write_text("seed: 0\n")
    (run / "scores.json").write_text(json.dumps({"valid.perplexity": {"value": 2.5, "label": "of nothing"}}))
    heavy = ("torch", "numpy", "scipy", "tokenizers", "transformers", "matplotlib")
    code = f"import sys; from headway.cli import app; app({verb}, standalone_mode=False)"
    code += f"; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    said, imported = answer.stdout.rstrip().rsplit("\n", 1)
    assert imported == "[]"
    assert {"recipes": "demo", "cases": "B7", "runs": "2.5"}[verb[0]] in said


def test_no_two_classes_have_the_same_name():
    """So a name in a traceback is unambiguous."""
    homes: dict[str, list[str]] = {}
    for file in sorted((PROJECT / "headway").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(file.relative_to(PROJECT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
