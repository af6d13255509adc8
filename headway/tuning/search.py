"""A search: a recipe, where to look, and the score that decides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.recipe.recipe import Recipe
from headway.scoring.metrics import metric_of, parsed
from headway.study.design.factors import is_data
from headway.tuning.pruning import Pruning
from headway.tuning.space import Space, changes, check_space

HOW_IT_IS_SCORED = ("scoring.", "training.evaluate_")


@dataclass(frozen=True)
class Search:
    """What is searched for, and where."""

    base: Recipe
    space: Space
    on: str
    """The score that decides: of a dev split."""
    pruning: Pruning = "median"
    grid: bool = False
    """Every combination, instead of what Optuna thinks promising."""

    def check(self) -> None:
        check_space(self.space, self.base)
        for dimension in self.space.values():
            self._check_comparable(dimension.key)
        metric, split = metric_of(self.on), parsed(self.on).split
        known = tasks.of(self.base).metrics
        if metric not in known:
            hint = did_you_mean(metric.name, [each.name for each in known])
            raise UserError(f"'{self.on}' is no score of a {self.base.model.kind}{hint}")
        if split in ("test", "train"):
            raise UserError(f"a search chooses on dev, not on {split}: ask for valid.{metric.name}")
        watched = self.base.training.evaluate_on
        if "test" in watched:
            raise UserError("the search would look at test all the time: set training.evaluate_on=[valid]")
        if self.pruning != "none" and split not in watched:
            raise UserError(f"pruning goes by evaluations on {split}: set training.evaluate_on=[{split}]")

    def _check_comparable(self, key: str) -> None:
        """What is searched must leave the score of one trial the same thing as that of another."""
        if key == "seed":
            raise UserError(
                "a search over seeds finds the luckiest, and luck does not last: seeds are for headway study"
            )
        if key.startswith(HOW_IT_IS_SCORED):
            raise UserError(f"{key} says how a model is scored, and makes none better: a search cannot choose by it")
        if is_data(key) and (metric_of(self.on).is_per_token or not f"{key}.".startswith("data.tokenizer.")):
            also = "; valid.bits_per_byte compares tokenizers" if key.startswith("data.tokenizer") else ""
            raise UserError(f"{key} says what is read, and {self.on} of one text or token is not that of another{also}")

    def recipe(self, suggested: Mapping[str, Any]) -> Recipe:
        """Of a trial; scored on the split that decides, and on no other."""
        split = parsed(self.on).split
        return self.base.with_changes([*changes(self.space, suggested), f"scoring.splits=[{split}]"])

    def as_json(self) -> dict[str, Any]:
        space = {name: dimension.model_dump(mode="json") for name, dimension in self.space.items()}
        base = self.base.model_dump(mode="json")
        return {"on": self.on, "pruning": self.pruning, "grid": self.grid, "space": space, "base": base}
