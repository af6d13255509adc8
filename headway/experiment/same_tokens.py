"""Checks that runs read the same tokens: only then can predictions be averaged, or losses share an axis."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.core.errors import UserError
from headway.core.yaml import flat
from headway.run.folder import Run


@contextmanager
def naming_in_errors(run: Run) -> Iterator[None]:
    """Prefix errors with the name of the run, for commands that take several."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{run.name}: {error}") from None


def check_same_tokens(runs: Sequence[Run]) -> None:
    """Refuse runs with different data or tokens, and runs given twice."""
    first, seen = runs[0], set()
    for run in runs:
        if run.folder.resolve() in seen:
            raise UserError(f"{run.name} is given twice")
        seen.add(run.folder.resolve())
        if first.facts.get("corpus") != run.facts.get("corpus"):
            both = f"{first.name} and {run.name} were trained on different data or tokens"
            raise UserError(f"{both}: {_what_differs(first, run)}")
        if _vocabularies(first) != _vocabularies(run):
            raise UserError(f"{first.name} and {run.name} have different vocabularies, so their tokens differ")


def _what_differs(one: Run, other: Run) -> str:
    """The recipe keys of the data that differ, among those that both have."""
    ours, theirs = (_data_keys(run) for run in (one, other))
    differing = [f"{key} is {ours[key]} and {theirs[key]}" for key in ours.keys() & theirs if ours[key] != theirs[key]]
    return "; ".join(sorted(differing)) or f"both use {one.recipe.data.source}, which has changed in between"


def _data_keys(run: Run) -> dict[str, Any]:
    """The recipe keys of the text and its tokens, without those of batches."""
    tree = run.recipe.data.model_dump(mode="json", exclude={"batches", "segment"})
    return flat({"data": tree})


def _vocabularies(run: Run) -> dict[str, str]:
    """Each vocabulary by its file name; a translator may have two."""
    names = sorted({"tokenizer.json", *(path.name for path in run.folder.glob("*tokenizer.json"))})
    return {name: run.tokenizer_in(name).to_json() for name in names}
