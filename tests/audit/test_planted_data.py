"""Faults planted into data and training, each found by the audit meant for it; and clean data that raises no alarm."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from tiny import cache_in, tiny_recipe

from headway.audit.audit import Report, run_audits
from headway.audit.baselines import bag_of_words, language_baselines
from headway.audit.course import Course
from headway.audit.data import ROW_AUDITS, RowSet
from headway.audit.text import TEXT_AUDITS, TOKEN_AUDITS, TextSet, TokenSet
from headway.audit.training import TRAINING_AUDITS
from headway.data import sources
from headway.data.text import Bpe, Char, Word
from headway.experiment import train
from headway.run import Run

# --- text --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docs() -> dict[str, str]:
    return sources.read_splits("python-docs", None, 0.1)


def alarms(report: Report) -> dict[str, str]:
    return {finding.audit: finding.verdict for finding in report.findings if finding.verdict != "pass"}


def tokens(texts: dict[str, str], vocabulary_of: str, spec: Char | Word | Bpe) -> TokenSet:
    tokenizer = spec.learn(vocabulary_of)
    ids = {split: tokenizer.encode(text).ids for split, text in texts.items()}
    return TokenSet(ids, tokenizer.size, tokenizer.unknown, tokenizer.pieces)


def test_clean_documentation_raises_no_alarm(docs):
    assert alarms(run_audits(TEXT_AUDITS, TextSet(docs))) == {}
    for spec in (Char(), Bpe(size=1000), Word(size=5000)):
        found = alarms(run_audits(TOKEN_AUDITS, tokens(docs, docs["train"], spec)))
        assert found == {} or (spec.kind == "word" and set(found) == {"out-of-vocabulary"})


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
    assert alarms(run_audits(TEXT_AUDITS, TextSet(texts))) == {"split-by-line": "fail"}


def test_vocabulary_built_on_test(docs):
    both = tokens(docs, docs["train"] + docs["test"], Word())
    assert alarms(run_audits(TOKEN_AUDITS, both))["vocabulary-from-train"] == "fail"
    honest = tokens(docs, docs["train"], Word())
    assert "vocabulary-from-train" not in alarms(run_audits(TOKEN_AUDITS, honest))


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paragraphs(docs) -> RowSet:
    """A clean labelled set: paragraphs, by whether they speak of files."""
    rows = {
        split: [" ".join(p.split()) for p in text.split("\n\n") if len(p.split()) > 12] for split, text in docs.items()
    }
    labels = {split: ["file" if "file" in row.casefold() else "other" for row in part] for split, part in rows.items()}
    return RowSet({s: part[:3000] for s, part in rows.items()}, {s: part[:3000] for s, part in labels.items()})


def planted(clean: RowSet, change, labels=None) -> dict[str, str]:
    """Alarms, if a third of the test rows were in train, changed like this."""
    some = list(clean.rows["test"][::3])
    rows = {**clean.rows, "train": [*clean.rows["train"], *map(change, some)]}
    theirs = labels or list(clean.labels["test"][::3])
    return alarms(run_audits(ROW_AUDITS, RowSet(rows, {**clean.labels, "train": [*clean.labels["train"], *theirs]})))


def test_clean_rows_raise_no_alarm(paragraphs):
    assert alarms(run_audits(ROW_AUDITS, paragraphs)) == {}


def test_rows_of_test_in_train(paragraphs):
    assert planted(paragraphs, lambda row: row) == {"seen-rows": "fail"}


def test_rows_of_test_in_train_in_another_dress(paragraphs):
    dressed = planted(paragraphs, lambda row: "  " + row.upper().replace(" ", "  ").replace(".", " …"))
    assert dressed == {"seen-rows-normalised": "fail"}


def test_rows_of_test_in_train_with_a_word_changed(paragraphs):
    def changed(row: str) -> str:
        words = row.split()
        return " ".join([*words[:6], "whatever", *words[7:]])

    assert planted(paragraphs, changed) == {"seen-rows-nearly": "fail"}


def test_conflicting_labels(paragraphs):
    wrong = ["other" if label == "file" else "file" for label in paragraphs.labels["test"][::3]]
    assert planted(paragraphs, str.lower, wrong)["conflicting-labels"] in ("warn", "fail")


def test_an_empty_class(paragraphs):
    found = run_audits(ROW_AUDITS, RowSet(paragraphs.rows, paragraphs.labels, ("file", "other", "socket")))
    assert alarms(found) == {"class-balance": "fail"}


def test_metadata_rows(paragraphs):
    rows = {**paragraphs.rows, "train": [*paragraphs.rows["train"], *["<speaker>Ada</speaker>"] * 60]}
    assert alarms(run_audits(ROW_AUDITS, RowSet(rows))) == {"metadata-rows": "warn"}


# --- training, for real ------------------------------------------------------------------------------------------

STEPS = 240


@pytest.fixture(scope="module")
def trained(docs, tmp_path_factory):
    """Trains a small model of this many characters with these changes, and gives the course of its training."""
    home = tmp_path_factory.mktemp("trained")

    def course(name: str, *changes: str, letters: int = 400_000) -> Course:
        file = home / f"{letters}.txt"
        file.write_text("".join(c for c in docs["train"][:letters].lower() if c in "abcdefghijklmnopqrstuvwxyz .\n"))
        settings = (
            f"training.duration={STEPS} steps", "training.batch=16", "training.optimizer.learning_rate=1e-2",
            "training.evaluate_every=20 steps", "training.evaluate_tokens=2000", "training.schedule.warmup=20 steps",
            "model.width=24", "model.context=24",
        )  # fmt: skip
        with cache_in(home / "cache"):
            (run,) = train([tiny_recipe(file, *settings, *changes)], [name], home / "runs")
            return _course(run, file)

    return course


def _course(run: Run, file: Path) -> Course:
    texts = sources.read_splits("files", str(file), run.recipe.data.valid_fraction)
    made = tokens(texts, texts["train"], Char())
    segment, training = run.recipe.model.context, run.recipe.training
    chance, counting = language_baselines(dict(made.ids), ["valid"], made.vocabulary, segment, segment, "char")["valid"]
    return Course.of(
        run.metrics(),
        scored={score.name: score.value for score in run.scores()}["valid.loss"],
        chance=float(np.log(chance.score.value)),
        counting=float(np.log(counting.score.value)),
        clip=training.clip,
        evaluate_on=training.evaluate_on,
        selects=["keep_best"] * training.keep_best,
        post_norm=run.recipe.model.norm.placement == "post",
        warmup=20 if training.schedule.warmup else 0,
    )


def test_a_good_training_raises_no_alarm(trained):
    good = trained("good", "training.duration=900 steps", "training.evaluate_every=75 steps")
    assert alarms(run_audits(TRAINING_AUDITS, good)) == {}


def test_learning_rate_zero(trained):
    found = alarms(run_audits(TRAINING_AUDITS, trained("zero", "training.optimizer.learning_rate=0")))
    assert found == {"learning-rate-zero": "fail", "did-it-train": "fail"}


def test_learning_rate_too_high(trained):
    found = alarms(run_audits(TRAINING_AUDITS, trained("high", "training.optimizer.learning_rate=3")))
    assert found["learning-rate-too-high"] == "warn"


def test_post_norm_without_warm_up_at_a_high_rate(trained):
    changes = ("model.norm.placement=post", "model.layers=6", "training.schedule.warmup=null")
    spoilt = trained("post", *changes, "training.optimizer.learning_rate=3e-2")
    (found,) = [f for f in run_audits(TRAINING_AUDITS, spoilt).findings if f.audit == "did-it-train"]
    assert found.verdict == "fail" and "post-norm without a warm-up" in found.sentence


def test_stopped_early(trained):
    early = trained(
        "early", "training.duration=50 steps", "training.evaluate_every=5 steps", "training.schedule=constant"
    )
    assert alarms(run_audits(TRAINING_AUDITS, early))["still-improving"] == "warn"


def test_overfitted(trained):
    changes = ("training.duration=600 steps", "model.width=48", "model.layers=2")
    found = alarms(run_audits(TRAINING_AUDITS, trained("overfitted", *changes, letters=4000)))
    assert found == {"overfitted": "fail"}


def test_selection_on_test(trained):
    honest = trained("honest", "training.duration=30 steps", "training.keep_best=true")
    assert "selection-on-test" not in alarms(run_audits(TRAINING_AUDITS, honest))
    on_test = Course.of([], evaluate_on=["test"], selects=["keep_best"])
    assert alarms(run_audits(TRAINING_AUDITS, on_test)) == {"selection-on-test": "fail"}


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
    assert alarms(report) == {"seen-rows": "fail", "class-balance": "warn"}  # thirds in test, 45 % Obama in train
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
    found = language_baselines(dict(made.ids), ["test"], made.vocabulary, 10**6, 10**6, "word")["test"]
    assert [b.score.value for b in found] == pytest.approx([911.7, 217.8], rel=1e-3)
