"""The question answered by the paired bootstrap: does the result hold for other sentences and other seeds?"""

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.core.validation import validated
from headway.scoring.bleu import of_sums
from headway.scoring.metrics import BLEU
from headway.study.design.questions import Better, PairedBootstrap
from headway.study.design.study import Study
from headway.study.results.evidence import Measured
from headway.study.verdicts.analyse import analyse

ASKED = PairedBootstrap(arm="a", than="b", on="test.bleu")


def system(rng, rate: np.ndarray, spread: float, seeds: int) -> dict[int, np.ndarray]:
    """Counts of correct sentences at this rate, slightly different for each seed."""
    found, lengths = {}, 6 + np.arange(len(rate)) % 10
    for seed in range(seeds):
        mine = np.clip(rate + spread * rng.standard_normal(), 0.05, 0.95)
        right = [rng.binomial(lengths - n, mine ** (n + 1)) for n in range(4)]
        found[seed] = np.stack([lengths, lengths, *right, *(lengths - n for n in range(4))], 1).astype(float)
    return found


def answered(a: float, b: float, taste: float = 0.0, seeds: int = 4, rows: int = 200, question=ASKED):
    """`taste`: how much some sentences favour a, and others b, with every seed."""
    rng = np.random.default_rng(0)
    easy, other = rng.normal(0, 0.1, rows), rng.normal(0, taste, rows)
    counts = {"a": system(rng, a + easy + other, 0.01, seeds), "b": system(rng, b + easy, 0.01, seeds)}
    score = of_sums(BLEU)
    values = {arm: {s: float(score(rows.sum(0))) for s, rows in found.items()} for arm, found in counts.items()}
    (verdict,) = analyse([question], Measured({question.on: values}), lambda arm, on: counts[arm])
    return verdict, values


def test_a_clear_lead_is_better_and_names_the_population():
    verdict, values = answered(0.8, 0.65)
    means = [np.mean(list(values[arm].values())) for arm in "ab"]
    assert verdict.outcome == "better" and verdict.effect == pytest.approx(means[0] - means[1])
    assert verdict.seeds == 4 and "1,000 bootstrap samples of the sentences" in verdict.method
    assert any("Koehn" in note and "4 of 4 pairs" in note for note in verdict.notes)
    back, _ = answered(0.65, 0.8)
    assert back.outcome == "worse" and back.effect < 0


def test_with_few_sentences_its_interval_is_wider_than_over_seeds_alone():
    alone, _ = answered(0.72, 0.66, 0.2, seeds=6, rows=40, question=Better(arm="a", than="b", on="test.bleu"))
    both, _ = answered(0.72, 0.66, 0.2, seeds=6, rows=40)
    width = [verdict.interval[1] - verdict.interval[0] for verdict in (alone, both)]
    assert width[1] > width[0] and both.p > alone.p and both.effect == pytest.approx(alone.effect)
    assert both.bootstrap is not None and both.bootstrap != alone.bootstrap


def test_one_seed_compares_two_models_and_not_the_arms():
    verdict, _ = answered(0.8, 0.65, seeds=1)
    assert verdict.outcome == "cannot say" and verdict.p is None
    assert "for these two models, a leads b by" in verdict.sentence and "p < " in verdict.sentence.replace(
        "p = 0.00", "p < "
    )


def test_without_stored_rows_it_cannot_say():
    values = {"a": {0: 30.0, 1: 31.0}, "b": {0: 28.0, 1: 29.5}}
    (verdict,) = analyse([ASKED], Measured({"test.bleu": values}), lambda arm, on: {})
    assert verdict.outcome == "cannot say" and "were not stored" in verdict.sentence
    few, _ = answered(0.8, 0.6, rows=5)
    assert few.outcome == "cannot say" and "5 sentences" in few.sentence


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"arm": "a", "than": "b", "on": "valid.perplexity"}, "needs statistics per sentence"),
        ({"arm": "a", "than": "b", "on": "valid.bleu.6-10"}, "needs statistics per sentence"),
        ({"arm": "a", "than": "a", "on": "valid.bleu"}, "compared with itself"),
        ({"arm": "a", "than": "copied source", "on": "valid.bleu"}, "there is no arm"),
        ({"arm": "a", "than": "c", "on": "valid.bleu"}, "there is no arm 'c'"),
    ],
)
def test_impossible_questions_are_refused(question, message):
    tree = {
        "title": "Which?",
        "base": {"data": {"kind": "pairs", "source": "pig-latin"}, "model": {"kind": "encoder-decoder"}},
        "arms": {"a": [], "b": ["model.layers=1"]},
        "questions": [{"kind": "paired-bootstrap", **question}],
    }
    with pytest.raises(UserError, match=message):
        validated(Study, tree, "study", lambda key: "")
