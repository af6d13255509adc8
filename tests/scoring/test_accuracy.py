import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from headway.data.labelled.dataset import Texts
from headway.models.classifier import ClassifierSpec
from headway.scoring.accuracy import Predictions, predict, spread_out
from headway.scoring.score import Score
from headway.stats.intervals import wilson

CLASSES = ("cat", "dog", "eel")


def made(right, chosen, seen=None, classes=CLASSES, cut=0) -> Predictions:
    chances = np.full((len(right), len(classes)), 0.2)
    chances[np.arange(len(right)), chosen] = 0.6
    seen = np.zeros(len(right), dtype=bool) if seen is None else np.array(seen)
    return Predictions(classes, np.array(right), chances, seen, cut, 32)


def by_name(scores: list[Score]) -> dict[str, Score]:
    return {score.name: score for score in scores}


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(hits_of_n):
    hits, n = hits_of_n
    theirs = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_zero_of_zero_has_no_interval():
    assert wilson(0, 0) is None


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=40)


@given(ROWS)
def test_scores_of_classes_equal_scikit_learns(rows):
    right, chosen, seen = (list(column) for column in zip(*rows, strict=True))
    predictions = made(right, chosen, seen)
    scores = by_name(predictions.scores("test"))
    counts = np.array(predictions.confusion.counts)
    assert counts.tolist() == confusion_matrix(right, chosen, labels=[0, 1, 2]).tolist()
    theirs = precision_recall_fscore_support(right, chosen, labels=[0, 1, 2], zero_division=np.nan)
    for what, values in zip(("precision", "recall", "f1"), theirs, strict=False):
        ours = [scores[f"test.{what}.{name}"].value for name in CLASSES]
        if what == "f1":  # scikit-learn gives 0 if one of the two is undefined; so does Headway, unless both are
            values = np.where(np.isnan(values), math.nan, values)
        assert ours == pytest.approx(list(values), nan_ok=True)
    assert scores["test.accuracy"].value == pytest.approx(np.mean(np.array(right) == chosen))


def test_every_score_has_a_label():
    scores = by_name(made([0, 0, 1, 1], [0, 1, 1, 1], [True, False, False, True], cut=2).scores("test"))
    how = "test · 4 texts of 3 classes · 2 cut at 32 tokens"
    assert scores["test.accuracy"].label == f"accuracy: 3 of 4 · 95 % interval 0.301 – 0.954 (Wilson) · {how}"
    assert scores["test.accuracy"].interval == pytest.approx((0.3006, 0.9544), abs=1e-4)
    assert scores["test.accuracy_seen"].value == 1.0 and scores["test.accuracy_unseen"].value == 0.5
    assert scores["test.accuracy_unseen"].label.startswith("accuracy on texts that are not in train: 1 of 2 · 95 %")
    assert scores["test.precision.dog"].label == f"precision: 2 of the 3 predicted as 'dog' are right · {how}"
    assert scores["test.recall.eel"].label == f"recall: 0 of the 0 texts of 'eel' are found · {how}"
    assert math.isnan(scores["test.recall.eel"].value) and scores["test.recall.eel"].interval is None
    nats = (3 * -math.log(0.6) - math.log(0.2)) / 4
    assert scores["test.loss"].value == pytest.approx(nats)


def test_if_all_rows_are_seen_or_unseen_they_are_not_scored_separately():
    assert "test.accuracy_seen" not in by_name(made([0, 1], [0, 1], [False, False]).scores("test"))
    assert "train.accuracy_seen" not in by_name(made([0, 1], [0, 1], [True, True]).scores("train"))


def test_scores_round_trip_through_json():
    for score in made([0, 0, 1], [0, 1, 1], [True, False, True]).scores("test"):
        again = Score.from_json(score.name, score.to_keep())
        assert again == score or (math.isnan(again.value) and math.isnan(score.value) and again.label == score.label)


def texts(lengths: list[int], labels: list[int]) -> Texts:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(11, (sum(lengths),), generator=generator).int().numpy()
    names = [str(k) for k in range(len(lengths))]
    return Texts(names, np.array(labels), np.zeros(len(labels), bool), ids, np.cumsum(lengths))


def test_each_text_is_classified_as_if_alone_and_truncated_to_the_context():
    model = ClassifierSpec(layers=1, width=8, context=6, positions={"kind": "rotary"}).build(11, 3, [0, 1])
    with torch.no_grad():
        for p in model.parameters():
            p += 0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    some = texts([3, 9, 1, 6, 2], [0, 1, 2, 0, 1])
    together = predict(model, some, CLASSES)
    assert len(together) == 2 and together[0].cut == 1
    begins = some.ends - some.lengths
    for r, predictions in enumerate(together):
        for k in range(5):
            ids = torch.tensor(some.ids[begins[k] : some.ends[k]][:6]).long()[None, None].expand(2, 1, -1)
            alone = model(ids)[r, 0].double().softmax(-1).detach()
            np.testing.assert_allclose(predictions.chances[k], alone, atol=1e-6)


def test_a_part_of_a_split_is_spread_evenly_and_always_the_same():
    some = texts([2] * 400, [0] * 200 + [1] * 200)
    part = spread_out(some, 100)
    assert len(part) == 50 and len(part.ids) == 100
    assert 15 <= part.labels.sum() <= 35
    again = spread_out(some, 100)
    assert part.texts == again.texts and (part.ids == again.ids).all()
    k = int(part.texts[7])
    assert (part.padded(9)[0][7] == some.padded(9)[0][k]).all()
    assert spread_out(some, None) is some and spread_out(some, 800) is some
    assert len(spread_out(some, 1)) == 1
