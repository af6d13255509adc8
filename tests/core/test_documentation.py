import sys

from headway.core.plugins import forget, load_text
from headway.core.spec import Spec, documentation


class Base(Spec):
    width: int = 1
    """How wide,
    in numbers."""
    kind: str = "base"
    """Of the base."""
    silent: int = 0
    "a word".upper()


class Below(Base):
    kind: str = "below"  # has no docstring, and does not inherit that of the base's field
    depth: int = 2
    """How deep."""


def test_the_string_below_a_field_is_its_documentation_and_is_inherited_with_it():
    assert documentation(Base) == {"width": "How wide,\nin numbers.", "kind": "Of the base."}
    assert documentation(Below) == {"width": "How wide,\nin numbers.", "depth": "How deep."}


def test_a_class_without_source_has_none():
    made = type("Made", (Spec,), {"__annotations__": {"size": int}, "size": 3, "__module__": "nowhere"})
    assert documentation(made) == {}


PLUGIN = '''
from typing import Literal

from headway.training.averaging import AveragingSpec


class Told(AveragingSpec):
    kind: Literal["told"] = "told"
    size: int = 3
    """Of what a user wrote."""

    def share(self, step, total):
        raise NotImplementedError
'''


def test_that_of_a_plugin_is_found_without_its_file():
    plugin = load_text("told.py", PLUGIN)
    try:
        assert documentation(sys.modules[plugin.module].Told)["size"] == "Of what a user wrote."
    finally:
        forget(plugin)
