"""Every fault in scores of texts is caught by computing them again; the second implementation equals sacreBLEU."""

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scored import examined
from tiny import cache_in

from headway.audit.audit import Report
from headway.audit.plants.library import faults
from headway.audit.plants.needs import BEAM, DRAWN, JUDGED_BY_BLEU, NO_RUN_TWICE
from headway.audit.plants.planting import Fault, planted
from headway.audit.translation.ngrams import counts_of, made_of
from headway.audit.translation.recount import PairRecount
from headway.data.vocabularies import Word
from headway.experiment.evaluate import score_splits_again
from headway.experiment.train import train
from headway.recipe.recipe import from_tree
from headway.run.folder import open_run
from headway.scoring import bleu
from headway.scoring.continued import Hypothesis
from headway.scoring.decoding import Greedy
from headway.scoring.translation import Translated

OURS = [fault for fault in faults() if JUDGED_BY_BLEU in fault.needs]
DECODED = {"beam": BEAM, "no run twice": NO_RUN_TWICE, "drawn": DRAWN}
OF_TEXTS = [
    fault
    for fault in OURS
    if not {*DECODED.values()} & {*fault.needs} and fault.name != "references_among_the_translations"
]

WHO = ["The dog", "The old man", "A cat", "My sister and her dog"]
DOES = ["sees a house", "likes 3.5 apples", "runs", "buys bread, milk and tea"]
WHEN = ["today", "in May", "at 9-10 o'clock", "now & then"]
RIGHT = [f"{who} {does} {when}." for who, does, when in itertools.product(WHO, DOES, WHEN)]
SAID = [
    text.replace("The", "the") if k % 5 == 0 else text[: 8 + k % 30] if k % 3 else "" if k == 21 else f"{text} so"
    for k, text in enumerate(RIGHT)
]
SAID[7], SAID[9] = "Unter den Linden", "A cat . A cat . A cat . The dog runs"


def counted_again(texts, right):
    """Scores of these texts, and a recount with the true references."""
    sources = [f"{k} {text}" for k, text in enumerate(right)]
    best = [Hypothesis((), 1.0, -1.0)] * len(texts)
    tokenizer = Word().learn("\n".join(sources))
    lengths = np.array([len(ids) for ids in tokenizer.encode_rows(sources)])
    found = Translated(sources, list(right), best, list(texts), lengths, np.arange(len(texts)) % 7 == 0, "greedy")
    rows = list(zip(sources, right, strict=True))
    again = PairRecount(rows, None, tokenizer, tokenizer, 99, Greedy(), False, "13a", set(sources[::7]))
    said = {score.name.partition(".")[2]: score for score in found.scores("test", False)}
    return again.at_odds(again.whole, said)


def test_right_scores_pass():
    assert counted_again(SAID, RIGHT) is None


@pytest.mark.parametrize("fault", OF_TEXTS, ids=lambda fault: fault.name)
def test_planted_in_scores_of_texts(fault: Fault):
    with planted(fault):
        assert counted_again(SAID, RIGHT) is not None


SIGNS = st.text(st.sampled_from("ab .,-'09!&;<x/“ßÄ€½²٠ \n"), max_size=25)


@pytest.mark.parametrize("tokenizer", ["13a", "none", "intl", "char"])
@settings(max_examples=30)
@given(st.lists(st.tuples(SIGNS, SIGNS) | SIGNS.map(lambda text: (text, text)), min_size=1, max_size=4))
def test_the_second_implementation_equals_sacrebleu(tokenizer, pairs):
    ours, right = (list(side) for side in zip(*pairs, strict=True))
    for one in bleu.measured(ours, right, tokenizer):
        counts = counts_of(one.metric.name, ours, right, tokenizer)
        assert counts is not None and np.allclose(counts, one.counts)
        assert made_of(one.metric.name, counts) == pytest.approx(one.value, abs=1e-9)
        score = bleu.of_sums(one.metric)
        assert score is not None and score(np.array(counts, float).sum(0)) == pytest.approx(one.value, abs=1e-9)


# --- whole runs ------------------------------------------------------------------------------------------------------


def recipe(path, *changes: str):
    tree = {
        "data": {"kind": "pairs", "source": "files", "path": str(path), "tokenizer": "word"},
        "model": {"kind": "encoder-decoder", "layers": 1, "width": 32, "context": 16, "mixer": {"heads": 2}},
        "training": {"duration": "30 steps", "batch": 16, "optimizer": {"learning_rate": 1e-2}},
    }
    return from_tree(tree, "sentences", overrides=changes)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("sentences")
    rows = [f"{text}\t{' '.join(reversed(text.split()))}" for text in RIGHT]
    (home / "pairs.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    with cache_in(home / "cache"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [Report()] * len(runs))
        yield home


def grown(home, decoding: str):
    """A clean run with this decoding, trained when it is first needed."""
    if not (home / "runs" / decoding).exists():
        changes = DECODED[decoding].changes if decoding in DECODED else ()
        train([recipe(home / "pairs.tsv", *changes)], [decoding], home / "runs")
    return home / "runs" / decoding


@pytest.mark.parametrize(
    ("decoding", "seconds"),
    [("greedy", 1e3), ("beam", 0), pytest.param("no run twice", 0, marks=pytest.mark.slow), ("drawn", 0)],
)
def test_clean_runs_raise_no_alarm(ground, decoding, seconds):
    report = examined(open_run(grown(ground, decoding).name, ground / "runs"), seconds=seconds)
    verdicts = {one.audit: one.verdict for one in report.findings}
    assert {verdicts[name] for name in ("scores-again", "scored-split", "searched")} == {"pass"}


IN_RUNS = [fault for fault in reversed(OURS) if fault not in OF_TEXTS]


@pytest.mark.parametrize(
    "fault", [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (k > 0)) for k, one in enumerate(IN_RUNS)]
)
def test_planted_in_runs(fault: Fault, ground):
    kind = next((name for name, need in DECODED.items() if need in fault.needs), "greedy")
    shutil.copytree(grown(ground, kind), ground / "runs" / fault.name)
    run = open_run(fault.name, ground / "runs")
    with planted(fault):
        score_splits_again(run)
        report = examined(run)
    failures = {f.audit: f.sentence for f in report.failures}
    assert fault.caught_by in failures, f"not caught; {report}"
    assert not set(failures) - {fault.caught_by, *fault.also, "length-ratio", "repetition-loops"}, failures
