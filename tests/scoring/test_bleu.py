"""BLEU and chrF equal sacreBLEU's and have its signature; without sacreBLEU there is a message."""

import sys

import pytest

from headway.core.errors import UserError
from headway.scoring import bleu

OURS = ["The cat sat on the mat .", "a dog", "Nothing of it"]
RIGHT = ["the cat sat on the mat .", "a dog", "something else entirely"]


def test_scores_are_sacrebleus_with_its_signature():
    sacrebleu = pytest.importorskip("sacrebleu")
    found = {one.metric.name: one for one in bleu.measured(OURS, RIGHT)}
    assert found["bleu"].value == pytest.approx(sacrebleu.corpus_bleu(OURS, [RIGHT]).score)
    assert found["bleu_lowercased"].value == pytest.approx(sacrebleu.corpus_bleu(OURS, [RIGHT], lowercase=True).score)
    assert found["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(OURS, [RIGHT]).score)
    assert (
        "tok:13a" in found["bleu"].how
        and "version:" in found["bleu"].how
        and "smooth:exp" in found["sentence_bleu"].how
    )
    assert "tok:none" in bleu.measured(OURS, RIGHT, "none")[0].how
    assert bleu.by_sentence(OURS, OURS) == pytest.approx([100.0] * 3)


def test_without_it_there_is_a_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match="pip install sacrebleu"):
        bleu.measured(OURS, RIGHT)
