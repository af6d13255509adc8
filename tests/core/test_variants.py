"""Slots, their variants, and registries: extensible, looked up by name, with unique names."""

import json
import sys
from abc import abstractmethod
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from headway.core.errors import UserError
from headway.core.spec import Spec
from headway.core.validation import known_keys, variants
from headway.core.variants import Registry, Variant, kinds


class Note(Variant):
    """A slot."""

    loud: bool = False

    @abstractmethod
    def play(self) -> str: ...


class Flat(Note):
    kind: Literal["flat"] = "flat"
    by: float = Field(default=0.5, gt=0)

    def play(self) -> str:
        return f"-{self.by}"


class Pitched(Note):
    """A shared base class, which cannot be chosen itself."""

    height: int = 1


class Sharp(Pitched):
    kind: Literal["sharp", "double-sharp"] = "sharp"

    def play(self) -> str:
        return self.kind


class Tune(Spec):
    note: Note = Flat()
    notes: list[Note] = Field(default=[])
    last: Note | None = None


@pytest.fixture
def natural():
    """A variant that is defined after the slot and after the spec that uses it, and removed afterwards."""

    class Natural(Note):
        kind: Literal["natural"] = "natural"
        clear: int = 3

        def play(self) -> str:
            return "="

    yield Natural
    Note.variants._entries.pop("natural")


def test_a_variant_is_given_by_name_by_kind_or_as_an_object(natural):
    assert Tune.model_validate({"note": "natural"}).note == natural()
    assert Tune.model_validate({"note": {"kind": "natural", "clear": 4}}).note == natural(clear=4)
    assert Tune(note=natural(), notes=[Flat(), natural()], last=natural()).notes[1].play() == "="
    assert Tune.model_validate({"notes": ["flat", {"kind": "double-sharp"}]}).notes == [
        Flat(),
        Sharp(kind="double-sharp"),
    ]
    assert Tune.model_validate({"note": {"by": 2.0}}).note == Flat(by=2.0), "the kind stays at its default"


def test_what_is_written_is_read_back(natural):
    tune = Tune(note=natural(clear=9), notes=[Sharp(height=2), Flat()], last=Flat(by=3.0))
    tree = tune.model_dump(mode="json")
    assert tree["note"] == {"kind": "natural", "loud": False, "clear": 9}
    assert json.loads(tune.model_dump_json()) == tree
    assert Tune.model_validate(tree) == tune
    assert "kind" not in tune.model_dump(exclude={"note": {"kind"}})["note"]


def test_variants_are_frozen_and_strict_like_all_specs():
    with pytest.raises(ValidationError):
        Tune.model_validate({"note": {"kind": "flat", "by": "2"}})
    with pytest.raises(ValidationError):
        Tune().note.loud = True  # pyright: ignore
    with pytest.raises(TypeError):
        Note()  # pyright: ignore


@pytest.mark.parametrize(
    "given, place, type_",
    [
        ("flatt", ("note",), "kind_unknown"),
        ({"kind": 5}, ("note",), "kind_unknown"),
        (5, ("note",), "model_attributes_type"),
        ({"kind": "flat", "by": -1.0}, ("note", "by"), "greater_than"),
        ({"kind": "flat", "height": 1}, ("note", "height"), "extra_forbidden"),
    ],
)
def test_an_error_names_its_place(given, place, type_):
    with pytest.raises(ValidationError) as caught:
        Tune.model_validate({"note": given})
    (detail,) = caught.value.errors()
    assert detail["loc"] == place and detail["type"] == type_


def test_a_list_has_no_default_kind():
    with pytest.raises(ValidationError) as caught:
        Tune.model_validate({"notes": [{"by": 1.0}]})
    (detail,) = caught.value.errors()
    assert detail["loc"] == ("notes", 0) and set(detail["ctx"]["known"]) >= {"flat", "sharp"}  # pyright: ignore


def test_a_base_without_a_kind_cannot_be_chosen_and_a_class_may_have_several_kinds(natural):
    assert variants(Tune, ["note"]) == [Flat, Sharp, natural]
    assert kinds(Pitched) == [] and kinds(Sharp) == ["sharp", "double-sharp"]
    assert {"note.clear", "note.by", "note.height", "note.loud"} <= set(known_keys(Tune))


def test_a_subclass_with_the_same_kind_does_not_replace_its_parent():
    class Flatter(Flat):
        pass

    assert Note.variants["flat"] is Flat
    assert isinstance(Tune(note=Flatter()).note, Flatter)


def test_duplicate_names_are_refused_with_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "my_notes.py"
    mine.write_text(
        "from typing import Literal\nfrom test_variants import Note\n\n\n"
        'class Flat(Note):\n    kind: Literal["flat"] = "flat"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_variants", sys.modules[__name__])
    with pytest.raises(UserError, match=r"test_variants\.py:\d+ and in .*my_notes\.py:5"):
        __import__("my_notes")
    assert Note.variants["flat"] is Flat


def test_a_notebook_cell_that_is_run_again_replaces_its_variant():
    made = []
    for _ in range(2):

        class Again(Note):
            kind: Literal["again"] = "again"

            def play(self) -> str:
                return ""

        made.append(Again)
    assert made[0] is not made[1] and Note.variants["again"] is made[1]
    Note.variants._entries.pop("again")


def test_registries_hold_anything():
    found: Registry[int] = Registry("count")
    found.add("one", 1, __name__)
    assert found.find("one") == 1 and found.of_module(__name__) == ["one"]
    with pytest.raises(UserError, match=r"no count 'on'.*'one'"):
        found.find("on")
    found.forget(__name__)
    assert not found
