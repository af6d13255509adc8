"""The example of docs/own-variant.md, exactly as on the page: documented, audited, trained, studied, reported."""

import json
import re
from pathlib import Path

import pytest

from headway.core import plugins
from headway.core.errors import UserError
from headway.recipe.plugins import use
from headway.study.design.study import load_study

PAGE = (Path(__file__).parents[2] / "docs" / "own-variant.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def bench(workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The two files of the page, with a smaller recipe and fewer seeds."""
    monkeypatch.chdir(tmp_path)
    Path("my_attention.py").write_text(block("python"))
    small = f"base: {workshop.recipe}\nchanges: [training.duration=4 steps, training.schedule.warmup=1 step]"
    Path("gaussian.yaml").write_text(block("yaml").replace("base: demo", small).replace("seeds: 4", "seeds: 2"))
    yield tmp_path
    for plugin in plugins.loaded():
        plugins.forget(plugin)
    use()


def test_it_is_as_short_as_stated():
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 30


def test_its_keys_are_documented_and_every_audit_of_a_fresh_model_passes(bench, workshop, command_line):
    changes = [str(workshop.recipe), "--with", "my_attention.py", "model.positions=gaussian"]
    shown = command_line("recipe", *changes)
    assert "# How many tokens back a head looks when training begins.\n    reach: 8.0" in shown.out
    found = {one["audit"]: one["verdict"] for one in command_line("audit", *changes, "--json").json["findings"]}
    by_audit = {
        name: found[name] for name in ("causality", "causal-gradient", "padding", "cache", "kernel", "one-batch")
    }
    assert set(by_audit.values()) == {"pass"} and "fail" not in found.values(), found


@pytest.mark.parametrize("executor", ["here", "pool"])
def test_it_is_compared_with_the_standard_one_in_a_study_with_a_report(bench, command_line, executor: str):
    answer = command_line("study", "run", "gaussian.yaml", "--on", executor, "--workers", "1", "--json")
    assert answer.code == 0, answer.err
    home = bench / "studies" / "gaussian"
    assert (home / "report.html").exists() and len(answer.json["verdicts"]) == 1
    kept = {folder.name: (folder / "plugins" / "my_attention.py").exists() for folder in (home / "runs").iterdir()}
    assert kept == {f"{arm}.seed-{k}": arm == "gaussian" for arm in ("alibi", "gaussian") for k in range(2)}
    status = json.loads((home / "runs" / "gaussian.seed-1" / "run.json").read_text())["status"]
    assert "finished" in json.dumps(status)


def test_code_of_a_study_folder_is_not_run_without_consent_nor_replaced(bench, command_line):
    assert command_line("study", "run", "gaussian.yaml", "--on", "here", "--json").code == 0
    changed = block("python").replace("-0.5", "-0.7")
    Path("my_attention.py").write_text(changed)
    refused = command_line("study", "run", "gaussian.yaml", "--on", "here")
    assert refused.code == 2 and "my_attention.py differs from the copy in the folder" in refused.err
    plugins.forget(plugins.loaded()[0])
    with pytest.raises(UserError, match="--trust"):
        load_study("gaussian")
    assert command_line("study", "results", "gaussian").code == 2
    assert command_line("study", "results", "gaussian", "--trust").code == 0
