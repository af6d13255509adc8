"""Faults in the training data as it is read, and in the learning rate, are caught; correct batches raise no alarm."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scored import CLASSIFIER, Ground
from tiny import cache_in

from headway import tasks
from headway.audit.data.batches import Place, ReadInTraining, TextPlaces, batches
from headway.audit.plants.library import faults
from headway.audit.plants.needs import MASKED, MATCHER, TRANSLATOR
from headway.audit.plants.planting import Fault, planted
from headway.data.running.batches import Contiguous
from headway.tasks.language_modelling import LanguageModelling


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Iterator[Ground]:
    home = tmp_path_factory.mktemp("ground")
    with cache_in(home / "cache"):
        yield Ground(home)


def reading(ground: Ground, *changes: str) -> tuple[str, str]:
    finding = tasks.load(ground.recipe(*changes)).gather_evidence().reading().finding("batches")
    assert finding is not None
    return finding.verdict, finding.sentence


OTHERS = {MASKED, MATCHER, TRANSLATOR}  # these have their own tests
OF_BATCHES = [one for one in faults() if one.caught_by == "batches" and not OTHERS & {*one.needs}]


@pytest.mark.parametrize("fault", OF_BATCHES, ids=lambda one: one.name)
def test_planted(fault: Fault, ground: Ground):
    with planted(fault):
        assert reading(ground, *fault.changes)[0] == "fail"


CLEAN = [
    (),
    ("data.batches=contiguous",),
    ("data.batches=contiguous-shifted", "training.batch=3"),
    ("training.batch=64", "data.tokenizer=word", "model.context=5"),
    ("model.context=700", "training.batch=1"),
    ("model.context=2400", "training.batch=2"),
    (CLASSIFIER,),
    (CLASSIFIER, "training.batch=100", "model.context=3"),
    (CLASSIFIER, "training.batch=1", "data.batches.buckets=1"),
]


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: " ".join(case))
def test_clean(case, ground: Ground):
    verdict, sentence = reading(ground, *case)
    assert verdict == "pass", sentence


def test_training_on_a_scored_split_is_caught(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    def sampler(self, seeds, device):
        ids = torch.as_tensor(self.data.split("valid").ids).to(device)
        return self.recipe.data.batches.build(ids, self.recipe.segment, self.recipe.training.batch, seeds)

    monkeypatch.setattr(LanguageModelling, "sampler", sampler)
    verdict, sentence = reading(ground)
    assert verdict == "fail" and "no text of train" in sentence


@pytest.mark.parametrize("fault", [one for one in faults() if one.caught_by == "schedule"], ids=lambda one: one.name)
def test_planted_schedules(fault: Fault, ground: Ground):
    with planted(fault):
        (run,) = ground.train(*fault.changes)
    evidence = tasks.load_for(run).evidence
    finding = evidence.audit(run).finding("schedule")
    assert finding is not None and finding.verdict == "fail", finding


@pytest.mark.parametrize("streams", [3, 40])
def test_streams_are_found_from_the_first_to_the_last(streams):
    """In a text without repetitions."""
    ids = np.arange(4000, dtype=np.int32)
    find, sampler = TextPlaces(ids), Contiguous().build(torch.from_numpy(ids), 10, streams, [0])
    outcome = batches.check(
        ReadInTraining(sampler, find, find.everywhere(11), "4,000 tokens", drawn=False, goes_on=True)
    )
    assert outcome.verdict == "pass", outcome.sentence


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_the_first_and_last_place_of_rows_equal_a_plain_search(text, row):
    ids, asked = np.array(text, np.uint16), torch.tensor([[row]])
    batch = SimpleNamespace(inputs=asked[..., :-1], targets=asked[..., -1:])
    (place,) = TextPlaces(ids)(batch)
    there = [at for at in range(len(text) - len(row) + 1) if text[at : at + len(row)] == row]
    assert place == (Place(there[0], there[-1]) if there else None)
