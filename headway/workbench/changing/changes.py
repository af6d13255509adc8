"""Recipes and runs with changes: the form, its errors, the differences, the command. Runs in a worker, which can parse
recipes.

Changes have the form of the command line, `key.path=value`, and are applied by the same code, so a page reports the
same errors as `headway train`.
"""

import copy
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway import tasks
from headway.core.errors import UserError
from headway.core.files import check_names
from headway.core.validation import InvalidError
from headway.core.yaml import flat, write_tree
from headway.recipe.library import first_sentence, packaged
from headway.recipe.naming import name_of_changed
from headway.recipe.recipe import Recipe, apply_changes, load
from headway.scoring.metrics import is_test
from headway.workbench.changing.form import fields_of, typed


def bases() -> dict[str, str]:
    """The packaged recipes, each with a one-sentence description."""
    return {name: first_sentence(text) for name, text in sorted(packaged().items())}


def form(base: str, changes: Sequence[str], shown: str) -> dict[str, Any]:
    """The form for changing a recipe. `base`: a packaged recipe, or the path of a run's recipe.yaml; `shown`: its name
    on a command line in the served folder."""
    original = _original(base)
    answer: dict[str, Any] = {"base": shown, "complaints": [], "difference": [], "warnings": [], "command": None}
    changed: Recipe | None = None
    try:
        changed = load(base, changes)
    except InvalidError as wrong:
        answer["complaints"] = [{"line": line, "keys": list(keys)} for line, keys in wrong.complaints.items()]
    except UserError as wrong:
        answer["complaints"] = [{"line": str(wrong), "keys": []}]
    was = original.model_dump(mode="json", by_alias=True)
    if changed is not None:
        values = changed.model_dump(mode="json", by_alias=True)
        answer["difference"] = difference(original, changed)
        answer["warnings"] = changed.warnings()
        answer["command"] = shlex.join(["headway", "train", shown, *changes])
        answer["name"] = suggested_name(shown, changes, changed)
        answer["score"] = judged_by(changed)
    else:
        values = _as_far_as_it_goes(was, changes)
    return {**answer, "fields": fields_of(Recipe, values, was)}


def difference(original: Recipe, changed: Recipe) -> list[dict[str, str | None]]:
    """The keys that differ, with the old and new value; null if a recipe does not have the key."""
    was, now = (flat(one.model_dump(mode="json", by_alias=True)) for one in (original, changed))
    gone = object()
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key, gone) != now.get(key, gone)]

    def told(of: dict[str, Any], key: str) -> str | None:
        return typed(of[key]) if key in of else None

    return [{"key": key, "was": told(was, key), "is": told(now, key)} for key in keys]


def judged_by(recipe: Recipe) -> str:
    """The score by which such a run is judged, on a split other than test: valid.perplexity."""
    headline = tasks.of(recipe).headline_of(recipe).name
    splits = [*(recipe.scoring.splits or []), *recipe.training.evaluate_on, "valid"]
    return f"{next(split for split in splits if not is_test(split))}.{headline}"


def suggested_name(shown: str, changes: Sequence[str], recipe: Recipe) -> str:
    """The name that `headway train` would choose; for a run's recipe, based on the run's name."""
    named = Path(shown).parent.name if shown.endswith("/recipe.yaml") else shown
    return name_of_changed(named, changes, recipe.hash)


def study_text(base: str, changes: Sequence[str], seeds: int, shown: str) -> str:
    """A study that compares the original and the change, as YAML; a run's recipe is written out in it."""
    return write_tree(_study(base, changes, seeds, shown))


def takes(base: str, changes: Sequence[str], seeds: int, shown: str) -> dict[str, Any]:
    """What the change takes, compared with the original: parameters, steps, seconds, measured on a few steps."""
    from headway.study.design.study import Study
    from headway.study.execution.execute import suited
    from headway.study.execution.plan import plan

    tree = _study(base, changes, seeds, shown, may_be_same=True)
    study = Study.model_validate({**tree, "base": _original(base)})
    found = plan(study, suited(study).workforce)
    arms = {name: asdict(arm) for name, arm in found.arms.items()}
    return {"arms": arms, "seconds": found.seconds, "memory": found.memory, "warnings": found.warnings}


def _study(base: str, changes: Sequence[str], seeds: int, shown: str, may_be_same: bool = False) -> dict[str, Any]:
    original, changed = _original(base), load(base, changes)
    same = not difference(original, changed)
    if same and not may_be_same:
        raise UserError("nothing is changed, so there is nothing to compare with the original")
    arm = name_of_changed("", changes, changed.hash).removeprefix("-")
    arms = {"original": []} if same else {"original": [], arm: list(changes)}
    check_names(list(arms), "an arm")
    question = {"kind": "better", "arm": arm, "than": "original", "on": judged_by(original)}
    return {
        "title": f"Does {' '.join(changes)} help {Path(shown).parent.name if '/' in shown else shown}?",
        "base": shown if base == shown else original.model_dump(mode="json", by_alias=True),
        "arms": arms,
        "seeds": seeds,
        "questions": [] if same else [question],
    }


def _original(base: str) -> Recipe:
    path = Path(base)
    return _loaded(base, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=16)
def _loaded(base: str, changed_at: int) -> Recipe:
    return load(base)


def _as_far_as_it_goes(was: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The form's values while the recipe is invalid: the original values, with every change that can be applied."""
    values = copy.deepcopy(was)
    for change in changes:
        attempt = copy.deepcopy(values)
        try:
            apply_changes(attempt, [change])
        except UserError:
            continue
        values = attempt
    return values
