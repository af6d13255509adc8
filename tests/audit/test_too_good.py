"""Scores that are too good: a forgotten mask is reported wherever the score is shown, and predictable text raises no
alarm."""

import random
from pathlib import Path

import pytest

from headway.audit.audit import Report, read_report
from headway.core import plugins
from headway.experiment.train import train
from headway.recipe.plugins import use
from headway.recipe.recipe import load
from headway.scoring.metrics import PERPLEXITY

FORGETFUL = '''
from dataclasses import replace
from typing import Literal

from headway.nn.attention import Attention, AttentionSpec, SelfProjection
from headway.nn.masks import Everything


class OpenSpec(AttentionSpec):
    """Attention whose author forgot the mask."""

    kind: Literal["open"] = "open"

    def build(self, replicas, width, out_gain, needs):
        return Open(self, SelfProjection(replicas, width, self), self._kernel(needs), replicas, width, out_gain)


class Open(Attention):
    def forward(self, x, context, state=None):
        return super().forward(x, replace(context, mask=Everything(), views=[]), state)
'''
RECIPE = """
data: {{source: files, path: "{path}"}}
model: {{layers: 1, width: 32, context: 48, mixer: {{heads: 2}}, positions: {positions}}}
training:
  duration: {steps} steps
  batch: 8
  optimizer: {{learning_rate: 1e-2}}
  schedule: {{warmup: 10 steps}}
  evaluate_every: 50 steps
  evaluate_tokens: 2000
"""
STUDY = """
title: Is a mask needed?
base: {recipe}
plugins: [open_attention.py]
arms: {{masked: [], open: [model.mixer.kind=open]}}
seeds: 2
questions:
  - {{kind: better, arm: open, than: masked, on: valid.perplexity}}
"""
pytestmark = pytest.mark.audited
LOUD = {"causality", "causal-gradient", "too-good-to-be-true"}


def letters(count: int, by: random.Random) -> str:
    return "".join(by.choices("abcdefghijklmnop", k=count))


def written(name: str, text: str, steps: int, positions: str = "rotary") -> Path:
    """Writes a recipe for this text."""
    Path(f"{name}.txt").write_text(text)
    recipe = Path(f"{name}.yaml")
    recipe.write_text(RECIPE.format(path=Path(f"{name}.txt").absolute(), steps=steps, positions=positions))
    return recipe


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    Path("open_attention.py").write_text(FORGETFUL)
    yield tmp_path
    for plugin in plugins.loaded():
        plugins.forget(plugin)
    use()


@pytest.fixture
def noise(bench: Path) -> Path:
    """Random letters, which nothing can predict."""
    by = random.Random(0)
    return written("noise", "\n".join(letters(by.randint(20, 60), by) for _ in range(400)), steps=100)


def test_a_mask_forgotten_by_a_plugin_is_reported_with_every_score(noise, command_line):
    trained = command_line("train", str(noise), "--with", "open_attention.py", "model.mixer.kind=open", "--name", "x")
    assert trained.code == 0, trained.err
    report = read_report(Path("runs") / "x")
    assert isinstance(report, Report) and {finding.audit for finding in report.failures} >= LOUD
    scored = command_line("score", "x", "--with", "open_attention.py", "--trust")
    for said in (trained.words, scored.words):
        assert all(f"fail {name}" in said for name in LOUD)
        assert PERPLEXITY.name in said and "sees the future" in said and "the answer has reached the input" in said


@pytest.mark.slow
def test_a_verdict_mentions_that_an_arm_sees_the_future(noise, command_line):
    Path("study.yaml").write_text(STUDY.format(recipe=noise))
    answer = command_line("study", "run", "study.yaml", "--on", "here", "--json")
    assert answer.code == 0, answer.err
    (verdict,) = answer.json["verdicts"]
    assert "open sees the future" in verdict["sentence"]


def test_predictable_text_raises_no_alarm(bench):
    """Each word is repeated eight times: a 5-gram cannot predict the next letter, but the letter six places back
    does."""
    by = random.Random(1)
    recipe = written("copies", "\n".join((letters(5, by) + " ") * 8 for _ in range(400)), 200, "learned")
    (run,) = train([load(str(recipe), ())], ["copies"], bench / "runs")
    report = read_report(run.folder)
    finding = report.finding("too-good-to-be-true")
    # far below the 5-gram baseline, so the audit did apply
    assert finding.verdict == "pass" and finding.value < 1 / 3, finding
    assert not report.failures
