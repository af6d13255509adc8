"""Validation across fields: everything in a study that is wrong although each value alone is valid."""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.core.errors import UserError, did_you_mean
from headway.core.files import check_names
from headway.core.spec import Problem
from headway.core.validation import InvalidError
from headway.study.design.factors import Factor, is_data, key_of
from headway.study.design.measures import Chosen
from headway.study.design.questions import Best, Better, BetterTuned, Depends, LadderQuestion, PairedBootstrap

if TYPE_CHECKING:
    from headway.study.design.study import Study

MAX_RUNS = 10_000
NO_SEED = "the seed is not part of an arm; list the seeds under seeds:"


def cheap_methods() -> list[str]:
    """The simple baselines of all tasks, with which an arm may be compared."""
    from headway import tasks

    return [method for task in tasks.TASKS.values() for method in task.cheap_methods.names]


def mistakes(study: "Study") -> Iterator[Problem]:
    given = [bool(study.named_arms), bool(study.factors), study.ladder is not None]
    if sum(given) != 1:
        reason = "give one of arms, factors or ladder; a single arm is arms: {name: []}"
        several = "both are" if sum(given) == 2 else "all are"
        yield Problem(("arms", "factors"), f"{several if any(given) else 'neither is'} given: {reason}")
        return
    if wrong := list(_of_factors(study)) + list(_of_ladder(study)):
        yield from wrong
        return
    yield from list(_of_names(study)) or _of_recipes(study)
    yield from _of_questions(study)
    yield from _of_looks(study)
    for key in ("measures", "claims"):
        for k, part in enumerate(getattr(study, key)):
            yield from part.all_problems(f"{key}.{k}.")


# --- what is compared ------------------------------------------------------------------------------------------------


def _of_factors(study: "Study") -> Iterator[Problem]:
    for name, factor in study.factors.items():
        yield from factor.all_problems(f"factors.{name}.")
        data = [key for key in factor.all_keys if is_data(key)]
        if other := [key for key in factor.all_keys if key not in data and data]:
            reason = f"it changes the data ({', '.join(data)}) as well as {', '.join(other)}, so it would be unclear"
            yield Problem((f"factors.{name}.keys",), f"{reason} which of them mattered; make them two factors")
        if "seed" in factor.all_keys:
            yield Problem((f"factors.{name}",), "the seed cannot be a factor; list the seeds under seeds:")
    for (first, one), (second, other) in itertools.combinations(study.factors.items(), 2):
        if key := _in_both(one, other):
            yield Problem((f"factors.{second}",), f"it sets {key}, which '{first}' also sets")
    count = math.prod(len(factor.named or factor.values) for factor in study.factors.values()) * len(study.seeds)
    if count > MAX_RUNS:
        yield Problem(("factors", "seeds"), f"{count:,} runs are too many for one study (at most {MAX_RUNS:,})")


def _of_ladder(study: "Study") -> Iterator[Problem]:
    if study.ladder is None:
        return
    yield from study.ladder.all_problems("ladder.")
    if study.equal is not None:
        yield Problem(("equal",), "a ladder has its own budgets (rungs): leave equal out")
    many = sum(len(rung.widths) for rung in study.ladder.rungs) * max(1, len(study.ladder.families)) * len(study.seeds)
    if many > MAX_RUNS:
        yield Problem(("ladder", "seeds"), f"{many:,} runs are too many for one study (at most {MAX_RUNS:,})")
    try:
        study.base.with_changes(study.changes, "")
    except InvalidError as error:
        yield Problem(("changes",), "; ".join(error.complaints))


def _in_both(one: Factor, other: Factor) -> str | None:
    """A key that both set, entirely or in part: `model.mixer` and `model.mixer.heads`."""
    for a, b in itertools.product(one.all_keys, other.all_keys):
        if f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}."):
            return b
    return None


def _of_names(study: "Study") -> Iterator[Problem]:
    folders: dict[str, str] = {}
    methods = cheap_methods()
    for arm in study.arms:
        try:
            check_names([arm.name, f"{arm.name}.seed-{max(study.seeds)}"], "an arm")
        except UserError as error:
            yield Problem((_place(study, arm.name),), str(error))
        if arm.name in methods:
            yield Problem((_place(study, arm.name),), f"'{arm.name}' is the name of a baseline: choose another name")
        if (other := folders.setdefault(arm.name.casefold(), arm.name)) != arm.name:
            reason = f"'{arm.name}' and '{other}' would be the same folder on a case-insensitive file system"
            yield Problem((_place(study, arm.name),), reason)


def _place(study: "Study", arm: str) -> str:
    return f"arms.{arm}" if study.named_arms else "ladder" if study.ladder else "factors"


def _of_recipes(study: "Study") -> Iterator[Problem]:
    try:
        base = study.base.with_changes(study.changes, "")
    except InvalidError as error:
        yield Problem(("changes",), "; ".join(error.complaints))
        return
    if "seed" in map(key_of, study.changes):
        yield Problem(("changes",), NO_SEED)
    wrong = {}
    for arm in study.arms:
        if "seed" in map(key_of, arm.changes):
            yield Problem((_place(study, arm.name),), NO_SEED)
        try:
            base.with_changes(arm.changes, "")
        except InvalidError as error:
            wrong[arm.name] = error.complaints
    if wrong:
        yield from _blamed(study, wrong)
        return
    yield from _of_comparisons(study)


def _blamed(study: "Study", wrong: dict[str, list[str]]) -> Iterator[Problem]:
    """Report each mistake once: at the arm, or at the factor whose key it concerns."""
    said = set()
    for arm, complaints in wrong.items():
        for complaint in complaints:
            key = complaint.partition(":")[0]
            owners = [f"factors.{name}" for name, factor in study.factors.items() if key in factor.all_keys]
            place = (owners or [_place(study, arm)])[0]
            if (place, complaint) not in said:
                said.add((place, complaint))
                yield Problem((place,), complaint)


def _of_comparisons(study: "Study") -> Iterator[Problem]:
    same: dict[str, str] = {}
    for arm, recipe in () if study.ladder else study.recipes.items():  # budgets are not part of a recipe
        if (other := same.setdefault(recipe.hash, arm)) != arm:
            yield Problem((_place(study, arm),), f"it is the same recipe as '{other}'")
    unlike = study.differences()
    if study.equal is not None and "training.duration" in unlike:
        reason = f"equal: {study.equal} determines how long arms train, but training.duration varies"
        yield Problem(("equal",), reason)
    data, others = ([key for key in unlike if is_data(key) == wanted] for wanted in (True, False))
    if study.factors or study.ladder or not data or not others:
        return
    names = list(study.recipes)
    own = [recipe.model.own_tokenizer is not None for recipe in study.recipes.values()]
    for a, b in itertools.combinations(range(len(names)), 2):
        texts, rest = ([key for key in keys if unlike[key][a] != unlike[key][b]] for keys in (data, others))
        if own[a] or own[b]:  # pretrained weights come with their own tokenizer
            texts = [key for key in texts if not f"{key}.".startswith("data.tokenizer.")]
        if texts and rest:
            both = f"in data ({', '.join(texts)}) as well as in {', '.join(rest)}"
            reason = f"it differs from '{names[a]}' {both}: it would be unclear which of them mattered"
            yield Problem((f"arms.{names[b]}",), reason)
            return


# --- questions, claims and measures ----------------------------------------------------------------------------------


def _of_questions(study: "Study") -> Iterator[Problem]:
    from headway.audit.audit import of_plugins
    from headway.audit.runner import ALL_AUDITS

    arms = [arm.name for arm in study.arms]
    named = {
        **{f"claims.{k}.ask": claim.ask for k, claim in enumerate(study.claims) if claim.ask is not None},
        **{f"questions.{k}": question for k, question in enumerate(study.questions)},
    }
    for place, question in named.items():
        yield from question.all_problems(f"{place}.")
        asked = {
            **({"arm": arms} if "arm" in type(question).model_fields else {}),
            **({"than": [*arms, *cheap_methods()]} if isinstance(question, Better) else {}),
            **({"than": arms} if isinstance(question, PairedBootstrap) else {}),
            **({"effect": [*study.factors], "on_factor": [*study.factors]} if isinstance(question, Depends) else {}),
        }
        if isinstance(question, BetterTuned):
            levels = {arm.levels[question.factor]: 0 for arm in study.arms if question.factor in arm.levels}
            asked |= {"factor": [*study.factors]} | ({"level": [*levels], "than": [*levels]} if levels else {})
        if isinstance(question, LadderQuestion):
            if study.ladder is None:
                yield Problem((place,), f"a question of kind '{question.kind}' needs a ladder, and this study has none")
                continue
            families = [*study.ladder.families] or [""]
            asked = {key: families for key in ("family", "than") if key in type(question).model_fields}
        for key, known in asked.items():
            name = getattr(question, key)
            if name not in known:
                what = "factor" if key in ("effect", "on_factor", "factor") else "level" if len(asked) > 2 else "arm"
                what = "family" if isinstance(question, LadderQuestion) else what
                reason = f"there is no {what} '{name}'{did_you_mean(name, known)}"
                yield Problem((f"{place}.{key}",), reason)
        if isinstance(question, Best) and len(arms) == 1:
            yield Problem((place,), f"'{arms[0]}' is the only arm: there is nothing to compare it with")
    audits = [audit.name for audit in [*ALL_AUDITS, *of_plugins()]]
    for k, claim in enumerate(study.claims):
        if claim.audit is not None and claim.audit not in audits:
            hint = did_you_mean(claim.audit, audits)
            yield Problem((f"claims.{k}.audit",), f"there is no audit '{claim.audit}'{hint}")
    for k, one in enumerate(study.measures):
        if isinstance(one, Chosen) and one.of is not None and one.of not in study.factors:
            reason = f"there is no factor '{one.of}'{did_you_mean(one.of, [*study.factors])}"
            yield Problem((f"measures.{k}.of",), reason)
    for place, arm in _arms_of_a_case(study):
        if arm not in arms:
            yield Problem((place,), f"there is no arm '{arm}'{did_you_mean(arm, arms)}")


def _arms_of_a_case(study: "Study") -> Iterator[tuple[str, str]]:
    """The arms named in reported figures, claims and looks, and where."""
    for arm in study.reported.figures if study.reported else ():
        yield "reported.figures", arm
    for k, claim in enumerate(study.claims):
        if claim.arm is not None:
            yield f"claims.{k}.arm", claim.arm
    for k, look in enumerate(study.look):
        if look.arm is not None:
            yield f"look.{k}.arm", look.arm


def _of_looks(study: "Study") -> Iterator[Problem]:
    """Check layers beforehand: a missing one would otherwise be noticed only after all training."""
    for k, look in enumerate(study.look):
        try:
            recipe = study.recipes.get(look.arm or study.arms[0].name)
        except UserError:  # already reported
            return
        if recipe is not None and look.layer is not None and not 0 <= look.layer < recipe.model.layers:
            many = f"{recipe.model.layers} layer{'s' * (recipe.model.layers > 1)}"
            yield Problem((f"look.{k}.layer",), f"there is no layer {look.layer}: the model has {many}, counted from 0")
