"""A kind of task that Headway does not know, defined here from spec to evidence, goes through the whole pipeline:
trained alone and as a population, audited, scored, studied, reported and shown. No file of the package knows of it.

The task: how often the letter `a` occurs in a row of letters. The output is a number, not a class.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway import tasks
from headway.audit.audit import AUDITS, Baseline, Outcome, audit, failed, passed, read_report
from headway.audit.baselines import CheapMethods
from headway.audit.evidence import Evidence
from headway.audit.probe import Probe
from headway.audit.probing import Probing
from headway.core import random
from headway.core.errors import UserError, did_you_mean
from headway.data.labelled.batches import RowTable, Shuffled
from headway.data.spec import DataSpec
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Char, TokenizerSpec
from headway.experiment.audit import audit_recipe
from headway.experiment.evaluate import classify_text, sample_text, score_splits_again
from headway.experiment.inspect import look
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.look.gradients import Explained
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.spec import ModelSpec
from headway.nn.masks import Everything
from headway.nn.replicated import Linear
from headway.nn.seeding import seed
from headway.recipe.recipe import Recipe, from_tree
from headway.recipe.sweep import varied
from headway.run.folder import Run, open_run
from headway.scoring.metrics import LOSS, METRICS, Metric, register
from headway.scoring.score import Score
from headway.study.conclude import conclude
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.tasks.abilities import Draw
from headway.tasks.task import TASKS, Task

# --- data ------------------------------------------------------------------------------------------------------------


class Letters(DataSpec):
    """Rows of letters, generated from this spec alone."""

    kind: Literal["letters"] = "letters"
    rows: int = 240
    """Rows of train; valid has a quarter as many."""
    tokenizer: TokenizerSpec = Char()

    def row_length(self, context: int) -> int:
        return context


@dataclass(frozen=True, eq=False)
class Rows:
    texts: list[str]
    ids: np.ndarray
    table: np.ndarray
    lengths: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return np.array([text.count("a") for text in self.texts])

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class LetterRows:
    name: str
    tokenizer: Tokenizer
    splits: dict[str, Rows]
    identity: str

    def split(self, name: str) -> Rows:
        if name not in self.splits:
            raise UserError(f"there is no split '{name}' of letters{did_you_mean(name, self.splits)}")
        return self.splits[name]


def drawn(spec: Letters, longest: int) -> LetterRows:
    splits, tokenizer = {}, spec.tokenizer.learn("abcd")
    for split, rows in (("train", spec.rows), ("valid", spec.rows // 4)):
        generator = random.generator("letters", split, rows, longest)
        lengths = torch.randint(3, longest + 1, (rows,), generator=generator).numpy()
        table = torch.randint(4, (rows, longest), generator=generator).numpy()
        inside = np.arange(longest) < lengths[:, None]
        texts = ["".join("abcd"[k] for k in row[:n]) for row, n in zip(table, lengths, strict=True)]
        splits[split] = Rows(texts, table[inside].astype(np.int32), np.where(inside, table, 0), lengths)
    return LetterRows("letters", tokenizer, splits, f"letters {spec.rows} {longest}")


# --- model -----------------------------------------------------------------------------------------------------------


class CounterSpec(BackboneSpec):
    """An encoder with a number as its output: the sum over its tokens."""

    reads = "letters"
    kind: Literal["counter"] = "counter"

    def warnings(self) -> Iterator[str]:
        if self.layers > 1:
            yield "to count letters, one layer is enough"

    def build(self, vocabulary: int, seeds: Sequence[int], device: str = "cpu") -> "Counter":
        model = Counter(self, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


class Counter(Backbone):
    def __init__(self, spec: CounterSpec, vocabulary: int, replicas: int, device: str):
        super().__init__(spec, vocabulary, replicas, device, Everything())
        self.spec = spec
        self.output = Linear(replicas, spec.width, 1, gain=0.05)  # initially close to zero

    def forward(
        self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> Float[Tensor, "R B 1"]:
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        said = self.output(x)
        return (said if padding_mask is None else said * padding_mask[..., None]).sum(2)

    def loss(self, batch: Any, state: None = None) -> tuple[Float[Tensor, "R"], None]:
        off = self(batch.inputs, batch.padding_mask)[..., 0] - batch.targets
        return off.square().mean(1), None


# --- task ------------------------------------------------------------------------------------------------------------

ERROR = register(Metric("error", "letters off", lower_is_better=True), __name__)


@audit("model")
def counts_letters(probe: Probe) -> Outcome:
    """A single letter has an answer.

    Not much of an audit, but one of this task alone.
    """
    said = probe.answer(probe.sentences[:, :1, :1])
    return passed(float(said), "one letter has an answer") if said.isfinite().all() else failed(None, "it has none")


class Numbers(Probing):
    per_token, looks_ahead = False, True
    audits = (counts_letters,)

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        return (answers[..., 0] - batch.targets).square().mean()


@dataclass(frozen=True)
class Counting(Task):
    kind, models, example = "counter", "counters", 'headway look {run} "…"'
    metrics = (LOSS, ERROR)
    headline = ERROR
    cheap_methods = CheapMethods("mean of train")
    probing = Numbers()

    data: LetterRows

    @classmethod
    def load(cls, recipe: Recipe) -> "Counting":
        assert isinstance(recipe.data, Letters)
        return cls(recipe, drawn(recipe.data, recipe.segment))

    @classmethod
    def rebuild(cls, run: Run, device: str) -> Counter:
        return run.recipe.model.build(run.tokenizer.size, [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> Counter:
        return self.recipe.model.build(self.data.tokenizer.size, seeds, device)

    def sampler(self, seeds: Sequence[int], device: str):
        train, batch = self.data.split("train"), self.recipe.training.batch
        return Shuffled(buckets=1).build(RowTable(train.table, train.lengths, train.counts, device), batch, seeds)

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.training.batch * self.recipe.segment

    @property
    def flops_per_step(self) -> int:
        return 3 * self.tokens_per_step * self.recipe.model.flops_per_token(self.recipe.segment)

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split).ids)

    def check_split(self, split: str) -> None:
        self.data.split(split)

    def _off(self, model: Counter, split: str) -> Float[np.ndarray, "R N"]:
        rows, width = self.data.split(split), self.recipe.segment
        ids = torch.as_tensor(rows.table).expand(model.replicas, -1, -1)
        padding_mask = (torch.arange(width) < torch.as_tensor(rows.lengths)[:, None]).expand_as(ids)
        with torch.no_grad():
            return model.eval()(ids, padding_mask)[..., 0].numpy() - rows.counts

    def evaluate(self, model: Counter) -> list[dict[str, float]]:
        squares = {split: (self._off(model, split) ** 2).mean(1) for split in self.recipe.training.evaluate_on}
        return [{f"{split}.loss": float(of[r]) for split, of in squares.items()} for r in range(model.replicas)]

    def score(self, model: Counter, splits: Sequence[str]) -> list[list[Score]]:
        found: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            for scores, off in zip(found, self._off(model, split), strict=True):
                scores.append(Score(f"{split}.loss", float((off**2).mean()), f"squared error · {split}"))
                scores.append(Score(f"{split}.error", float(np.abs(off).mean()), f"letters off · {split}"))
        return found

    def title(self, model: Counter) -> list[str]:
        return [f"letters: {len(self.data.split('train'))} rows to train on"]

    def gather_evidence(self) -> "Counts":
        return Counts(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        return Explained(answer, [f"{answer.item():.1f}"], answer.tolist(), "d count", "count")


class Counts(Evidence):
    task: Counting

    def measure_baselines(self) -> Sequence[Baseline]:
        mean, found = self.task.data.split("train").counts.mean(), []
        for split in self.task.scored_splits:
            off = float(np.abs(self.task.data.split(split).counts - mean).mean())
            found.append(Baseline("mean of train", Score(f"{split}.error", off, f"of always answering {mean:.2f}")))
        return found

    def beside(self, split: str) -> dict[str, Any]:
        counts = self.task.data.split(split).counts
        chance = float(((counts - self.task.data.split("train").counts.mean()) ** 2).mean())
        return {"chance": chance, "chance_is": "the mean count"}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))


# --- from here on it is used like any other task ---------------------------------------------------------------------

TREE = {
    "data": {"kind": "letters"},
    "model": {"kind": "counter", "layers": 1, "width": 16, "context": 12, "mixer": {"heads": 2}, "positions": "none"},
    "training": {
        "duration": "60 steps",
        "batch": 16,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup": "4 steps"},
        "evaluate_every": "20 steps",
        "checkpoint_every": "30 steps",
    },
}
OPEN = (DataSpec.variants, ModelSpec.variants, TASKS, METRICS, AUDITS)
WRITTEN = [(registry, name, registry[name]) for registry in OPEN for name in registry.of_module(__name__)]
for registry in OPEN:  # so that other tests do not depend on whether this file was collected
    registry.forget(__name__)


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    for registry, name, thing in WRITTEN:
        registry.add(name, thing, __name__)
    yield
    for registry in OPEN:
        registry.forget(__name__)


def recipe(*changes: str) -> Recipe:
    return from_tree(copy.deepcopy(TREE), "toy", overrides=changes)


@pytest.fixture(scope="module")
def population(known, tmp_path_factory) -> list[Run]:
    """Two seeds, trained as one population."""
    home = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_CACHE", str(home / "cache"))
        names, recipes = varied(recipe(), "toy", ["seed=0..1"])
        return train(recipes, names, home / "runs")


def test_it_learns_alone_as_in_a_population(population, tmp_path):
    (alone,) = train([recipe("seed=1", "training.duration=10 steps")], ["alone"], tmp_path)
    losses = [[line["loss"] for line in run.metrics() if "loss" in line][:5] for run in (alone, population[1])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 5
    (cheap,) = tasks.load(recipe()).evidence.baselines
    assert all(run.scores()[1].value < cheap.score.value / 2 for run in population)


def test_it_is_scored_again_from_its_folder(population):
    run = open_run(population[0].name, population[0].folder.parent)
    assert score_splits_again(run) == run.scores()


@pytest.mark.audited
def test_it_is_audited_as_a_run_and_as_a_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    (run,) = train([recipe()], ["toy"], tmp_path)
    report = read_report(run.folder)
    assert report is not None and report.failures == []
    found = {finding.audit for finding in report.findings}
    assert {"padding", "batch-invariance", "order", "loss", "one-batch", "moved", "kernel", "beats-chance"} <= found
    assert {"counts-letters", "did-it-train"} <= found, "its own audit, and those of training"
    assert {"causality", "cache", "initial-loss", "beats-counting"} <= set(report.not_run)
    assert not {"targets", "tied"} & (found | set(report.not_run)), "those of other tasks"
    assert [baseline.method for baseline in report.baselines] == ["mean of train"]
    before = audit_recipe(recipe())
    assert before.failures == [] and before.finding("padding") is not None


def test_a_fault_in_it_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    plain = Counter.forward
    monkeypatch.setattr(Counter, "forward", lambda self, ids, padding_mask=None: plain(self, ids))
    assert {"padding", "loss"} & {finding.audit for finding in audit_recipe(recipe()).failures}


@pytest.mark.audited
def test_two_arms_of_it_get_a_verdict_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    study = Study.model_validate(
        {
            "title": "Does a higher rate help to count?",
            "base": recipe("training.duration=20 steps").model_dump(mode="json"),
            "arms": {"slow": ["training.optimizer.learning_rate=1e-5"], "fast": []},
            "seeds": 3,
            "questions": [
                {"kind": "better", "arm": "fast", "than": "slow", "on": "valid.error"},
                {"kind": "better", "arm": "slow", "than": "mean of train", "on": "valid.error"},
            ],
            "look": [{"text": "abacad", "arm": "fast"}],
        }
    )
    execute(study, tmp_path / "study", InProcess())
    found = conclude(tmp_path / "study")
    assert found.results.missing == {}
    assert [verdict.outcome for verdict in found.verdicts] == ["better", "worse"]
    assert "letters off" in found.verdicts[0].sentence
    assert found.report is not None and "mean of train" in found.report.read_text("utf-8")


def test_its_maps_are_shown(population):
    picture, numbers = look([population[0]], "abacad", "heads", None, None, "auto")
    assert len(numbers["heads"]) == 2 and picture.grids
    _, numbers = look([population[0]], "abacad", "gradients", None, None, "auto")
    (said,) = numbers["predictions"]
    model, _ = load_model(population[0])
    assert said["count"] == pytest.approx(model(torch.tensor([[[0, 1, 0, 2, 0, 3]]])).item(), rel=1e-4)
    assert len(said["lengths"]) == 6


def test_commands_support_it(population, command_line):
    runs = str(population[0].folder.parent)
    listed = command_line("runs", "--runs", runs)
    assert listed.code == 0 and "letters off" in listed.out and "valid" in listed.out
    scored = command_line("score", population[0].name, "--runs", runs)
    assert scored.code == 0 and "letters off · valid" in scored.out
    with pytest.raises(
        UserError, match=r"writing text is only possible with language models, but .* is a counter; try headway look"
    ):
        sample_text(population[0], "a", Draw(1), "auto", print)
    with pytest.raises(
        UserError, match=r"classifying is only possible with classifiers, but .* is a counter; try headway look"
    ):
        classify_text(population[0], "a", "auto")


def test_mistakes_and_warnings_are_reported_as_for_any_task():
    with pytest.raises(UserError, match="a counter learns from letters data, not from text data"):
        recipe("data.kind=text")
    assert "to count letters, one layer is enough" in recipe("model.layers=2").warnings()
