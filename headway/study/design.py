"""A study: a base recipe, what varies, seeds, and the questions asked. From YAML or from Python; strict like a recipe.

title: Does re-weighting heads by their norm help?
base: demo                                  # a packaged recipe's name, a YAML file, or a recipe written out
changes: [training.duration=300 steps]      # for all arms
arms:                                       # what is compared, by name: changes to the base …
  concat: []
  reweight: [model.mixer.fusion=reweight]
# factors:                                  # … or factors, and every combination of their levels is an arm
#   positions: {key: model.positions, values: [learned, alibi]}
#   size: {keys: [model.width, model.layers], values: [[64, 2], [128, 4]]}      # vary together
seeds: 8                                    # 0..7; or a list
equal: flops                                # steps, tokens, flops, seconds; left out: what each recipe says
questions:
  - {kind: better, arm: reweight, than: concat, on: valid.perplexity}
measures: [{kind: segments, lengths: [64, 16]}]      # more than the recipe scores: valid-64.perplexity …
look: [{text: "Return the size of the file."}]       # attention maps for the report
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from headway import recipe as recipes
from headway.errors import UserError, did_you_mean
from headway.experiment import check_names
from headway.recipe import Recipe
from headway.resuming import flat
from headway.spec import Problem, Spec
from headway.study.claims import Claim, Look, Reported
from headway.study.factors import Arm, Change, Factor, crossed
from headway.study.measures import Measure
from headway.study.questions import Better, Depends, Ordered, Question
from headway.validation import ImpossibleError, InvalidError, validated
from headway.yaml_tree import read_tree

MOST_RUNS = 10_000
CHEAP_METHODS = ("majority", "bag of words", "unigram", "5-gram")
"""What every score is set beside, and what an arm may be compared with (headway/audit/baselines.py)."""
HOW_IT_IS_READ = ("data.segment", "data.batches.")
"""Of `data`, what is a matter of training: the text and its tokens are the same."""

Budget = Literal["steps", "tokens", "flops", "seconds"]


class PlannedRun(NamedTuple):
    arm: str
    seed: int
    recipe: Recipe
    name: str
    """Of its folder."""


def _recipe_or_name(given: Any, validate: Callable[[Any], Recipe]) -> Recipe:
    try:
        return recipes.load(given) if isinstance(given, str) else validate(given)
    except ImpossibleError as error:
        raise ImpossibleError([Problem(tuple(f"base.{k}" for k in p.keys), p.reason) for p in error.problems]) from None
    except UserError as error:
        raise PydanticCustomError("base", "{why}?", {"why": str(error).rstrip("?")}) from None


def _numbered(given: Any) -> Any:
    """8 = 0..7."""
    seeds = list(range(given)) if type(given) is int and 0 < given <= MOST_RUNS else given
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise PydanticCustomError("seeds", "expected how many seeds (8 = 0..7), or a list of them")
    if len(set(seeds)) < len(seeds):
        raise PydanticCustomError("seeds", "a seed stands there twice: it would be the same run again")
    return seeds


class Study(Spec):
    title: str
    """The question, in words."""
    base: Annotated[Recipe, WrapValidator(_recipe_or_name)]
    """What all arms begin with: a packaged recipe's name, a YAML file (beside the study's own), or a recipe."""
    changes: list[Change] = Field(default=[])
    """To the base, for all arms."""
    named_arms: dict[str, list[Change]] = Field(default={}, alias="arms")
    """What is compared, by name: for each arm its changes to the base."""
    factors: dict[str, Factor] = Field(default={})
    """Instead of arms: keys of the recipe and their values; every combination is an arm."""
    seeds: Annotated[list[int], BeforeValidator(_numbered)] = Field(default=list(range(8)))
    """How many, or which. Every arm is trained with each, and arms are compared seed by seed."""
    equal: Budget | None = None
    """What every arm may spend, as much as the first: steps, tokens, flops or seconds; null = what each recipe says."""
    questions: list[Question] = Field(default=[])
    """What is asked. Each gets a verdict."""
    about: str = ""
    """What a reader should know beforehand: the setting, the data, where they come from."""
    measures: list[Measure] = Field(default=[])
    """What is measured beside the scores of the recipe, once a run has ended; may be asked about like any score."""
    look: list[Look] = Field(default=[])
    """Sentences whose attention maps the report shows."""
    reported: Reported | None = None
    """What somebody found when they did this."""
    claims: list[Claim] = Field(default=[])
    """What that person said, each as a question with their answer to it, or as an audit that must pass."""

    @model_validator(mode="after")
    def _goes_together(self) -> "Study":
        if problems := list(self.all_problems()):
            raise ImpossibleError(problems)
        return self

    # --- what follows from it --------------------------------------------------------------------------------------

    @cached_property
    def arms(self) -> list[Arm]:
        """What is compared; the first is what the others' budgets are measured by."""
        if self.factors:
            return crossed(self.factors)
        return [Arm(name, tuple(changes)) for name, changes in self.named_arms.items()]

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Each arm's recipe, as it is written: without its budget, and with the base's seed."""
        base = self.base.with_changes(self.changes, "")
        return {arm.name: base.with_changes(arm.changes, "") for arm in self.arms}

    @cached_property
    def asked(self) -> list[Question]:
        """Every question: those that claims are answers to, and the study's own."""
        found: list[Question] = []
        for question in [*(claim.ask for claim in self.claims if claim.ask is not None), *self.questions]:
            if question not in found:
                found.append(question)
        return found

    def runs(self, steps: Mapping[str, int] | None = None) -> list[PlannedRun]:
        """Every arm with every seed; `steps` are the budgets of arms that do not train for what their recipe says."""
        budgets = {arm: [f"training.duration={n} steps"] for arm, n in (steps or {}).items()}
        trained = {arm: r.with_changes(budgets[arm]) if arm in budgets else r for arm, r in self.recipes.items()}
        return [
            PlannedRun(arm, seed, recipe.model_copy(update={"seed": seed}), f"{arm}.seed-{seed}")
            for arm, recipe in trained.items()
            for seed in self.seeds
        ]

    def differences(self) -> dict[str, list[Any]]:
        """The keys in which arms differ, and each arm's value."""
        trees = [flat(recipe.model_dump(mode="json")) for recipe in self.recipes.values()]
        keys = dict.fromkeys(key for tree in trees for key in tree)
        rows = {key: [tree.get(key) for tree in trees] for key in keys}
        return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}

    def warnings(self) -> list[str]:
        """What is allowed but has misled people."""
        found = list(dict.fromkeys(w for recipe in self.recipes.values() for w in recipe.warnings()))
        if self.asked and len(self.seeds) == 1:
            found.append(
                "with one seed there is no spread to compare a difference with: "
                "every verdict will be 'cannot say'; give seeds: 3 or more"
            )
        if unlike := [key for key in self.differences() if is_data(key)]:
            found.append(
                f"the arms do not read the same data: they differ in {', '.join(unlike)}; "
                "a score on other text, or on other tokens, is another score"
            )
        return found

    # --- what is wrong with it -------------------------------------------------------------------------------------

    def problems(self) -> Iterator[Problem]:
        if bool(self.named_arms) == bool(self.factors):
            reason = "give one of them; a single arm is arms: {name: []}"
            yield Problem(("arms", "factors"), f"{'both are' if self.factors else 'neither is'} given: {reason}")
            return
        if wrong := list(self._wrong_factors()):
            yield from wrong
            return
        yield from list(self._wrong_names()) or self._wrong_recipes()
        yield from self._wrong_questions()
        for key in ("measures", "claims"):
            for k, part in enumerate(getattr(self, key)):
                yield from part.all_problems(f"{key}.{k}.")

    def _wrong_factors(self) -> Iterator[Problem]:
        for name, factor in self.factors.items():
            yield from factor.all_problems(f"factors.{name}.")
            data = [key for key in factor.all_keys if is_data(key)]
            if other := [key for key in factor.all_keys if key not in data and data]:
                reason = f"it changes the data ({', '.join(data)}) as well as {', '.join(other)}, and nobody could tell"
                yield Problem((f"factors.{name}.keys",), f"{reason} which of them mattered; make them two factors")
            if "seed" in factor.all_keys:
                yield Problem((f"factors.{name}",), "seeds are no factor; say which ones with seeds:")
        count = math.prod(len(factor.values) for factor in self.factors.values()) * len(self.seeds)
        if count > MOST_RUNS:
            yield Problem(("factors", "seeds"), f"{count:,} runs are more than a study should hold ({MOST_RUNS:,})")

    def _wrong_names(self) -> Iterator[Problem]:
        for arm in self.arms:
            try:
                check_names([arm.name, f"{arm.name}.seed-{max(self.seeds)}"])
            except UserError as error:
                reason = str(error).replace("of a run", "of an arm").partition("; --runs")[0]
                yield Problem((self._place(arm.name),), reason)

    def _place(self, arm: str) -> str:
        return f"arms.{arm}" if self.named_arms else "factors"

    def _wrong_recipes(self) -> Iterator[Problem]:
        try:
            base = self.base.with_changes(self.changes, "")
        except InvalidError as error:
            yield Problem(("changes",), "; ".join(error.complaints))
            return
        wrong = {}
        for arm in self.arms:
            try:
                base.with_changes(arm.changes, "")
            except InvalidError as error:
                wrong[arm.name] = error.complaints
        if wrong:
            yield from self._blamed(wrong)
            return
        yield from self._wrong_comparisons()

    def _blamed(self, wrong: dict[str, list[str]]) -> Iterator[Problem]:
        """A thing that is wrong is said once: of an arm, or of the factor whose key it is."""
        said = set()
        for arm, complaints in wrong.items():
            for complaint in complaints:
                key = complaint.partition(":")[0]
                owners = [f"factors.{name}" for name, factor in self.factors.items() if key in factor.all_keys]
                place = (owners or [self._place(arm)])[0]
                if (place, complaint) not in said:
                    said.add((place, complaint))
                    yield Problem((place,), complaint)

    def _wrong_comparisons(self) -> Iterator[Problem]:
        same: dict[str, str] = {}
        for arm, recipe in self.recipes.items():
            if (other := same.setdefault(recipe.hash, arm)) != arm:
                yield Problem((self._place(arm),), f"it is the same recipe as '{other}'")
        unlike = self.differences()
        if "seed" in unlike:
            yield Problem(("arms",), "the seed is no part of an arm; say which ones with seeds:")
        if self.equal is not None and "training.duration" in unlike:
            reason = f"equal {self.equal} decides how long arms train, but training.duration varies"
            yield Problem(("equal",), reason)
        data, others = ([key for key in unlike if is_data(key) == wanted] for wanted in (True, False))
        if self.factors or not data or not others:
            return
        names = list(self.recipes)
        for a, b in itertools.combinations(range(len(names)), 2):
            texts, rest = ([key for key in keys if unlike[key][a] != unlike[key][b]] for keys in (data, others))
            if texts and rest:
                both = f"in data ({', '.join(texts)}) as well as in {', '.join(rest)}"
                reason = f"it differs from '{names[a]}' {both}: nobody could tell which of them mattered"
                yield Problem((f"arms.{names[b]}",), reason)
                return

    def _wrong_questions(self) -> Iterator[Problem]:
        arms = [arm.name for arm in self.arms]
        named = {
            **{f"claims.{k}.ask": claim.ask for k, claim in enumerate(self.claims) if claim.ask is not None},
            **{f"questions.{k}": question for k, question in enumerate(self.questions)},
        }
        for place, question in named.items():
            yield from question.all_problems(f"{place}.")
            asked = {
                **({"arm": arms} if isinstance(question, Better | Ordered) else {}),
                **({"than": [*arms, *CHEAP_METHODS]} if isinstance(question, Better) else {}),
                **({"effect": [*self.factors], "on_factor": [*self.factors]} if isinstance(question, Depends) else {}),
            }
            for key, known in asked.items():
                name = getattr(question, key)
                if name not in known:
                    what = "arm" if key in ("arm", "than") else "factor"
                    reason = f"there is no {what} '{name}'{did_you_mean(name, known)}"
                    yield Problem((f"{place}.{key}",), reason)
        for place, arm in self._arms_of_a_case():
            if arm not in arms:
                yield Problem((place,), f"there is no arm '{arm}'{did_you_mean(arm, arms)}")

    def _arms_of_a_case(self) -> Iterator[tuple[str, str]]:
        """What the rest of a case says of arms: where, and of which."""
        for arm in self.reported.figures if self.reported else ():
            yield "reported.figures", arm
        for k, claim in enumerate(self.claims):
            if claim.arm is not None:
                yield f"claims.{k}.arm", claim.arm
        for k, look in enumerate(self.look):
            if look.arm is not None:
                yield f"look.{k}.arm", look.arm


def is_data(key: str) -> bool:
    """Whether a key of the recipe says what is read: which text, in which tokens."""
    return key.startswith("data.") and not f"{key}.".startswith(HOW_IT_IS_READ)


def load_study(name: str | Path, studies: Path = Path("studies")) -> Study:
    """A study by its YAML file, by its folder, or by its name in `studies`."""
    path = _study_file(Path(name), studies)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the study {path}: {error}") from None
    tree, lines = read_tree(text, path.name)
    base = tree.get("base")
    if isinstance(base, str) and base not in recipes.packaged() and (path.parent / base).is_file():
        tree["base"] = str(path.parent / base)

    def place(key: tuple[str, ...]) -> str:
        while key and key not in lines:  # places in a list have no lines of their own
            key = key[:-1]
        return f"{path.name}:{lines[key]}" if key else ""

    return validated(Study, tree, path.name, place)


def _study_file(given: Path, studies: Path) -> Path:
    for path in (given, given / "study.yaml", studies / given / "study.yaml"):
        if path.is_file():
            return path
    if given.suffix in (".yaml", ".yml"):
        beside = [str(file) for file in given.parent.glob("*.y*ml")]
        raise UserError(f"there is no study file {given}{did_you_mean(str(given), beside)}")
    known = [path.parent.name for path in studies.glob("*/study.yaml")]
    raise UserError(f"there is no study '{given}'{did_you_mean(str(given), known)}; a study's file ends in .yaml")
