"""Faults planted into data and training are each caught by the audit meant for them, and clean data raises no alarm."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import cache_in, tiny_recipe

from headway import tasks
from headway.audit.audit import Report, run_audits
from headway.audit.baselines import bag_of_words, language_baselines
from headway.audit.data.rows import ROW_AUDITS, RowSet
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.data.tokens import TOKEN_AUDITS, TokenSet
from headway.audit.training import TRAINING_AUDITS
from headway.audit.training.curve import TrainingCurve
from headway.data.labelled.batches import ShuffledSampler
from headway.data.running import sources
from headway.data.vocabularies import Bpe, Word
from headway.experiment.train import train
from headway.recipe.recipe import load as load_recipe
from headway.scoring.reading import Reading

# --- text --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docs() -> dict[str, str]:
    return sources.read_splits("python-docs", None, 0.1)


def alarms(report: Report) -> dict[str, str]:
    return {finding.audit: finding.verdict for finding in report.findings if finding.verdict != "pass"}


def tokens(texts: dict[str, str], vocabulary_of: str, spec: Word | Bpe) -> TokenSet:
    tokenizer = spec.learn(vocabulary_of)
    ids = {split: tokenizer.encode(text).ids for split, text in texts.items()}
    return TokenSet(ids, tokenizer.size, tokenizer.unknown, tokenizer.pieces)


def test_clean_documentation_raises_no_alarm(docs):
    assert alarms(run_audits(TEXT_AUDITS, TextSet(docs))) == {}
    part = {**docs, "train": docs["train"][:300_000]}
    assert alarms(run_audits(TOKEN_AUDITS, tokens(part, part["train"], Bpe(size=1000)))) == {}


def test_text_of_test_in_train(docs):
    leaked = docs["test"][: len(docs["test"]) // 3]
    texts = {"train": docs["train"] + leaked, "test": docs["test"]}
    assert alarms(run_audits(TEXT_AUDITS, TextSet(texts))) == {"repeated-text": "fail"}


@pytest.mark.parametrize("every", [10, 50])
def test_split_by_line_of_one_document(docs, every):
    lines = docs["train"].splitlines()
    texts = {
        "train": "\n".join(line for k, line in enumerate(lines) if k % every),
        "test": "\n".join(lines[::every]),
    }
    found = alarms(run_audits(TEXT_AUDITS, TextSet(texts)))
    assert found.pop("split-by-line") == "fail"
    assert found in ({}, {"nearly-repeated-text": "warn"})  # which is right: the split cut pages in two


def test_vocabulary_built_on_test(docs):
    part = {"train": docs["train"][:300_000], "test": docs["test"]}
    both = tokens(part, part["train"] + part["test"], Word())
    assert alarms(run_audits(TOKEN_AUDITS, both))["vocabulary-from-train"] == "fail"
    honest = tokens(part, part["train"], Word())
    assert "vocabulary-from-train" not in alarms(run_audits(TOKEN_AUDITS, honest))


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paragraphs(docs) -> RowSet:
    """A clean labelled set: paragraphs, labelled by whether their number of letters is even."""
    rows = {
        split: [" ".join(part.split()) for part in docs[split].split("\n\n") if len(part.split()) > 12][:3000]
        for split in ("train", "test")
    }
    return RowSet(rows, {split: [("even", "odd")[len(row) % 2] for row in part] for split, part in rows.items()})


def planted(clean: RowSet, change, labels=None) -> dict[str, str]:
    """What fails if a third of the test rows are added to train with this change. (Test rows that resemble each other
    then also resemble train rows; a warning about that is right.)"""
    some = list(clean.rows["test"][::3])
    rows = {**clean.rows, "train": [*clean.rows["train"], *map(change, some)]}
    theirs = labels or list(clean.labels["test"][::3])
    report = run_audits(ROW_AUDITS, RowSet(rows, {**clean.labels, "train": [*clean.labels["train"], *theirs]}))
    assert {f.audit for f in report.warnings} <= {"seen-rows-nearly", "conflicting-labels"}
    return {f.audit: f.verdict for f in report.failures}


def test_clean_rows_raise_no_alarm(paragraphs):
    assert alarms(run_audits(ROW_AUDITS, paragraphs)) == {}


def test_rows_of_test_in_train(paragraphs):
    assert planted(paragraphs, lambda row: row) == {"seen-rows": "fail"}


def test_rows_of_test_in_train_with_other_case_and_punctuation(paragraphs):
    dressed = planted(paragraphs, lambda row: "  " + row.upper().replace(" ", "  ").replace(".", " …"))
    assert dressed == {"seen-rows-normalised": "fail"}


def test_rows_of_test_in_train_with_a_word_changed(paragraphs):
    def changed(row: str) -> str:
        words = row.split()
        return " ".join([*words[:6], "whatever", *words[7:]])

    assert planted(paragraphs, changed) == {"seen-rows-nearly": "fail"}


def test_conflicting_labels(paragraphs):
    wrong = ["even" if label == "odd" else "odd" for label in paragraphs.labels["test"][::3]]
    assert planted(paragraphs, str.upper, wrong)["conflicting-labels"] == "fail"


def test_an_empty_class(paragraphs):
    found = run_audits(ROW_AUDITS, RowSet(paragraphs.rows, paragraphs.labels, ("even", "odd", "neither")))
    assert alarms(found) == {"class-balance": "fail"}


def test_metadata_rows(paragraphs):
    rows = {**paragraphs.rows, "train": [*paragraphs.rows["train"], *["<speaker>Ada</speaker>"] * 60]}
    assert alarms(run_audits(ROW_AUDITS, RowSet(rows))) == {"metadata-rows": "warn"}


# --- training ----------------------------------------------------------------------------------------------------

RECORDED = json.loads(Path(__file__).with_name("recorded_courses.json").read_text("utf-8"))
"""Recorded curves of good and faulty trainings, each with the command that made it."""


def recorded(name: str, **facts) -> TrainingCurve:
    kept = RECORDED[name]
    columns = [kept[key] for key in ("step", "loss", "norm", "rate")]
    lines = [dict(zip(("step", "loss", "norm", "rate"), line, strict=True)) for line in zip(*columns, strict=True)]
    lines += [{"step": step, "scores": {"valid.loss": loss}} for step, loss in kept["valid"]]
    baselines = {key: kept[key] for key in ("scored", "chance", "counting", "clip", "post_norm")}
    return TrainingCurve.of(lines, evaluate_on=["valid"], warms_up=bool(kept["warmup"]), **baselines, **facts)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("finished", {}),
        ("good", {"still-improving": "warn"}),  # the demo stops after 300 steps, and four times as many gain 0.5 nats
        ("post-norm-with-warmup", {"still-improving": "warn"}),
        ("stopped-early", {"still-improving": "warn", "underfitted": "warn"}),
        ("too-small", {"underfitted": "warn"}),
        ("rate-nearly-zero", {"learning-rate-zero": "fail", "did-it-train": "fail"}),
        ("rate-too-low", {"did-it-train": "fail"}),
        (
            "rate-10-times-too-high",
            {"learning-rate-too-high": "warn", "still-improving": "warn", "underfitted": "warn"},
        ),
        ("rate-100-times-too-high", {"learning-rate-too-high": "warn", "did-it-train": "fail"}),
        ("rate-1000-times-too-high", {"learning-rate-too-high": "warn", "did-it-train": "fail"}),
        ("post-norm-without-warmup", {"did-it-train": "fail"}),
        ("overfitted", {"overfitted": "warn"}),
    ],
)
def test_recorded_trainings_get_the_right_verdicts(name, expected):
    assert alarms(run_audits(TRAINING_AUDITS, recorded(name))) == expected


def test_post_norm_without_warm_up_is_reported_to_have_failed_to_train():
    report = run_audits(TRAINING_AUDITS, recorded("post-norm-without-warmup"))
    assert "post-norm without a warm-up is the likely cause" in found_by("did-it-train", report).sentence
    assert report.finding("overfitted") is None and "did-it-train" in report.not_run["overfitted"]


def test_selection_on_test():
    good = recorded("finished", selects=["keep_best"])
    assert alarms(run_audits(TRAINING_AUDITS, good)) == {}
    on_test = replace(good, evaluate_on=["test"])
    assert alarms(run_audits(TRAINING_AUDITS, on_test)) == {"selection-on-test": "fail"}


def test_a_learning_rate_of_zero_for_real(workshop, tmp_path):
    recipe = tiny_recipe(workshop.text, "training.optimizer.learning_rate=0", "training.duration=40 steps")
    with cache_in(workshop.cache):
        (run,) = train([recipe], ["zero"], tmp_path)
    found = alarms(run_audits(TRAINING_AUDITS, TrainingCurve.of(run.metrics(), evaluate_on=["valid"])))
    assert found == {"learning-rate-zero": "fail", "did-it-train": "fail"}


# --- real sets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def data() -> Path:
    if not os.environ.get("HEADWAY_DATA"):
        pytest.skip("HEADWAY_DATA is not set")
    return Path(os.environ["HEADWAY_DATA"]).expanduser()


def table(file: Path, text: int, label: int) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
    return [row[text] for row in rows], [row[label] for row in rows]


def speeches(data: Path) -> RowSet:
    parts = {split: table(data / "cse256-speeches" / f"{split}_CLS.tsv", 1, 0) for split in ("train", "test")}
    return RowSet({s: rows for s, (rows, _) in parts.items()}, {s: labels for s, (_, labels) in parts.items()})


def found_by(name: str, report: Report):
    found = report.finding(name)
    assert found is not None
    return found


@pytest.mark.data
def test_the_leak_of_the_speeches(data):
    rows = speeches(data)
    report = run_audits(ROW_AUDITS, rows)
    assert "551 of 750 rows of test" in found_by("seen-rows", report).sentence
    assert alarms(report) == {"seen-rows": "fail", "class-balance": "warn"}  # a third in test, 45 % Obama in train
    scores = {b.score.name: b.score for b in bag_of_words(dict(rows.rows), dict(rows.labels), ["test"])["test"]}
    assert scores["test.accuracy"].value == pytest.approx(0.893, abs=0.005)
    assert scores["test.accuracy_unseen"].value == pytest.approx(0.598, abs=0.015)
    assert "n = 199" in scores["test.accuracy_unseen"].label


@pytest.mark.data
def test_film_reviews_are_clean(data):
    parts = {split: table(data / "sst2" / f"{split}.tsv", 0, 1) for split in ("train", "dev", "test")}
    clean = RowSet({s: rows for s, (rows, _) in parts.items()}, {s: labels for s, (_, labels) in parts.items()})
    report = run_audits(ROW_AUDITS, clean)
    assert alarms(report) == {}
    assert "2 of 1,821 rows of test" in found_by("seen-rows", report).sentence


@pytest.mark.data
def test_the_metadata_of_the_talks(data):
    files = {split: (data / "ted-en-fr" / f"{split}.en").read_text("utf-8") for split in ("train", "dev", "test")}
    report = run_audits(ROW_AUDITS, RowSet({split: text.split("\n") for split, text in files.items()}))
    assert "1,928 of 30,00" in found_by("metadata-rows", report).sentence
    assert alarms(report) == {"metadata-rows": "warn"}


@pytest.mark.data
def test_two_zeros_in_verbal_arithmetic(data):
    parts: dict[str, list[dict[str, str]]] = {}
    for split in ("train", "test"):
        with (data / "verbal-arithmetic" / f"PA03_data_20_{split}.csv").open(newline="") as file:
            parts[split] = list(csv.DictReader(file))
    rows = {split: [row["input"] for row in part] for split, part in parts.items()}
    labels = {split: [row["label"] for row in part] for split, part in parts.items()}
    report = run_audits(ROW_AUDITS, RowSet(rows, labels))
    assert alarms(report) == {"class-balance": "warn"}
    assert "test has 2 of class '1'" in found_by("class-balance", report).sentence


@pytest.mark.data
def test_an_encyclopedia_is_clean_and_its_baselines_are_known(data):
    texts = sources.read_splits("wikitext-2", None, 0.1)
    made = tokens(texts, texts["train"], Word())
    report = run_audits(TEXT_AUDITS, TextSet(texts)) + run_audits(TOKEN_AUDITS, made)
    assert alarms(report) == {}
    found = language_baselines(dict(made.ids), ["test"], made.vocabulary, Reading(10**6, 10**6), "word")["test"]
    assert [b.score.value for b in found] == pytest.approx([911.7, 217.8], rel=1e-3)


# --- labels ----------------------------------------------------------------------------------------------------------


def labelled(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    rows = [f"word{k % 7} word{k} and word{k % 11}\t{'odd' if k % 2 else 'even'}" for k in range(60)]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "valid.tsv").write_text("\n".join(rows[::9]) + "\n")
    changes = [f"data.path={tmp_path}", "data.source=files", "data.text=1", "data.label=2", "data.header=false"]
    return tasks.load(load_recipe("python-modules", changes)).evidence


def test_the_baselines_are_those_of_the_task(tmp_path, monkeypatch):
    evidence = labelled(tmp_path, monkeypatch)
    assert {baseline.method for baseline in evidence.baselines} == set(evidence.task.cheap_methods.names)
    assert {baseline.score.name for baseline in evidence.baselines} == {f"valid.{evidence.task.headline.name}"}


def test_batches_with_the_labels_of_their_texts_pass(tmp_path, monkeypatch):
    assert found_by("labels", labelled(tmp_path, monkeypatch).reading()).verdict == "pass"


def test_labels_shifted_by_a_row_are_caught(tmp_path, monkeypatch):
    evidence = labelled(tmp_path, monkeypatch)
    at = ShuffledSampler.at

    def shifted(self, step):
        batch = at(self, step)
        return replace(batch, targets=batch.targets.roll(1, dims=1))

    monkeypatch.setattr(ShuffledSampler, "at", shifted)
    finding = found_by("labels", evidence.reading())
    assert finding.verdict == "fail" and "another label than in train" in finding.sentence
