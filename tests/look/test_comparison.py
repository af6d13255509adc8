"""Comparisons of the maps of two runs."""

import numpy as np
import pytest

from headway.draw.colours import SHARES
from headway.draw.picture import Grid, Panel
from headway.look.comparison import MapComparison
from headway.look.maps import maps_of
from headway.nn.positions import Alibi

SENTENCE = "the lazy fox"
OTHER = "quick lazy fox"


@pytest.fixture
def compared(decoder, words):
    def make(**settings) -> MapComparison:
        (ours,) = maps_of(decoder(words.size), words, [SENTENCE], "one")
        (theirs,) = maps_of(decoder(words.size, **settings), words, [SENTENCE], "two")
        return MapComparison(ours.grid(), theirs.grid(), SENTENCE, "", [])

    return make


def test_a_run_does_not_differ_from_itself(compared):
    found = compared()
    assert [pair.distance for pair in found.pairs] == [0, 0, 0, 0]


def test_the_largest_differences_are_named(compared):
    found = compared(positions=Alibi())
    distances = found.as_json()["distances"]
    most = max(distances, key=distances.get)
    assert distances[most] > 0.05
    assert found.differ_most.startswith(f"They differ most in {most}, where ")
    picture = found.draw()
    assert [grid.title for grid in picture.grids] == ["one", "two", "two − one"]
    ours, theirs, difference = (grid.panels[1][0].matrix for grid in picture.grids)
    np.testing.assert_allclose(difference, theirs - ours, atol=1e-7)
    assert any("Heads have no order" in note for note in picture.notes)


def test_only_what_both_have_is_compared(compared):
    found = compared(layers=1, heads=3)
    assert [pair.title for pair in found.pairs] == ["layer 0 · head 0", "layer 0 · head 1"]
    assert [len(row) for row in found.draw().grids[2].panels] == [2]


def test_maps_of_different_tokens_are_shown_and_not_compared(decoder, words, letters):
    (ours,) = maps_of(decoder(words.size), words, [SENTENCE], "one")
    (theirs,) = maps_of(decoder(letters.size), letters, [SENTENCE], "two")
    found = MapComparison(ours.grid(), theirs.grid(), SENTENCE, "", [])
    said = r"one and two do not read the same tokens (3 and 12): both are shown without a comparison"
    assert found.as_json() == {"compared": False, "why": said}
    picture = found.draw()
    assert len(picture.grids) == 2 and picture.notes[0] == said


def test_equally_many_but_different_tokens(decoder, words):
    model = decoder(words.size)
    ours, theirs = (maps_of(model, words, [said], name)[0] for said, name in ((SENTENCE, "one"), (OTHER, "two")))
    why = MapComparison(ours.grid(), theirs.grid(), SENTENCE, "", []).why_not
    assert why is not None and f"the same tokens ('{ours.sentence.tokens[0]}' and '{theirs.sentence.tokens[0]}')" in why


def test_different_predictions_are_not_called_tokens():
    ours, theirs = (
        Grid(name, [[Panel("gradients", np.ones((1, 2)) / 2, (answer,), ("a", "b"), ())]], SHARES)
        for name, answer in (("one", "sea"), ("two", "sky"))
    )
    why = MapComparison(ours, theirs, "a b", "", []).why_not
    assert why is not None and why.startswith("one and two do not predict the same ('sea' and 'sky')")


def test_nothing_in_common(compared, decoder, words):
    (ours,) = maps_of(decoder(words.size), words, [SENTENCE], "one")
    (theirs,) = maps_of(decoder(words.size), words, [SENTENCE], "two")
    found = MapComparison(ours.grid(layer=0), theirs.grid(layer=1), SENTENCE, "", [])
    assert found.why_not == "one and two have no layer and head in common: nothing is compared"
