"""A recipe as text for people: every key, its value, and what it means. The text is itself a recipe."""

import json
import textwrap
from typing import Any

from headway.recipe import Recipe
from headway.spec import Spec

WIDTH = 118


def annotated(recipe: Recipe) -> str:
    """The whole recipe as YAML, with the documentation of each key above it."""
    return "\n".join(_lines(recipe, 0)) + "\n"


def head_comment(text: str) -> str:
    """The comment a recipe file begins with: what it is, its command, what to expect."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line + "\n")
    return "".join(lines)


def first_sentence(text: str) -> str:
    """The first line of the head comment."""
    return head_comment(text).partition("\n")[0].lstrip("# ")


def _lines(spec: Spec, depth: int) -> list[str]:
    indent, found = "  " * depth, []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        text = field.description or (type(value).__doc__ if isinstance(value, Spec) else "") or ""
        found += [f"{indent}# {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH - len(indent) - 2)]
        if isinstance(value, Spec):
            found.append(f"{indent}{name}:")
            found += _lines(value, depth + 1)
        else:
            found.append(f"{indent}{name}: {_plain(spec.model_dump(mode='json')[name])}")
        if depth == 0:
            found.append("")
    return found


def _plain(value: Any) -> str:
    """A value as YAML reads it back: JSON, without quotes around words that need none."""
    if isinstance(value, str) and value.replace("-", "").replace(" ", "").isalnum() and not value[0].isdigit():
        return value if value not in ("true", "false", "null", "nan") else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)
