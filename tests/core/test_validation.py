from collections.abc import Iterator
from typing import Literal

import pytest
from pydantic import Field

from headway.core.errors import UserError
from headway.core.spec import Problem, Spec
from headway.core.validation import ImpossibleError, known_keys, validated
from headway.core.variants import Variant


class Shape(Variant):
    pass


class Round(Shape):
    kind: Literal["round"] = "round"
    radius: float = Field(default=1.0, gt=0)


class Square(Shape):
    kind: Literal["square"] = "square"
    side: int = Field(default=2, ge=1)


class Box(Spec):
    shape: Shape = Round()
    colour: Literal["red", "green"] = "red"
    labels: list[str] = Field(default=[])
    most: int = 3

    def problems(self) -> Iterator[Problem]:
        if len(self.labels) > self.most:
            yield Problem(("labels", "most"), f"{len(self.labels)} labels are more than {self.most}")


class Shelf(Spec):
    box: Box = Box()
    height: int = 10

    def model_post_init(self, context: object) -> None:
        if problems := list(self.all_problems()):
            raise ImpossibleError(problems)


def complaints(tree: dict, lines: dict[str, int] | None = None) -> list[str]:
    places = {tuple(key.split(".")): f"s.yaml:{line}" for key, line in (lines or {}).items()}
    with pytest.raises(UserError) as caught:
        validated(Shelf, tree, "s.yaml", lambda path: places.get(path, ""))
    title, *rest = str(caught.value).splitlines()
    count = "one thing is wrong" if len(rest) == 1 else f"{len(rest)} things are wrong"
    assert title == f"s.yaml: {count}"
    return [line.strip() for line in rest]


def test_a_valid_tree_becomes_its_spec():
    made = validated(Shelf, {"box": {"shape": {"kind": "square", "side": 4}}}, "s.yaml", lambda path: "")
    assert made == Shelf(box=Box(shape=Square(side=4)))


def test_the_tree_is_not_changed():
    tree = {"box": {"colour": "blue"}, "hieght": 3}
    complaints(tree)
    assert tree == {"box": {"colour": "blue"}, "hieght": 3}


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ({"hieght": 3}, "hieght: unknown key; did you mean 'height'?"),
        ({"colour": "red"}, "colour: unknown key; did you mean 'box.colour'?"),
        ({"box": {"radius": 3}}, "box.radius: unknown key; did you mean 'box.shape.radius'?"),
        ({"box": {"x": 3}}, "box.x: unknown key; there are: colour, labels, most, shape"),
        ({"height": "tall"}, "height: expected a valid integer, not 'tall'"),
        ({"height": 3.5}, "height: expected a valid integer, not 3.5"),
        ({"height": True}, "height: expected a valid integer, not True"),
        ({"height": None}, "height: expected a valid integer, not None"),
        ({"box": 3}, "box: expected keys and values, not 3"),
        ({"box": {"colour": "gren"}}, "box.colour: expected 'red' or 'green', not 'gren'; did you mean 'green'?"),
        ({"box": {"shape": "rund"}}, "box.shape: unknown kind 'rund'; did you mean 'round'?"),
        ({"box": {"shape": "hexagon"}}, "box.shape: unknown kind 'hexagon'; there are: round, square"),
        ({"box": {"shape": {"radius": -1}}}, "box.shape.radius: expected a number greater than 0, not -1"),
        ({"box": {"shape": {"radius": float("nan")}}}, "box.shape.radius: expected a finite number, not nan"),
        (
            {"box": {"shape": {"kind": "square", "radius": 1}}},
            "box.shape.radius: square has no such setting; round has",
        ),
        ({"box": {"shape": {"kind": "square", "sid": 1}}}, "box.shape.sid: unknown key; did you mean 'side'?"),
        ({"box": {"shape": {"sid": 1}}}, "box.shape.sid: unknown key; there are: kind, radius"),
        ({"box": {"labels": ["a", 2]}}, "box.labels.1: expected a valid string, not 2"),
        ({"box": {"labels": "abc"}}, "box.labels: expected a valid list, not 'abc'"),
        ({"box": {"labels": list("abcd")}}, "box.labels, box.most: 4 labels are more than 3"),
    ],
)
def test_one_mistake_is_one_line(tree, complaint):
    (line,) = complaints(tree)
    assert line.startswith(complaint)


def test_all_mistakes_are_reported_at_once_with_their_lines():
    tree = {"hieght": 3, "box": {"colour": 5, "shape": {"radius": "wide"}, "labels": list("abcd"), "lable": 1}}
    lines = {"hieght": 1, "box.colour": 2, "box.shape.radius": 4, "box.labels": 5, "box.lable": 6}
    found = complaints(tree, lines)
    assert len(found) == 5
    for key, line in lines.items():
        assert any(complaint.startswith(f"s.yaml:{line}: {key}") for complaint in found), key


def test_a_combination_with_an_invalid_key_is_not_checked():
    assert complaints({"box": {"labels": list("abcd"), "most": "many"}}) == [
        "box.most: expected a valid integer, not 'many'"
    ]


def test_an_invalid_combination_names_all_its_keys():
    tree = {"box": {"labels": list("abcd"), "most": 2}}
    (line,) = complaints(tree, {"box.labels": 3, "box.most": 7})
    assert line.startswith("s.yaml:3, s.yaml:7: box.labels, box.most: ")


def test_known_keys_are_those_of_all_variants():
    assert {"box", "box.shape", "box.shape.kind", "box.shape.radius", "box.shape.side", "height"} <= {
        *known_keys(Shelf)
    }


def test_an_invalid_combination_made_in_python_is_a_clear_message():
    with pytest.raises(UserError, match=r"box.labels, box.most: 4 labels are more than 3"):
        Shelf(box=Box(labels=list("abcd")))
