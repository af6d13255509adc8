"""Write a recipe as annotated YAML: every key, its value, and its documentation. The text is itself a recipe."""

import textwrap
from collections.abc import Sequence
from functools import cache

from headway.core.spec import Spec, documentation
from headway.core.yaml import write_value
from headway.recipe.plugins import used_by
from headway.recipe.recipe import Recipe

WIDTH = 118


def annotated(recipe: Recipe, plugins: Sequence[str] | None = None) -> str:
    """The whole recipe as YAML, with the documentation of each key above it. `plugins`: names for those it needs,
    instead of the places they were read from."""
    if plugins is None:
        plugins = [plugin.path if plugin.is_file else plugin.name for plugin in used_by(recipe)]
    needed = [f"plugins: {write_value(list(plugins))}", ""] if plugins else []
    return "\n".join([*needed, *_lines(recipe, 0)]) + "\n"


def _lines(spec: Spec, depth: int) -> list[str]:
    indent, plain, found = "  " * depth, spec.model_dump(mode="json"), []
    # The kind first, because the meaning of the other keys depends on it.
    for name, field in sorted(type(spec).model_fields.items(), key=lambda item: item[0] != "kind"):
        value, written = getattr(spec, name), field.alias or name
        text = documentation(type(spec)).get(name) or (type(value).__doc__ if isinstance(value, Spec) else "") or ""
        found += [f"{indent}# {line}" for line in _wrapped(text, WIDTH - len(indent) - 2)]
        if isinstance(value, Spec):
            found.append(f"{indent}{written}:")
            found += _lines(value, depth + 1)
        elif isinstance(value, list) and value and all(isinstance(one, Spec) for one in value):
            found.append(f"{indent}{written}:")
            found += [f"{indent}  - {write_value(one.model_dump(mode='json'))}" for one in value]
        else:
            found.append(f"{indent}{written}: {write_value(plain[written])}")
        if depth == 0:
            found.append("")
    return found


@cache
def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text; cached, since the members of a population share it."""
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
