"""Whether runs read the same tokens: only then may their predictions be averaged, or their losses share an axis."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.core.errors import UserError
from headway.core.yaml import flat
from headway.run.folder import Run


@contextmanager
def naming(run: Run) -> Iterator[None]:
    """What is refused is refused of this run, where there are several."""
    try:
        yield
    except UserError as refused:
        raise UserError(f"{run.name}: {refused}") from None


def check_same_tokens(runs: Sequence[Run]) -> None:
    """Runs on other data, or on other tokens of them, are refused; so is one that is named twice."""
    first, seen = runs[0], set()
    for run in runs:
        if run.folder.resolve() in seen:
            raise UserError(f"{run.name} is named twice")
        seen.add(run.folder.resolve())
        if first.facts.get("corpus") != run.facts.get("corpus"):
            both = f"{first.name} and {run.name} were trained on different data, or on different tokens of them"
            raise UserError(f"{both}: {_what_differs(first, run)}")
        if _vocabularies(first) != _vocabularies(run):
            raise UserError(f"{first.name} and {run.name} have different vocabularies: their tokens are not the same")


def _what_differs(one: Run, other: Run) -> str:
    """By the recipes, of the keys that both have."""
    ours, theirs = (_data_keys(run) for run in (one, other))
    differing = [f"{key} is {ours[key]} and {theirs[key]}" for key in ours.keys() & theirs if ours[key] != theirs[key]]
    return "; ".join(sorted(differing)) or f"both say {one.recipe.data.source}, which has changed in between"


def _data_keys(run: Run) -> dict[str, Any]:
    """Of the text and its tokens; how batches are made of them is another matter."""
    tree = run.recipe.data.model_dump(mode="json", exclude={"batches", "segment"})
    return flat({"data": tree})


def _vocabularies(run: Run) -> dict[str, str]:
    """By their files: a translator may have two."""
    names = sorted({"tokenizer.json", *(path.name for path in run.folder.glob("*tokenizer.json"))})
    return {name: run.tokenizer_in(name).to_json() for name in names}
