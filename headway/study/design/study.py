"""A study: a base recipe, what varies, seeds, and questions. Written in YAML or Python, and validated like a recipe.

title: Does re-weighting heads by their norm help?
base: demo                                  # a packaged recipe's name, a YAML file, or a recipe written out
changes: [training.duration=300 steps]      # for all arms
arms:                                       # what is compared, by name: changes to the base …
  concat: []
  reweight: [model.mixer.fusion=reweight]
# factors:                                  # … or factors: every combination of their levels is an arm
#   positions: {key: model.positions, values: [learned, alibi]}
#   size: {keys: [model.width, model.layers], values: [[64, 2], [128, 4]]}      # vary together
# ladder: …                                 # … or sizes and budgets, for a scaling law (`ladder.py`)
seeds: 8                                    # 0..7; or a list
equal: flops                                # steps, tokens, flops or seconds; without it: what each recipe says
questions:
  - {kind: better, arm: reweight, than: concat, on: valid.perplexity}
measures: [{kind: segments, lengths: [64, 16]}]      # more than the recipe scores: valid-64.perplexity …
look: [{text: "Return the size of the file."}]       # attention maps for the report
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from headway.core.errors import UserError, did_you_mean
from headway.core.reading import read_text
from headway.core.spec import Problem, Spec
from headway.core.validation import ImpossibleError, validated
from headway.core.yaml import flat, read_tree
from headway.recipe.plugins import load_named
from headway.scoring.metrics import is_test
from headway.study.design.claims import Claim, Look, Reported
from headway.study.design.factors import Arm, Change, Factor, crossed, is_data
from headway.study.design.ladder import Ladder
from headway.study.design.measures import Measure
from headway.study.design.mistakes import MAX_RUNS, mistakes
from headway.study.design.questions import Question

if TYPE_CHECKING:
    from headway.recipe.recipe import Recipe

Budget = Literal["steps", "tokens", "flops", "seconds"]
Looks = Literal["one", "any"]


class PlannedRun(NamedTuple):
    arm: str
    seed: int
    recipe: "Recipe"
    name: str
    """The name of its folder."""


def _recipe_or_name(given: Any, validate: Callable[[Any], "Recipe"]) -> "Recipe":
    from headway.recipe.recipe import load

    try:
        return load(given) if isinstance(given, str) else validate(given)
    except ImpossibleError as error:
        raise ImpossibleError([Problem(tuple(f"base.{k}" for k in p.keys), p.reason) for p in error.problems]) from None
    except UserError as error:
        raise PydanticCustomError("base", "{why}?", {"why": str(error).rstrip("?")}) from None


def _numbered(given: Any) -> Any:
    """Expand a number of seeds to a list: 8 = 0..7."""
    seeds = list(range(given)) if type(given) is int and 0 < given <= MAX_RUNS else given
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise PydanticCustomError("seeds", "expected the number of seeds (8 = 0..7), or a list of seeds")
    if len(set(seeds)) < len(seeds):
        raise PydanticCustomError("seeds", "a seed is listed twice: it would be the same run again")
    return seeds


class Study(Spec):
    title: str
    """The question as a sentence."""
    base: Annotated["Recipe", WrapValidator(_recipe_or_name)]
    """The recipe that all arms start from: a packaged recipe's name, a YAML file (relative to the study's own), or a
    recipe."""
    changes: list[Change] = Field(default=[])
    """Changes to the base, for all arms."""
    named_arms: dict[str, list[Change]] = Field(default={}, alias="arms")
    """The arms, by name: the changes of each to the base."""
    factors: dict[str, Factor] = Field(default={})
    """Instead of arms: recipe keys and their values; every combination is an arm (a full factorial design)."""
    ladder: Ladder | None = None
    """Instead of either: model sizes and compute budgets; every size at every budget is an arm."""
    seeds: Annotated[list[int], BeforeValidator(_numbered)] = Field(default=list(range(8)))
    """How many seeds, or which. Every arm is trained with every seed, and arms are compared seed by seed (paired)."""
    looks: Looks = "one"
    """When verdicts are read: one = once, with all seeds; any = as often as you like while seeds are added. With any,
    intervals are wider (confidence sequences) and valid whenever you stop."""
    equal: Budget | None = None
    """Give every arm as much of this as the first arm: steps, tokens, flops or seconds. null = each arm trains for the
    duration in its recipe."""
    questions: list[Question] = Field(default=[])
    """The questions. Each is answered by a verdict."""
    about: str = ""
    """Background for the reader: the setting, the data and where they come from."""
    measures: list[Measure] = Field(default=[])
    """Further measurements of every finished run, in addition to the scores of its recipe. Questions can be about them
    as about any score."""
    ensembles: bool = False
    """Whether the seeds of every arm are also scored as an ensemble (the mean of their probabilities), for the
    report."""
    look: list[Look] = Field(default=[])
    """Sentences whose attention maps the report shows."""
    reported: Reported | None = None
    """What was reported about this experiment elsewhere."""
    claims: list[Claim] = Field(default=[])
    """The report's claims, each as a question with the report's answer to it, or as an audit that must pass."""

    @classmethod
    def model_rebuild(cls, **how: Any) -> bool | None:
        """Called by Pydantic when the first study is made. Only then is the recipe class needed, and torch with it."""
        from headway.recipe.recipe import Recipe

        return super().model_rebuild(**{**how, "_types_namespace": {**globals(), "Recipe": Recipe}})

    @model_validator(mode="after")
    def _goes_together(self) -> "Study":
        if problems := list(self.all_problems()):
            raise ImpossibleError(problems)
        return self

    # --- derived from the specification ----------------------------------------------------------------------------

    @cached_property
    def arms(self) -> list[Arm]:
        """The arms that are compared. The budgets of the others are matched to the first arm."""
        if self.factors:
            return crossed(self.factors)
        if self.ladder is not None:
            return self.ladder.arms(self.base.with_changes(self.changes, "").training.optimizer.learning_rate)
        return [Arm(name, tuple(changes)) for name, changes in self.named_arms.items()]

    @cached_property
    def recipes(self) -> "dict[str, Recipe]":
        """Each arm's recipe as written: without its budget, and with the seed of the base."""
        base = self.base.with_changes(self.changes, "")
        return {arm.name: base.with_changes(arm.changes, "") for arm in self.arms}

    @cached_property
    def asked(self) -> list[Question]:
        """Every question: those of the claims, and the study's own."""
        found: list[Question] = []
        for question in [*(claim.ask for claim in self.claims if claim.ask is not None), *self.questions]:
            if question not in found:
                found.append(question)
        return found

    def runs(self, steps: Mapping[str, int] | None = None) -> list[PlannedRun]:
        """Every arm with every seed. `steps` are the budgets of arms whose duration is not that of their recipe."""
        budgets = {arm: [f"training.duration={n} steps"] for arm, n in (steps or {}).items()}
        trained = {arm: r.with_changes(budgets[arm]) if arm in budgets else r for arm, r in self.recipes.items()}
        return [
            PlannedRun(arm, seed, recipe.model_copy(update={"seed": seed}), f"{arm}.seed-{seed}")
            for arm, recipe in trained.items()
            for seed in self.seeds
        ]

    def differences(self) -> dict[str, list[Any]]:
        """The recipe keys in which arms differ, and each arm's value."""
        trees = [flat(recipe.model_dump(mode="json")) for recipe in self.recipes.values()]
        keys = dict.fromkeys(key for tree in trees for key in tree)
        rows = {key: [tree.get(key) for tree in trees] for key in keys}
        return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}

    @property
    def reads_other_rows(self) -> bool:
        """Whether arms read different data. The same text with another tokenizer counts as the same data."""
        return any(is_data(key) and not f"{key}.".startswith("data.tokenizer.") for key in self.differences())

    def warnings(self) -> list[str]:
        """Warnings about what is allowed but often misleading."""
        found = list(dict.fromkeys(w for recipe in self.recipes.values() for w in recipe.warnings()))
        if self.asked and len(self.seeds) == 1:
            found.append(
                "with one seed there is no spread to compare a difference with, so every verdict will be 'cannot say'; "
                "give seeds: 3 or more"
            )
        if unlike := [key for key in self.differences() if is_data(key)]:
            found.append(
                f"the arms do not read the same data: they differ in {', '.join(unlike)}; "
                "scores on different text or different tokens are not comparable"
            )
        seen = [split for recipe in self.recipes.values() for split in recipe.training.evaluate_on]
        asked = [score for question in self.asked for score in question.scores]
        tests = dict.fromkeys(split for split in seen if is_test(split))
        if tests and any(is_test(score) for score in asked):
            found.append(
                f"{', '.join(tests)} is evaluated during training (training.evaluate_on), so it is no longer an "
                "independent test; evaluate on valid instead"
            )
        return found

    def problems(self) -> Iterator[Problem]:
        return mistakes(self)


def load_study(name: str | Path, studies: Path = Path("studies")) -> Study:
    """Load a study by its YAML file, its folder, or its name in `studies`."""
    path = _study_file(Path(name), studies)
    try:
        text = read_text(path, through_links=True)
    except OSError as error:
        raise UserError(f"cannot read the study {path}: {error}") from None
    from headway.recipe.library import packaged

    tree, lines = read_tree(text, path.name)
    is_begun = (path.parent / "runs").is_dir() and path.name == "study.yaml"
    for part in (tree, tree.get("base")):
        if isinstance(part, dict):
            load_named(part, path.parent, str(path), is_asked=not is_begun)
    base = tree.get("base")
    if isinstance(base, str) and base not in packaged() and (path.parent / base).is_file():
        tree["base"] = str(path.parent / base)

    def place(key: tuple[str, ...]) -> str:
        while key and key not in lines:  # items of a list have no line of their own
            key = key[:-1]
        return f"{path.name}:{lines[key]}" if key else ""

    return validated(Study, tree, str(path), place)


def _study_file(given: Path, studies: Path) -> Path:
    for path in (given, given / "study.yaml", studies / given / "study.yaml"):
        if path.is_file():
            return path
    if given.suffix in (".yaml", ".yml"):
        beside = [str(file) for file in given.parent.glob("*.y*ml")]
        raise UserError(f"there is no study file {given}{did_you_mean(str(given), beside)}")
    known = [path.parent.name for path in studies.glob("*/study.yaml")]
    raise UserError(f"there is no study '{given}'{did_you_mean(str(given), known)}; a study's file ends in .yaml")
