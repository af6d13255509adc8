import math

import pytest

from headway.core.errors import UserError
from headway.core.yaml import read_tree, read_value

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that expand to nine to the ninth values."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("1_000", 1000),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("3.", 3.0),
        (".5", 0.5),
        ("+2.5e+2", 250.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("500 steps", "500 steps"),
        ("cuda:1", "cuda:1"),
        ("[valid, test]", ["valid", "test"]),
        ("[]", []),
        ("{kind: rotary, base: 500}", {"kind": "rotary", "base": 500}),
        ("'1'", "1"),
        ("[not closed", "[not closed"),
    ],
)
def test_a_value_is_read_as_intended(text, value):
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["nan", ".nan", "NaN"])
def test_nan_is_read_as_a_number(text):
    assert math.isnan(read_value(text))


@pytest.mark.parametrize(("text", "value"), [("inf", math.inf), ("-.inf", -math.inf), ("+Inf", math.inf)])
def test_infinity_is_read_as_a_number(text, value):
    assert read_value(text) == value


def test_every_key_knows_its_line():
    tree, lines = read_tree("a: 1\nb:\n  c: 2\n  d: {e: 3}\nf:\n- g: 4\n", "x.yaml")
    assert tree == {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [{"g": 4}]}
    assert lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "d"): 4,
        ("b", "d", "e"): 4,
        ("f",): 5,
        ("f", "0", "g"): 6,
    }


def test_a_file_of_comments_is_an_empty_tree():
    assert read_tree("# nothing\n", "x.yaml") == ({}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  width: 3\n  width: 4\n", "x.yaml:3: model.width is given twice"),
        ("model:\n  width: [3\nx: 1", "x.yaml: not valid YAML: line 3, column 2"),
        ("model:\n\twidth: 3", "x.yaml: not valid YAML: line 2, column 1"),
        ("a: *b", "x.yaml: not valid YAML: line 1, column 4"),
        ("a: 1\n---\nb: 2", "x.yaml: not valid YAML: line 2"),
        ("a: \x00", "x.yaml: not valid YAML"),
        ("- 1\n- 2", "x.yaml: expected keys and values, found a list"),
        ("hello", "x.yaml: expected keys and values, found the single value 'hello'"),
        ("a: 1\n[1, 2]: 3", "x.yaml:2: a key must be a word"),
        ("a: &x\n  b: *x", "x.yaml:1: values are nested more than"),
        ("a:\n  b: " + "[" * 500 + "]" * 500, "x.yaml:2: values are nested more than"),
        ("a: " + "{b: " * 10_000, "values are nested more than"),
        ("".join(f"{'  ' * k}a:\n" for k in range(600)), "values are nested more than"),
        (BOMB, "is more than 20,000 values"),
        ("a: &x [*x, *x, *x]", "values are nested more than"),
        ("a: [" + "1, " * 20_001 + "]", "is more than 20,000 values"),
        ("a: " + "x" * 2_000_000, "2,000,003 characters"),
        ("a:\n  seed: " + "9" * 5000, "x.yaml:2: a number with 5,000 digits"),
        ("a: !!int three", "x.yaml:1: 'three' is not of type int"),
        ("a: !!float [", "not valid YAML"),
        ("a: !!float three", "'three' is not of type float"),
    ],
)
def test_an_invalid_tree_is_refused_with_its_line(text, message):
    with pytest.raises(UserError) as caught:
        read_tree(text, "x.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 500 + "]" * 500, "9" * 5000, "x" * 2_000_000, "!!int three"])
def test_a_single_value_has_the_same_limits(text):
    with pytest.raises(UserError) as caught:
        read_value(text)
    assert len(str(caught.value)) < 200


def test_aliases_are_expanded():
    tree, _ = read_tree("a: &a {b: 1}\nc: *a\nd: [*a, *a]", "x.yaml")
    assert tree == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, {"b": 1}]}
