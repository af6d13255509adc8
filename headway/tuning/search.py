"""The definition of a search: a base recipe, a search space, and the score that decides."""

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
    """What is searched, and by which score."""

    base: Recipe
    space: Space
    on: str
    """The score that decides, on a validation split."""
    pruning: Pruning = "median"
    grid: bool = False
    """Every combination, instead of Optuna's suggestions."""

    def check(self) -> None:
        check_space(self.space, self.base)
        for dimension in self.space.values():
            self._check_comparable(dimension.key)
        metric, split = metric_of(self.on), parsed(self.on).split
        known = tasks.of(self.base).metrics
        if metric not in known:
            hint = did_you_mean(metric.name, [each.name for each in known])
            raise UserError(f"'{self.on}' is not a score of a {self.base.model.kind}{hint}")
        if split in ("test", "train"):
            raise UserError(f"a search must not choose by {split}: use valid.{metric.name}")
        watched = self.base.training.evaluate_on
        if "test" in watched:
            raise UserError("the search would look at test during training: set training.evaluate_on=[valid]")
        if self.pruning != "none" and split not in watched:
            raise UserError(f"pruning needs evaluations on {split}: set training.evaluate_on=[{split}]")

    def _check_comparable(self, key: str) -> None:
        """Check that the scores of all trials are comparable when this key varies."""
        if key == "seed":
            raise UserError(
                "a search over seeds finds the luckiest one, which says nothing; compare seeds with headway study"
            )
        if key.startswith(HOW_IT_IS_SCORED):
            raise UserError(f"{key} changes how a model is scored, not the model: a search cannot choose by it")
        if is_data(key) and (metric_of(self.on).is_per_token or not f"{key}.".startswith("data.tokenizer.")):
            also = "; valid.bits_per_byte compares tokenizers" if key.startswith("data.tokenizer") else ""
            raise UserError(f"{key} changes the text or tokens, so values of {self.on} are not comparable{also}")

    def recipe(self, suggested: Mapping[str, Any]) -> Recipe:
        """The recipe of a trial, scored only on the split that decides."""
        split = parsed(self.on).split
        return self.base.with_changes([*changes(self.space, suggested), f"scoring.splits=[{split}]"])

    def as_json(self) -> dict[str, Any]:
        space = {name: dimension.model_dump(mode="json") for name, dimension in self.space.items()}
        base = self.base.model_dump(mode="json")
        return {"on": self.on, "pruning": self.pruning, "grid": self.grid, "space": space, "base": base}
