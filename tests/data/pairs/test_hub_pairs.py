"""Pairs from the hub: two columns, or two fields of one; and settings that only the user can know."""

import pytest
from hub_server import HubServer

from headway.core.errors import UserError
from headway.core.validation import InvalidError
from headway.data.pairs.sources import Sides, read_pairs
from headway.recipe.recipe import from_tree

FILES = {
    "train.csv": b"id,en,de\n1,a dog,ein Hund\n2,two,zwei\n",
    "train.tsv": b"de\ten\nein Hund\ta dog\nzwei\ttwo\n",
    "train.jsonl": b'{"translation": {"en": "a dog", "de": "ein Hund"}}\n'
    b'{"translation": {"en": "two", "de": "zwei"}}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_both_sides_of_every_format(hub: HubServer, name):
    hub.add("dataset", "me/set", {name: FILES[name], name.replace("train", "validation"): FILES[name]})
    found = read_pairs("hub", "me/set", Sides("en-de"))
    assert found == {key: [("a dog", "ein Hund"), ("two", "zwei")] for key in ("train", "valid")}
    assert read_pairs("hub", "me/set", Sides("de-en"))["train"][1] == ("zwei", "two")


def test_a_side_that_is_missing_in_a_row_is_empty(hub: HubServer):
    hub.add("dataset", "me/set", {"train.jsonl": b'{"en": "a", "de": null}\n{"en": "b\\nc", "de": "d"}\n'})
    assert read_pairs("hub", "me/set", Sides("en-de"))["train"] == [("a", ""), ("b c", "d")]


def test_parquet_with_both_sides_in_one_column(hub: HubServer, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra 'hub', is not installed")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"translation": [{"en": "one", "de": "eins"}]}), tmp_path / "t.parquet")
    hub.add("dataset", "me/set", {"data/train-0.parquet": (tmp_path / "t.parquet").read_bytes()})
    assert read_pairs("hub", "me/set", Sides("en-de")) == {"train": [("one", "eins")]}


@pytest.mark.parametrize(
    ("files", "direction", "words"),
    [
        ({"train.csv": FILES["train.csv"]}, "en-dr", "row 1: no text in a column 'dr' .*there are: de, en, id"),
        ({"train.jsonl": FILES["train.jsonl"]}, "fr-de", "no text in a column 'fr'"),
        ({"train.txt": b"one\n"}, "en-de", "has no columns"),
        ({"train.csv": b"en,de\n"}, "en-de", "no pairs in split 'train'"),
        ({"train.csv": FILES["train.csv"]}, None, "which columns"),
    ],
)
def test_ambiguous_columns_are_refused_with_a_question(hub: HubServer, files, direction, words):
    hub.add("dataset", "me/set", files)
    with pytest.raises(UserError, match=words):
        read_pairs("hub", "me/set", Sides(direction))


def test_a_recipe_needs_a_name_and_a_direction():
    tree = {"model": {"kind": "encoder-decoder"}, "data": {"kind": "pairs", "source": "hub", "path": "me/set"}}
    with pytest.raises(InvalidError, match="needs a path and a direction"):
        from_tree(tree, "test")
    from_tree({**tree, "data": {**tree["data"], "direction": "en-de"}}, "test")
